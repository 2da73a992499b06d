"""A task like the private one, made of public or made-up records: as many of them, of the same shape and classes.

The noise of a run depends on N, the batch and the steps; a stand-in keeps all three, so that a try on it meets the very
noise of the private run. Nothing of the private records is read but their number.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor
from torch.utils.data import TensorDataset

from quietgrad.lab.data import Parts
from quietgrad.lab.errors import LabError

LEAST_PUBLIC = 40
"""Labelled public examples below which half of them cannot tell settings apart."""

SCORED = 1_000
"""Made-up examples that a try is scored on."""

CONTRAST = 0.7
"""Size of the class patterns against noise of 1: neither trivial nor hopeless at the noise of usual budgets."""


def public_stand_in(parts: Parts, seed: int) -> Parts:
    """Half of the labelled public examples, repeated up to N records; the other half scores the tries."""
    _refuse_users(parts)
    labels = parts.public_labels
    if labels is None or len(parts.public) < LEAST_PUBLIC:
        raise LabError(
            f"Tuning on public data needs at least {LEAST_PUBLIC} public examples with labels. Set data.public = N and "
            "data.public_labels = true, or take --on synthetic."
        )
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    train, held_out = order[: len(order) // 2], order[len(order) // 2 :]
    rows = train.repeat(-(-len(parts.private) // len(train)))[: len(parts.private)]
    inputs = parts.public_inputs
    return dataclasses.replace(
        parts,
        private=TensorDataset(inputs[rows], labels[rows]),
        test=TensorDataset(inputs[held_out], labels[held_out]),
        record={"data": "public stand-in"},
    )


def synthetic_stand_in(parts: Parts, seed: int) -> Parts:
    """A smooth random pattern for each class plus unit noise; for tokens there is none."""
    _refuse_users(parts)
    if parts.public_inputs.dtype == torch.int64 or parts.test.tensors[0].dtype == torch.int64:
        raise LabError("There is no made-up data for texts. Take --on public with labelled public data.")
    generator = torch.Generator().manual_seed(seed)
    patterns = CONTRAST * _patterns(parts.num_classes, parts.input_shape, generator)

    def part(count: int) -> TensorDataset:
        labels: Int64[Tensor, " n"] = torch.randint(parts.num_classes, (count,), generator=generator)
        noise = torch.randn((count, *parts.input_shape), generator=generator)
        return TensorDataset(patterns[labels] + noise, labels)

    return dataclasses.replace(
        parts, private=part(len(parts.private)), test=part(SCORED), record={"data": "synthetic stand-in"}
    )


def _refuse_users(parts: Parts) -> None:
    if parts.users is not None:
        raise LabError(
            "How many records users have is private, so there is no stand-in for them. Leave out data.unit to tune."
        )


def _patterns(
    classes: int, shape: tuple[int, ...], generator: torch.Generator
) -> Float[Tensor, "classes ..."]:
    """Of unit energy per coordinate; images get low frequencies only, as real ones have."""
    if len(shape) != 3:
        return torch.randn((classes, *shape), generator=generator)
    coarse = torch.randn((classes, shape[0], 5, 5), generator=generator)
    smooth = F.interpolate(coarse, size=shape[1:], mode="bicubic", align_corners=True)
    return smooth / smooth.square().mean().sqrt()
