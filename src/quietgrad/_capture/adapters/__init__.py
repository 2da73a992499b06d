"""How each family of layers turns what it saw into per-sample gradients."""
