# ruff: noqa: I001, RUF022 (the names stand in the order of a private step, not of the alphabet)
"""The public names of quietgrad, which `quietgrad/__init__.py` hands out when they are first asked for.

The names follow the order of a private step: draw batches, choose and calibrate a mechanism, make gradients private.
Then come the base classes of extensions and the public subpackages.
"""

from importlib import import_module as _import_module
from typing import Any as _Any

# Draw batches.
from quietgrad._sampling.batches import PoissonBatches
from quietgrad._sampling.collate import collate_possibly_empty
from quietgrad._sampling.padding import pad_collate
from quietgrad._sampling.poisson import PoissonSampler

# Make a model fit for it.
from quietgrad._capture.fix import fix
from quietgrad._capture.independence import check_independence

# Choose a mechanism: a method, or releases and their combinations.
import quietgrad.methods as methods
import quietgrad.public_losses as public_losses
import quietgrad.rules as rules
import quietgrad.schedules as schedules
from quietgrad._mechanism.clipping import AutomaticClip, FlatClip, PerGroupClip
from quietgrad._mechanism.mechanism import Mechanism, Release, both, then, within
from quietgrad._representations.low_rank.low_rank import LowRank
from quietgrad._representations.masks.mask import RandomMask
from quietgrad._representations.subspace.subspace import Subspace
from quietgrad._representations.preconditioned.scaling import Preconditioned
from quietgrad._noise.gaussian import Gaussian
from quietgrad._noise.banded import BandedNoise
from quietgrad._noise.choose_bands import BandChoice, band_choices, choose_bands
from quietgrad._noise.sources import SeededSource

# Calibrate it, alone or with statistics that are released first.
from quietgrad.accounting.calibrate import calibrate
from quietgrad._program.program import Program, StatisticRelease
from quietgrad._program.releasing import Statistics
from quietgrad._program.statistics import Mean, SecondMoments, Statistic

# Make gradients private, and keep the record.
from quietgrad._privatizer.privatizer import Privatizer
from quietgrad._privatizer.make_private import make_private
from quietgrad.accounting.ledger import Ledger

# What an extension builds upon.
from quietgrad._errors import PrivacyError
from quietgrad._capture.adapter import Adapter, inputs_for
from quietgrad._capture.registry import register_adapter
from quietgrad._gradients.blocks import BlockGrads, DenseGrad
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.stages import BlockwiseGrads, ClippedSum, PerSampleGrads, Released
from quietgrad._representations.base import Codec, Representation
from quietgrad._representations.base import Public
from quietgrad._mechanism.clipping import Clip
from quietgrad._mechanism.post import Post
from quietgrad._noise.base import Noise, NoiseDraw, NoiseState
from quietgrad._noise.sources import NoiseSource
from quietgrad._privatizer.research import Observer
from quietgrad._privatizer.step import Step

# Public subpackages.
import quietgrad.accounting as accounting
import quietgrad.audit as audit
import quietgrad.distributed as distributed
import quietgrad.federated as federated

__all__ = [
    "PoissonBatches",
    "PoissonSampler",
    "pad_collate",
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
    "Preconditioned",
    "Gaussian",
    "BandedNoise",
    "BandChoice",
    "band_choices",
    "choose_bands",
    "SeededSource",
    "calibrate",
    "Program",
    "StatisticRelease",
    "Statistics",
    "Statistic",
    "Mean",
    "SecondMoments",
    "Privatizer",
    "make_private",
    "Ledger",
    "PrivacyError",
    "Adapter",
    "inputs_for",
    "register_adapter",
    "PerSampleGrads",
    "BlockwiseGrads",
    "BlockGrads",
    "DenseGrad",
    "FactoredGrad",
    "ClippedSum",
    "Released",
    "Representation",
    "Codec",
    "Public",
    "Clip",
    "Post",
    "Noise",
    "NoiseDraw",
    "NoiseState",
    "NoiseSource",
    "Observer",
    "Step",
    "accounting",
    "audit",
    "distributed",
    "federated",
    "load",
]


def load(path: str) -> _Any:
    """Load the model of a finished run, or one that `quietgrad export` wrote.

    It needs the extra `lab`, and none of the data.

    Args:
        path: the folder.

    Returns:
        A module that also predicts: `predict(frame)`, `predict_proba(frame)`, `classes`, `schema`.

    Raises:
        ValueError: the folder holds no finished model.
    """
    # By name: the core imports nothing that is built upon it.
    return _import_module("quietgrad.lab.serve").load(path)
