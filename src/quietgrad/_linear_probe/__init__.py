"""The quiet recipe: a linear head on fixed, rescaled features, trained on all records at once by one rule."""
