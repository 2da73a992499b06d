"""quietgrad: train PyTorch models with differential privacy and less noise.

The names in the order of a private step: draw batches, choose and calibrate a mechanism, make gradients private.
"""

from quietgrad import distributed, methods, rules, schedules
from quietgrad.accounting.calibrate import calibrate
from quietgrad.capture.fix import fix
from quietgrad.capture.independence import check_independence
from quietgrad.mechanism.clipping import AutomaticClip, FlatClip, PerGroupClip
from quietgrad.mechanism.mechanism import Mechanism, Release, both, then, within
from quietgrad.noise.gaussian import Gaussian
from quietgrad.noise.sources import SeededSource
from quietgrad.privatizer.privatizer import Privatizer
from quietgrad.representations import public_losses
from quietgrad.sampling.batches import PoissonBatches, collate_possibly_empty
from quietgrad.sampling.poisson import PoissonSampler

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
    "public_losses",
    "rules",
    "schedules",
    "then",
    "within",
]
