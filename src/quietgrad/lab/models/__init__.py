"""The models of the papers, without BatchNorm."""

from __future__ import annotations

from quietgrad.features.scattering import ScatterNet
from quietgrad.lab.models.features import precompute
from quietgrad.lab.models.registry import MODELS, build

__all__ = ["MODELS", "ScatterNet", "build", "precompute"]
