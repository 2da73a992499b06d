"""Poisson draws: each record on its own, so that the accountant's theorem applies."""
