"""Observers and measures for research mode: they read private gradients, so a run they watch is not covered by ε."""
