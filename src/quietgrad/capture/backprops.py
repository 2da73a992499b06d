"""One activation-only backward: the gradient at every recorded output, samples first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from quietgrad.capture.call import Call, Output
from quietgrad.capture.coverage import Graph
from quietgrad.capture.layout import Layout, candidates, proven, scales
from quietgrad.capture.spread import Consumers, Spread, reduced
from quietgrad.gradients.packing import packed

Key = tuple[str, int, int]
"""(unit, call, output): where a layout is remembered."""
CallOutput = tuple[Call, Output]

PROBED_AT_ONCE = 1 << 24
"""Bytes of gradients that may always be probed together: 16 MB are small beside any model that needs splitting."""
MOST_PROBES = 6
"""Parts that a larger probe is split into. Each part costs two backwards; six of them hold a third of what one would
(two gradients of each output of the part), which is below the peak of the step itself."""


@dataclass(eq=False)
class Arrival:
    """The gradient that arrived at one output of a call."""

    call: Call
    output: Output
    gradient: Tensor
    layout: Layout | None = None

    @property
    def key(self) -> Key:
        return key_of(self.call, self.output)

    def layouts(self, n: int) -> list[Layout]:
        dims = self.call.unit.adapter.sample_dims(self.call.unit.module, self.output.shape)
        return list(candidates(self.output.shape, n, dims))


def key_of(call: Call, output: Output) -> Key:
    return (call.unit.name, call.index, output.position)


class Backward:
    """Takes backwards and remembers how each output holds the samples."""

    def __init__(self) -> None:
        self._known: dict[Key, Layout] = {}
        self._spreads: dict[Key, Spread] = {}

    def __call__(
        self, losses: Float[Tensor, " n"], calls: list[Call], graph: Graph
    ) -> Iterator[tuple[Call, list[Layout | None], list[Float[Tensor, "n ..."]]]]:
        """Each call that got gradients, narrowed to the outputs that did, with layouts and gradients."""
        outputs = [(call, output) for call in calls for output in call.outputs]
        n = len(losses)
        consumers = Consumers(graph) if self._spreads or not self._familiar(outputs, n) else None
        places = self._remembered(outputs, consumers, n)
        alone = [pair for pair in outputs if key_of(*pair) not in places]
        layouts = self._layouts(losses, alone)
        # Where a layout is missing, more backwards follow; else the graph may go while this one is taken.
        plain, spread = self._arrivals(losses, outputs, places, keep=None in layouts.values())
        for arrival in plain:
            arrival.layout = layouts.get(arrival.key)
        shared = [a for a in plain if a.layout is None and a.key not in places]
        if shared:
            assert consumers is not None
            spread |= self._search(losses, shared, consumers)
        for call in calls:
            mine = [arrival for arrival in plain if arrival.call is call]
            if not mine:
                continue
            narrowed = call.narrowed([a.output for a in mine])
            if all(arrival.layout is not None for arrival in mine):
                yield narrowed, [a.layout for a in mine], [_samples_first(a, n) for a in mine]
            elif len(mine) == 1 and mine[0].key in spread:
                yield narrowed, [None], [spread[mine[0].key]]
            else:
                yield narrowed, [None] * len(mine), _one_by_one(losses, mine)

    def _remembered(
        self, outputs: list[CallOutput], consumers: Consumers | None, n: int
    ) -> dict[Key, list[tuple[GradientEdge, Layout]]]:
        """Where the gradients of shared outputs are taken this time, as far as that is known."""
        found: dict[Key, list[tuple[GradientEdge, Layout]]] = {}
        for call, output in outputs:
            known = self._spreads.get(key_of(call, output))
            if known is None or consumers is None or n == 1:
                continue
            ends = [(consumers.follow(output.edge, path), layout) for path, layout in known.places]
            if all(edge is not None for edge, _ in ends):
                found[key_of(call, output)] = [(edge, layout) for edge, layout in ends if edge is not None]
        return found

    def _search(
        self, losses: Float[Tensor, " n"], shared: list[Arrival], consumers: Consumers
    ) -> dict[Key, Float[Tensor, "n ..."]]:
        """Find, once, where the gradient of each shared output splits into samples."""
        n, found = len(losses), {}
        factors = scales(n, losses)
        for arrival in shared:
            for front in consumers.fronts(arrival.output.edge):
                edges = [edge for _, edge in front]
                plain = _gradients(losses, edges, torch.ones_like(losses), keep=True)
                scaled = _gradients(losses, edges, factors, keep=True)
                layouts = [_layout(a, b, factors) for a, b in zip(plain, scaled, strict=True)]
                if all(layout is not None for layout in layouts):
                    ends = [
                        (path, layout) for (path, _), layout in zip(front, layouts, strict=True) if layout
                    ]
                    self._spreads[arrival.key] = Spread(tuple(ends))
                    found[arrival.key] = _together(
                        plain, [layout for _, layout in ends], arrival.output.shape, n
                    )
                    break
        return found

    def _arrivals(
        self,
        losses: Float[Tensor, " n"],
        outputs: list[CallOutput],
        places: dict[Key, list[tuple[GradientEdge, Layout]]],
        *,
        keep: bool,
    ) -> tuple[list[Arrival], dict[Key, Float[Tensor, "n ..."]]]:
        """One backward: the gradients at all outputs, and those of the shared ones sample by sample."""
        edges = [output.edge for _, output in outputs]
        behind = [edge for ends in places.values() for edge, _ in ends]
        found = iter(_gradients(losses, edges + behind, torch.ones_like(losses), keep=keep))
        arrivals = [
            Arrival(call, output, gradient.reshape(output.shape))
            for (call, output), gradient in zip(outputs, found, strict=False)
            if gradient is not None
        ]
        shapes = {key_of(call, output): output.shape for call, output in outputs}
        spread = {}
        for key, ends in places.items():
            gradients = [next(found) for _ in ends]
            spread[key] = _together(gradients, [layout for _, layout in ends], shapes[key], len(losses))
        return arrivals, spread

    def _familiar(self, outputs: list[CallOutput], n: int) -> bool:
        """Whether every layout is known and fits: then one backward is all."""
        for call, output in outputs:
            layout = self._known.get(key_of(call, output))
            if layout is None or not layout.fits(output.shape, n):
                return False
        return True

    def _layouts(self, losses: Float[Tensor, " n"], outputs: list[CallOutput]) -> dict[Key, Layout | None]:
        """How each output that gets a gradient holds the samples; None where they share it."""
        if self._familiar(outputs, len(losses)):
            return {key_of(*pair): self._known[key_of(*pair)] for pair in outputs}
        factors, layouts = scales(len(losses), losses), {}
        for group in _probed_together(outputs):
            edges = [output.edge for _, output in group]
            plain = _gradients(losses, edges, torch.ones_like(losses), keep=True)
            scaled = _gradients(losses, edges, factors, keep=True)
            for (call, output), gradient, other in zip(group, plain, scaled, strict=True):
                if gradient is not None and other is not None:
                    arrival = Arrival(call, output, gradient.reshape(output.shape))
                    layouts[arrival.key] = self._probe(arrival, other.reshape(output.shape), factors)
        return layouts

    def _probe(self, arrival: Arrival, scaled: Tensor, factors: Float[Tensor, " n"]) -> Layout | None:
        """The gradient under losses scaled by c_i decides the layout."""
        n = len(factors)
        possible = arrival.layouts(n)
        valid = [layout for layout in possible if proven(arrival.gradient, scaled, factors, layout)]
        # A batch of nothing but poisoned samples is dropped by the clip whatever its layout, and teaches nothing.
        if n > 1 and len(valid) == 1 and bool(arrival.gradient.isfinite().any()):
            self._known[arrival.key] = valid[0]
        if not valid and possible and not isinstance(arrival.call.unit.module, nn.Embedding):
            raise ValueError(_mixed(arrival.call))
        return valid[0] if valid else None


def _probed_together(outputs: list[CallOutput]) -> Iterator[list[CallOutput]]:
    """A few at a time: all gradients of a probe at once would be the peak of the whole training's memory."""

    def size(pair: CallOutput) -> int:
        return 4 * pair[1].shape.numel()

    return packed(outputs, size, max(PROBED_AT_ONCE, sum(map(size, outputs)) // MOST_PROBES))


def _gradients(
    losses: Tensor, edges: list[GradientEdge], cotangent: Tensor, *, keep: bool
) -> list[Tensor | None]:
    if not edges:
        return []
    return list(torch.autograd.grad(losses, edges, cotangent, retain_graph=keep, allow_unused=True))


def _layout(plain: Tensor | None, scaled: Tensor | None, factors: Float[Tensor, " n"]) -> Layout | None:
    """The one layout that the probe leaves, or None."""
    if plain is None or scaled is None:
        return None
    possible = candidates(plain.shape, len(factors), plain.dim())
    valid = [layout for layout in possible if proven(plain, scaled, factors, layout)]
    return valid[0] if len(valid) == 1 else None


def _together(
    gradients: list[Tensor | None], layouts: list[Layout], shape: torch.Size, n: int
) -> Float[Tensor, "n ..."]:
    parts = [
        reduced(layout.samples_first(gradient, n), shape)
        for gradient, layout in zip(gradients, layouts, strict=True)
        if gradient is not None
    ]
    return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]


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
