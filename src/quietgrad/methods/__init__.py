"""One method a file; each is a function that returns a frozen `Mechanism`."""

from quietgrad.methods.adaptive_clip import adaptive_clip
from quietgrad.methods.datalens import datalens
from quietgrad.methods.dp_sgd import dp_sgd
from quietgrad.methods.gep import biased_gep, gep
from quietgrad.methods.gip.gip import gip, random_k
from quietgrad.methods.pdp_sgd import pdp_sgd, rpdp_sgd
from quietgrad.methods.power_sgd import dp_power_sgd
from quietgrad.methods.preconditioned import preconditioned
from quietgrad.methods.random_freeze import posterior_freeze, random_freeze, ranked_freeze
from quietgrad.methods.rgp import rgp, rgp_random
from quietgrad.methods.top_groups import top_groups

__all__ = [
    "adaptive_clip",
    "biased_gep",
    "datalens",
    "dp_power_sgd",
    "dp_sgd",
    "gep",
    "gip",
    "pdp_sgd",
    "posterior_freeze",
    "preconditioned",
    "random_freeze",
    "random_k",
    "ranked_freeze",
    "rgp",
    "rgp_random",
    "rpdp_sgd",
    "top_groups",
]
