"""Canaries that hit the bound of every release of a mechanism at once.

A clip scales each sample to its bound in each release on its own. So a gradient that is far beyond the bound in *every*
encoded space reaches all of them jointly, while one that a representation projects away shows nothing of its release.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from quietgrad._gradients.blocks import Blocks, DenseGrad
from quietgrad._gradients.space import Shapes, coordinates
from quietgrad._gradients.stages import BlockwiseGrads, Released
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._representations.base import Public

OVERSHOOT = 50.0
"""How far beyond its bounds a canary lies before the clip: far enough for a missing clip to show, and below the 100
from which on GEP's residual is scaled down before anything else."""

FAINT = 2 / OVERSHOOT
"""A canary's part in each block that is not its own: beyond the bound of a clip by groups in every group."""

Group = tuple[int, str]
"""A block of a release: (index of the release, name of the block)."""


@dataclass(frozen=True)
class Canary:
    """A gradient in the model's space, and in each release the block that it concentrates on."""

    gradient: Blocks
    groups: tuple[Group, ...]


def as_samples(canaries: list[Canary]) -> BlockwiseGrads:
    """One row a canary."""
    names = canaries[0].gradient
    rows = {name: DenseGrad(torch.stack([canary.gradient[name] for canary in canaries])) for name in names}
    return BlockwiseGrads(dict(rows), len(canaries))


def capacity(mechanism: Mechanism, public: Public) -> int:
    """How many orthogonal canaries fit into the smallest release of this step."""
    return min(coordinates(public.codec(release.representation).space) for release in mechanism.releases)


def design(
    mechanism: Mechanism, public: Public, count: int, *, turn: int, generator: torch.Generator
) -> list[Canary]:
    """`count` canaries: orthonormal in each encoded space, carried back to the model's space and added up.

    Args:
        turn: which block the first canary gets; count on from step to step so that every block has its turn.
    """
    gradients: list[Blocks] = [
        {name: torch.zeros_like(p) for name, p in public.parameters.items()} for _ in range(count)
    ]
    groups: list[list[Group]] = [[] for _ in range(count)]
    like = next(iter(public.parameters.values()))
    for index, release in enumerate(mechanism.releases):
        codec = public.codec(release.representation)
        bound = release.clip.sensitivity(public.step)
        directions, blocks = encoded_directions(codec.space, count, turn, generator)
        for m in range(count):
            groups[m].append((index, blocks[m]))
            encoded = {name: rows[m].to(like) for name, rows in directions.items()}
            # As if without noise: a decoder may weigh what it gets by its noise. One that only feeds the state decodes
            # to nothing: the canary reaches that release through the others.
            decoded = codec.decode(Released(blocks=encoded, std=1e-9, sensitivity=1.0)) or {}
            for name, block in decoded.items():
                gradients[m][name] += OVERSHOOT * bound * block
    return [Canary(gradient, tuple(group)) for gradient, group in zip(gradients, groups, strict=True)]


def encoded_directions(
    space: Shapes, count: int, turn: int, generator: torch.Generator
) -> tuple[dict[str, Float[Tensor, "m *shape"]], list[str]]:
    """Orthogonal directions, each concentrated on one block, the blocks taken in turn; and which block each got."""
    rows = {
        name: _orthonormal(min(count, shape.numel()), shape.numel(), generator)
        for name, shape in space.items()
        if shape.numel()
    }
    slots = _slots(space, count, turn)
    directions = {name: FAINT * each[torch.arange(count) % len(each)] for name, each in rows.items()}
    for m, (name, row) in enumerate(slots):
        directions[name][m] = rows[name][row]
    shaped = {name: each.reshape(count, *space[name]) for name, each in directions.items()}
    empty = {name: torch.zeros(count, *shape) for name, shape in space.items() if name not in shaped}
    return shaped | empty, [name for name, _ in slots]


def _slots(space: Shapes, count: int, turn: int) -> list[tuple[str, int]]:
    """(block, row) of each canary: the blocks in turn, none more often than it has dimensions."""
    names = [name for name, shape in space.items() if shape.numel()]
    used = dict.fromkeys(names, 0)
    slots: list[tuple[str, int]] = []
    while len(slots) < count:
        name = names[turn % len(names)]
        turn += 1
        if used[name] < space[name].numel():
            slots.append((name, used[name]))
            used[name] += 1
    return slots


def _orthonormal(count: int, dimension: int, generator: torch.Generator) -> Float[Tensor, "count dimension"]:
    if dimension < 4 * count:
        columns: Tensor = torch.linalg.qr(torch.randn(dimension, count, generator=generator))[0]
        return columns.T
    # Random signs on every count-th coordinate: orthogonal by disjoint supports, for the price of the draws.
    whole = dimension // count
    signs = 2.0 * torch.randint(2, (count, whole), generator=generator) - 1.0
    rows = torch.zeros(count, whole, count)
    rows[torch.arange(count), :, torch.arange(count)] = signs / whole**0.5
    return torch.nn.functional.pad(rows.view(count, whole * count), (0, dimension - whole * count))
