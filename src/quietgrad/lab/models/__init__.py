"""The models of the papers, without BatchNorm."""

from __future__ import annotations

from quietgrad.lab.models.registry import MODELS, build

__all__ = ["MODELS", "build"]
