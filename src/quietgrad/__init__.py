# ruff: noqa: I001, RUF022 (the names stand in the order of a private step, not of the alphabet)
"""quietgrad: train PyTorch models with differential privacy, with more signal per ε.

The names in the order of a private step: draw batches, choose and calibrate a mechanism, make gradients private; then
what an extension builds upon, and the rooms with more.
"""

# Draw batches.
from quietgrad.sampling.batches import PoissonBatches
from quietgrad.sampling.collate import collate_possibly_empty
from quietgrad.sampling.poisson import PoissonSampler

# Make a model fit for it.
from quietgrad.capture.fix import fix
from quietgrad.capture.independence import check_independence

# Choose a mechanism: a method, or releases and their combinations.
from quietgrad import methods, rules, schedules
from quietgrad.mechanism.clipping import AutomaticClip, FlatClip, PerGroupClip
from quietgrad.mechanism.mechanism import Mechanism, Release, both, then, within
from quietgrad.representations import public_losses
from quietgrad.representations.low_rank.low_rank import LowRank
from quietgrad.representations.masks.mask import RandomMask
from quietgrad.representations.subspace.subspace import Subspace
from quietgrad.noise.gaussian import Gaussian
from quietgrad.noise.sources import SeededSource

# Calibrate it, alone or with statistics that are released first.
from quietgrad.accounting.calibrate import calibrate
from quietgrad.program.program import Program, StatisticRelease
from quietgrad.program.releasing import Statistics

# Make gradients private, and keep the record.
from quietgrad.privatizer.privatizer import Privatizer
from quietgrad.privatizer.make_private import make_private
from quietgrad.accounting.ledger import Ledger

# What an extension builds upon.
from quietgrad.representations.base import Codec, Representation
from quietgrad.representations.base import Public
from quietgrad.mechanism.clipping import Clip
from quietgrad.mechanism.post import Post
from quietgrad.noise.base import Noise, NoiseDraw
from quietgrad.noise.sources import NoiseSource
from quietgrad.privatizer.research import Observer
from quietgrad.privatizer.step import Step

# Rooms with more.
from quietgrad import accounting, audit, capture, distributed, federated, gradients

__version__ = "0.2.0"

__all__ = [
    "PoissonBatches",
    "PoissonSampler",
    "collate_possibly_empty",
    "fix",
    "check_independence",
    "methods",
    "rules",
    "schedules",
    "FlatClip",
    "AutomaticClip",
    "PerGroupClip",
    "Mechanism",
    "Release",
    "both",
    "within",
    "then",
    "public_losses",
    "RandomMask",
    "LowRank",
    "Subspace",
    "Gaussian",
    "SeededSource",
    "calibrate",
    "Program",
    "StatisticRelease",
    "Statistics",
    "Privatizer",
    "make_private",
    "Ledger",
    "Representation",
    "Codec",
    "Public",
    "Clip",
    "Post",
    "Noise",
    "NoiseDraw",
    "NoiseSource",
    "Observer",
    "Step",
    "accounting",
    "audit",
    "capture",
    "distributed",
    "federated",
    "gradients",
    "__version__",
]
