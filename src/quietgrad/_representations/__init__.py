"""Maps of per-sample gradients into the space where noise is paid."""
