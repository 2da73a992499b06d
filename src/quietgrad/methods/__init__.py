"""One method a file; each is a function that returns a frozen `Mechanism`."""

from quietgrad.methods.dp_sgd import dp_sgd
from quietgrad.methods.power_sgd import dp_power_sgd
from quietgrad.methods.rgp import rgp, rgp_random

__all__ = ["dp_power_sgd", "dp_sgd", "rgp", "rgp_random"]
