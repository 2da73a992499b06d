"""The models of the papers, without BatchNorm."""

from __future__ import annotations

from quietgrad.lab.models.features import precompute
from quietgrad.lab.models.registry import MODELS, build
from quietgrad.lab.models.scattering import ScatterNet

__all__ = ["MODELS", "ScatterNet", "build", "precompute"]
