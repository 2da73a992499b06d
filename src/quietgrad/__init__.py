"""quietgrad: train PyTorch models with differential privacy and less noise.

The names in the order of a private step: draw batches, choose and calibrate a mechanism, make gradients private; then
what an extension builds upon, and the rooms with more.
"""

from quietgrad import accounting, audit, capture, distributed, gradients, methods, rules, schedules
from quietgrad.accounting.calibrate import calibrate
from quietgrad.accounting.ledger import Ledger
from quietgrad.capture.fix import fix
from quietgrad.capture.independence import check_independence
from quietgrad.mechanism.clipping import AutomaticClip, FlatClip, PerGroupClip
from quietgrad.mechanism.mechanism import Mechanism, Release, both, then, within
from quietgrad.mechanism.post import Post
from quietgrad.noise.gaussian import Gaussian
from quietgrad.noise.sources import SeededSource
from quietgrad.privatizer.privatizer import Privatizer
from quietgrad.privatizer.research import Observer
from quietgrad.program.program import Program, StatisticRelease
from quietgrad.program.releasing import Statistics
from quietgrad.representations import public_losses
from quietgrad.representations.base import Codec, Representation
from quietgrad.representations.low_rank.low_rank import LowRank
from quietgrad.representations.masks.mask import RandomMask
from quietgrad.sampling.batches import PoissonBatches, collate_possibly_empty
from quietgrad.sampling.poisson import PoissonSampler

__version__ = "0.2.0"

__all__ = [
    "AutomaticClip",
    "Codec",
    "FlatClip",
    "Gaussian",
    "Ledger",
    "LowRank",
    "Mechanism",
    "Observer",
    "PerGroupClip",
    "PoissonBatches",
    "PoissonSampler",
    "Post",
    "Privatizer",
    "Program",
    "RandomMask",
    "Release",
    "Representation",
    "SeededSource",
    "StatisticRelease",
    "Statistics",
    "__version__",
    "accounting",
    "audit",
    "both",
    "calibrate",
    "capture",
    "check_independence",
    "collate_possibly_empty",
    "distributed",
    "fix",
    "gradients",
    "methods",
    "public_losses",
    "rules",
    "schedules",
    "then",
    "within",
]
