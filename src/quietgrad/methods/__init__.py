"""One method a file; each is a function that returns a frozen `Mechanism`."""

from quietgrad.methods.dp_sgd import dp_sgd
from quietgrad.methods.gep import biased_gep, gep
from quietgrad.methods.pdp_sgd import pdp_sgd, rpdp_sgd
from quietgrad.methods.power_sgd import dp_power_sgd
from quietgrad.methods.rgp import rgp, rgp_random

__all__ = ["biased_gep", "dp_power_sgd", "dp_sgd", "gep", "pdp_sgd", "rgp", "rgp_random", "rpdp_sgd"]
