"""The private linear probe: a linear head on fixed, rescaled features."""
