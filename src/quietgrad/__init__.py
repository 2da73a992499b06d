"""quietgrad: train PyTorch models with differential privacy and less noise.

The names in the order of a private step: draw batches, choose and calibrate a mechanism, make gradients private.
"""

from quietgrad import distributed, methods, rules, schedules
from quietgrad.accounting.calibrate import calibrate
from quietgrad.clipping import AutomaticClip, FlatClip, PerGroupClip
from quietgrad.fix import fix
from quietgrad.independence import check_independence
from quietgrad.mechanism import Mechanism, Release, both, then, within
from quietgrad.noise import Gaussian, SeededSource
from quietgrad.privatizer import Privatizer
from quietgrad.sampling import PoissonBatches, PoissonSampler, collate_possibly_empty

__version__ = "0.1.0"

__all__ = [
    "AutomaticClip",
    "FlatClip",
    "Gaussian",
    "Mechanism",
    "PerGroupClip",
    "PoissonBatches",
    "PoissonSampler",
    "Privatizer",
    "Release",
    "SeededSource",
    "__version__",
    "both",
    "calibrate",
    "check_independence",
    "collate_possibly_empty",
    "distributed",
    "fix",
    "methods",
    "rules",
    "schedules",
    "then",
    "within",
]
