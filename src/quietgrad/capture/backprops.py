"""One activation-only backward: the gradient at every recorded output, samples first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from quietgrad.capture.call import Call, Output
from quietgrad.capture.layout import Layout, candidates, proven, scales

Key = tuple[str, int, int]
"""(unit, call, output): where a layout is remembered."""


@dataclass(eq=False)
class Arrival:
    """The gradient that arrived at one output of a call."""

    call: Call
    output: Output
    gradient: Tensor
    layout: Layout | None = None

    @property
    def key(self) -> Key:
        return (self.call.unit.name, self.call.index, self.output.position)

    def layouts(self, n: int) -> list[Layout]:
        dims = self.call.unit.adapter.sample_dims(self.call.unit.module, self.output.shape)
        return list(candidates(self.output.shape, n, dims))


class Backward:
    """Takes backwards and remembers how each output holds the samples."""

    def __init__(self) -> None:
        self._known: dict[Key, Layout | None] = {}

    def __call__(
        self, losses: Float[Tensor, " n"], calls: list[Call]
    ) -> Iterator[tuple[Call, list[Layout | None], list[Float[Tensor, "n ..."]]]]:
        """Each call that got gradients, narrowed to the outputs that did, with layouts and gradients."""
        outputs = [(call, output) for call in calls for output in call.outputs]
        n, familiar = len(losses), self._familiar(outputs, len(losses))
        plain = self._arrivals(losses, outputs, torch.ones_like(losses), keep=not familiar)
        if familiar:
            for arrival in plain:
                arrival.layout = self._known[arrival.key]
        else:
            self._probe(losses, plain)
        for call in calls:
            mine = [arrival for arrival in plain if arrival.call is call]
            if not mine:
                continue
            layouts = [arrival.layout for arrival in mine]
            if any(layout is None for layout in layouts):
                yield call.narrowed([a.output for a in mine]), [None] * len(mine), _one_by_one(losses, mine)
                continue
            yield call.narrowed([a.output for a in mine]), layouts, [_samples_first(a, n) for a in mine]

    def _arrivals(
        self, losses: Tensor, outputs: list[tuple[Call, Output]], cotangent: Tensor, *, keep: bool
    ) -> list[Arrival]:
        found = _gradients(losses, [output.edge for _, output in outputs], cotangent, keep=keep)
        return [
            Arrival(call, output, gradient.reshape(output.shape))
            for (call, output), gradient in zip(outputs, found, strict=True)
            if gradient is not None
        ]

    def _familiar(self, outputs: list[tuple[Call, Output]], n: int) -> bool:
        """Whether every layout is known and fits: then one backward is all."""
        for call, output in outputs:
            layout = self._known.get((call.unit.name, call.index, output.position))
            if layout is None or not layout.fits(output.shape, n):
                return False
        return True

    def _probe(self, losses: Float[Tensor, " n"], plain: list[Arrival]) -> None:
        """A second backward, sample i scaled by c_i, decides each layout."""
        n, factors = len(losses), scales(len(losses), losses)
        edges = [arrival.output.edge for arrival in plain]
        scaled = _gradients(losses, edges, factors, keep=True)
        for arrival, other in zip(plain, scaled, strict=True):
            assert other is not None
            possible = arrival.layouts(n)
            shaped = other.reshape(arrival.output.shape)
            valid = [layout for layout in possible if proven(arrival.gradient, shaped, factors, layout)]
            arrival.layout = valid[0] if valid else None
            # A batch of nothing but poisoned samples is dropped by the clip whatever its layout, and teaches nothing.
            if n > 1 and len(valid) == 1 and bool(arrival.gradient.isfinite().any()):
                self._known[arrival.key] = valid[0]
            if not valid and possible and not isinstance(arrival.call.unit.module, nn.Embedding):
                raise ValueError(_mixed(arrival.call))


def _gradients(
    losses: Tensor, edges: list[GradientEdge], cotangent: Tensor, *, keep: bool
) -> list[Tensor | None]:
    if not edges:
        return []
    return list(torch.autograd.grad(losses, edges, cotangent, retain_graph=keep, allow_unused=True))


def _samples_first(arrival: Arrival, n: int) -> Float[Tensor, "n ..."]:
    assert arrival.layout is not None
    return arrival.layout.samples_first(arrival.gradient, n)


def _one_by_one(losses: Float[Tensor, " n"], arrivals: list[Arrival]) -> list[Float[Tensor, "n ..."]]:
    """An output that all samples share (position embeddings `[1, t, d]`): one backward for each sample."""
    edges = [arrival.output.edge for arrival in arrivals]
    rows: list[list[Tensor]] = [[] for _ in edges]
    for chosen in torch.eye(len(losses), dtype=losses.dtype, device=losses.device):
        found = _gradients(losses, edges, chosen, keep=True)
        for row, arrival, gradient in zip(rows, arrivals, found, strict=True):
            full = torch.zeros_like(arrival.gradient) if gradient is None else gradient
            row.append(full.reshape(arrival.output.shape))
    return [torch.stack(row) for row in rows]


def _mixed(call: Call) -> str:
    return (
        f"The gradient at the output of module {call.place!r} does not split into samples: a later operation mixes the "
        "samples of the batch (a loss divided by a batch total, attention or normalisation across the batch). Check "
        "the model with quietgrad.check_independence(model, x)."
    )
