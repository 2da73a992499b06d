"""One private step as a straight line: capture, encode, clip, sum, noise, decode."""
