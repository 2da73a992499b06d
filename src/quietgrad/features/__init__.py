"""Fixed features for private learning, frozen before training."""
