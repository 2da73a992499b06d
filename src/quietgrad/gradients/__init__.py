"""Per-sample gradients in the cheapest form each layer allows."""
