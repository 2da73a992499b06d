"""One method a file; each is a function that returns a frozen `Mechanism`."""

from quietgrad.methods.dp_sgd import dp_sgd

__all__ = ["dp_sgd"]
