"""What a client sent, checked and copied before anything is computed with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from quietgrad._gradients.blocks import DenseGrad
from quietgrad._gradients.row_arithmetic import at_least_single
from quietgrad._gradients.space import Space
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad.federated.rounds import Update

NUMBERS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""What a client's update may consist of; torch cannot add the smaller kinds."""


def problem_of(update: Any, spaces: list[Space]) -> str:
    """Say why an update cannot be added to these releases; nothing if it can."""
    if not isinstance(update, list) or len(update) != len(spaces):
        return f"{len(spaces)} releases expected"
    for blocks, space in zip(update, spaces, strict=True):
        if not isinstance(blocks, dict) or not all(_is_plain(block) for block in blocks.values()):
            return "no plain tensors of floating-point numbers"
        if {name: block.shape for name, block in blocks.items()} != dict(space):
            return "another shape than the round's encoded space: another model or method"
    return ""


def _is_plain(block: Any) -> bool:
    """Whether this is a dense tensor of usual numbers: others raise in the middle of a sum."""
    plain = type(block) in (Tensor, nn.Parameter) and block.layout is torch.strided and not block.is_nested
    return plain and block.dtype in NUMBERS


def plain_rows(update: Update, spaces: list[Space], device: torch.device) -> list[BlockwiseGrads] | None:
    """Copy a client's blocks into fresh memory, in the order of the round's spaces; None if they have no numbers.

    A sum of rows takes blocks by their order, and a copy has no strides, hooks or storage of the client's choice.
    """
    try:
        return [
            BlockwiseGrads({name: DenseGrad(_copied(blocks[name], device)[None]) for name in space}, 1)
            for blocks, space in zip(update, spaces, strict=True)
        ]
    except (RuntimeError, NotImplementedError):  # of a device that is not there, or of "meta"
        return None


def _copied(block: Tensor, device: torch.device) -> Tensor:
    return at_least_single(block.detach().to(device)).clone(memory_format=torch.contiguous_format)
