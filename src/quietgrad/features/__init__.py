"""Fixed features for private learning: encoder → centre → rescale → unit length, frozen before training."""
