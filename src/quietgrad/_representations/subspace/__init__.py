"""The span of public gradients, and what is left outside it."""
