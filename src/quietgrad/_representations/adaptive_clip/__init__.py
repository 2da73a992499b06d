"""A clip bound that follows a quantile of gradient norms."""
