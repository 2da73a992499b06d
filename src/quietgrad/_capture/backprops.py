"""One activation-only backward: the gradient at every recorded output, samples first.

Where the graph has proved where the samples lie, a gradient is handed over while the backward is at it, and may go
before the next one comes: a step that held them all would need more memory, and time to get it from the system.

Where the samples lie is proved for every batch anew: by the graph (`flow`) where its operations keep them apart, else
by numbers (`owners`). Nothing is remembered, so nothing can change after it was proved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from quietgrad._capture.broadcast import Consumers, End, together
from quietgrad._capture.call import Call, Output
from quietgrad._capture.graph import Flow, Graph
from quietgrad._capture.layout import BatchAxis, BatchLayout, Layout, Placement, candidates, whole
from quietgrad._capture.probing import Code, Probe, matches_layout
from quietgrad._errors import PrivacyError
from quietgrad._gradients.blocks import packed

Key = tuple[int, int]
"""(serial number of the call, position of the output)."""
CallOutput = tuple[Call, Output]
ReadyOutput = tuple[Call, Output, Layout]
"""An output whose gradient is taken while the backward is at it."""
Take = Callable[[Call, list[Placement | None], list[Tensor]], None]
"""Gets each call with the placements and gradients of its outputs."""

PROBED_AT_ONCE = 1 << 24
"""Bytes of gradients that may always be probed together: 16 MB are small beside any model that needs splitting."""
MOST_PROBES = 6
"""Parts that a larger probe is split into. Each part is a backward of its own, and six of them hold a sixth of the
second gradients at a time: that is below the peak of the step itself."""


@dataclass(eq=False)
class OutputGradient:
    """The gradient that arrived at one output of a call, and where the samples lie in it (None: all share it).

    Args:
        apart: whether it holds that of each sample already, one after the other.
    """

    call: Call
    output: Output
    gradient: Tensor
    placement: Placement | None = None
    apart: bool = False

    @property
    def key(self) -> Key:
        return (self.call.serial, self.output.position)

    @property
    def dims(self) -> int:
        return _dims(self.call, self.output)


@dataclass
class Attribution:
    """The modules whose samples were told apart in the last batch: by the graph, by numbers, by a backward for each."""

    by_graph_analysis: set[str] = field(default_factory=set)
    by_probing: set[str] = field(default_factory=set)
    by_sample: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        """How many modules graph analysis covers, and the names of the others."""
        parts = [
            f"by graph analysis in {len(self.by_graph_analysis)} modules" if self.by_graph_analysis else "",
            f"by probing in {', '.join(sorted(self.by_probing))}" if self.by_probing else "",
            f"by per-sample backward in {', '.join(sorted(self.by_sample))}" if self.by_sample else "",
        ]
        found = "; ".join(part for part in parts if part)
        return f"gradients attributed {found}" if found else "no gradients yet"


class Backward:
    """Takes backwards, and says how each module's samples were told apart."""

    def __init__(self) -> None:
        self.attribution = Attribution()
        self.unattributed: list[Call] = []
        """Calls of the last batch whose gradients belong to several samples each: all share them, or they are mixed."""

    def __call__(self, losses: Float[Tensor, " n"], calls: list[Call], graph: Graph, take: Take) -> None:
        """Hand each call that got gradients to `take`, narrowed to the outputs that did, in no order."""
        n, self.attribution, self.unattributed = len(losses), Attribution(), []
        outputs = [
            (call, output) for call in calls for output in call.outputs if output.edge.node in graph.children
        ]
        flow = Flow(graph, n) if n > 1 else None
        states: dict[Key, BatchLayout] = {
            _key((call, output)): BatchAxis.ABSENT
            if flow is None
            else flow.layout_of(output.edge, output.shape)
            for call, output in outputs
        }
        spread = {} if flow is None else _spreads(graph, flow, outputs, states)
        # Where placements are missing, more backwards follow; else the graph may go while this one is taken.
        keep = n > 1 and not all(isinstance(state, Layout) or key in spread for key, state in states.items())
        asked = {output.edge.node for call, output in outputs if _key((call, output)) not in spread}
        asked |= {end.edge.node for ends in spread.values() for end in ends}
        passing = [] if keep or n == 1 else _passing(losses, graph.onward(asked), outputs, states)
        self.attribution.by_graph_analysis.update(call.module_name for call, _, _ in passing)
        early = {_key((call, output)) for call, output, _ in passing}
        with _on_the_way(passing, n, take):
            left = [pair for pair in outputs if _key(pair) not in early]
            arrivals = _arrivals(losses, left, spread, keep=keep)
        self._place(losses, arrivals, states)
        for call in calls:
            mine = [arrival for arrival in arrivals if arrival.call is call]
            if mine:
                take(call.narrowed([a.output for a in mine]), *self._rows(losses, mine))

    def _place(
        self, losses: Float[Tensor, " n"], arrivals: list[OutputGradient], states: dict[Key, BatchLayout]
    ) -> None:
        """Where the samples lie in each gradient: from the graph, or proved by numbers."""
        doubtful = []
        for arrival in arrivals:
            state = states[arrival.key]
            if len(losses) == 1:
                arrival.placement = whole(arrival.output.shape) if arrival.dims else None
            elif isinstance(state, Layout):
                # Samples among the features: every position holds all of them.
                arrival.placement = state if state.dim < arrival.dims else None
            elif state is BatchAxis.UNKNOWN and arrival.dims:
                doubtful.append(arrival)
        if doubtful:
            self.unattributed = _prove(losses, doubtful)
            self.attribution.by_probing.update(
                a.call.module_name for a in doubtful if a.placement is not None
            )

    def _rows(
        self, losses: Float[Tensor, " n"], arrivals: list[OutputGradient]
    ) -> tuple[list[Placement | None], list[Float[Tensor, "n ..."]]]:
        """Placements and gradients of one call."""
        place = arrivals[0].call.module_name
        if all(arrival.placement is not None for arrival in arrivals):
            self.attribution.by_graph_analysis.update({place} - self.attribution.by_probing)
            return [a.placement for a in arrivals], [_samples_first(a, len(losses)) for a in arrivals]
        if all(arrival.apart for arrival in arrivals):
            self.attribution.by_graph_analysis.add(place)
            return [None] * len(arrivals), [arrival.gradient for arrival in arrivals]
        self.attribution.by_sample.add(place)
        return [None] * len(arrivals), _by_sample(losses, arrivals)


def _key(pair: CallOutput) -> Key:
    return (pair[0].serial, pair[1].position)


def _passing(
    losses: Tensor, onward: set[Node], outputs: list[CallOutput], states: dict[Key, BatchLayout]
) -> list[ReadyOutput]:
    """Outputs whose gradients can be taken on the way: the graph has told where their samples lie, and the backward
    goes on from there (`onward`). Where it ends, the engine hands a gradient over and runs no hooks."""
    if losses.device.type != "cpu":
        return []  # hooks of other devices run in threads of their own
    return [
        (call, output, state)
        for call, output in outputs
        if isinstance(state := states[_key((call, output))], Layout)
        and state.dim < _dims(call, output)
        and len(call.outputs) == 1
        and not call.unit.adapter.replays
        and output.edge.node in onward
    ]


@contextlib.contextmanager
def _on_the_way(passing: list[ReadyOutput], n: int, take: Take) -> Iterator[None]:
    """Hooks on the nodes that these gradients arrive at, for one backward."""
    waiting: dict[Node, list[ReadyOutput]] = {}
    for one in passing:
        waiting.setdefault(one[1].edge.node, []).append(one)

    def hook(node: Node) -> Callable[[tuple[Tensor | None, ...]], None]:
        def arrived(gradients: tuple[Tensor | None, ...]) -> None:
            for call, output, layout in waiting.pop(node):
                gradient = gradients[output.edge.output_nr]
                if gradient is not None:
                    take(call, [layout], [layout.samples_first(gradient.reshape(output.shape), n)])

        return arrived

    handles = [node.register_prehook(hook(node)) for node in waiting]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    assert not waiting, "the backward passed by a gradient"


def _dims(call: Call, output: Output) -> int:
    """Leading dimensions of an output that may hold the samples."""
    return call.unit.adapter.sample_dims(call.unit.module, output.shape)


def _spreads(
    graph: Graph, flow: Flow, outputs: list[CallOutput], states: dict[Key, BatchLayout]
) -> dict[Key, list[End]]:
    """Where the gradients of shared outputs are taken, as far as the graph tells."""
    shared = [
        pair for pair in outputs if states[_key(pair)] is BatchAxis.ABSENT and len(pair[0].outputs) == 1
    ]
    if not shared:
        return {}
    consumers = Consumers(graph)
    found = {_key(pair): consumers.ends(pair[1].edge, flow) for pair in shared}
    return {key: ends for key, ends in found.items() if ends}


def _arrivals(
    losses: Float[Tensor, " n"], outputs: list[CallOutput], spread: dict[Key, list[End]], *, keep: bool
) -> list[OutputGradient]:
    """One backward: the gradients at all outputs, and those of the shared ones sample by sample.

    Before the places where a shared one was broadcast nothing is asked for, so that the graph there stays.
    """
    apart = [pair for pair in outputs if _key(pair) not in spread]
    edges = [output.edge for _, output in apart]
    behind = [end.edge for ends in spread.values() for end in ends]
    found = iter(_gradients(losses, edges + behind, torch.ones_like(losses), keep=keep))
    arrivals = [
        OutputGradient(call, output, gradient.reshape(output.shape))
        for (call, output), gradient in zip(apart, found, strict=False)
        if gradient is not None
    ]
    for pair in (pair for pair in outputs if _key(pair) in spread):
        ends, (call, output) = spread[_key(pair)], pair
        rows = together([next(found) for _ in ends], ends, output.edge, len(losses))
        if rows is not None:
            arrivals.append(
                OutputGradient(call, output, rows.reshape(len(losses), *output.shape), apart=True)
            )
    return arrivals


def _prove(losses: Float[Tensor, " n"], arrivals: list[OutputGradient]) -> list[Call]:
    """Place the samples by what happens to each gradient when the losses are multiplied by powers of two.

    Returns the calls of which some position belongs to several samples, though samples would fit there.
    """
    unattributed: list[Call] = []
    half = any(arrival.gradient.dtype == torch.float16 for arrival in arrivals)
    code = Code(len(losses), half=half)
    for group in _probed_together(arrivals):
        first = _scaled(losses, group, code, 0)
        for arrival, scaled in zip(group, first, strict=True):
            possible = candidates(arrival.output.shape, code.n, arrival.dims)
            exponents = code.exponents(0)
            arrival.placement = next(
                (lay for lay in possible if matches_layout(arrival.gradient, scaled, exponents, lay)), None
            )
        left = [(a, scaled) for a, scaled in zip(group, first, strict=True) if a.placement is None]
        if left:
            unattributed += _find_owners(losses, code, *map(list, zip(*left, strict=True)))
    return unattributed


def _find_owners(
    losses: Float[Tensor, " n"], code: Code, arrivals: list[OutputGradient], first: list[Tensor]
) -> list[Call]:
    """The owner of each position, where they lie in no regular way; the calls in which some have several."""
    turns = [first, *[_scaled(losses, arrivals, code, turn) for turn in range(1, code.rounds)]]
    for place, arrival in enumerate(arrivals):
        probe = Probe(arrival.gradient, [turn[place] for turn in turns], arrival.dims)
        arrival.placement = probe.owners(code)
    return [
        a.call for a in arrivals if a.placement is None and any(candidates(a.output.shape, code.n, a.dims))
    ]


def _scaled(losses: Tensor, arrivals: list[OutputGradient], code: Code, turn: int) -> list[Tensor]:
    found = _gradients(losses, [a.output.edge for a in arrivals], code.factors(turn, losses), keep=True)
    return [
        torch.zeros_like(a.gradient) if g is None else g.reshape(a.output.shape)
        for a, g in zip(arrivals, found, strict=True)
    ]


def _probed_together(arrivals: list[OutputGradient]) -> Iterator[list[OutputGradient]]:
    """A few at a time: all gradients of a probe at once would be the peak of the whole training's memory."""

    def size(arrival: OutputGradient) -> int:
        return arrival.gradient.numel() * arrival.gradient.element_size()

    return packed(arrivals, size, max(PROBED_AT_ONCE, sum(map(size, arrivals)) // MOST_PROBES))


def _gradients(
    losses: Tensor, edges: list[GradientEdge], cotangent: Tensor, *, keep: bool
) -> list[Tensor | None]:
    if not edges:
        return []
    return list(torch.autograd.grad(losses, edges, cotangent, retain_graph=keep, allow_unused=True))


def _samples_first(arrival: OutputGradient, n: int) -> Float[Tensor, "n ..."]:
    assert arrival.placement is not None
    return arrival.placement.samples_first(arrival.gradient, n)


def _by_sample(losses: Float[Tensor, " n"], arrivals: list[OutputGradient]) -> list[Float[Tensor, "n ..."]]:
    """An output that all samples share (position embeddings `[1, t, d]`): one backward for each sample."""
    if len(losses) == 1:
        return [arrival.gradient.unsqueeze(0) for arrival in arrivals]
    edges = [arrival.output.edge for arrival in arrivals]
    rows: list[list[Tensor]] = [[] for _ in edges]
    for chosen in torch.eye(len(losses), dtype=losses.dtype, device=losses.device):
        found = _gradients(losses, edges, chosen, keep=True)
        for row, arrival, gradient in zip(rows, arrivals, found, strict=True):
            full = torch.zeros_like(arrival.gradient) if gradient is None else gradient
            row.append(full.reshape(arrival.output.shape))
    return [torch.stack(row) for row in rows]


def mixing_error(call: Call) -> PrivacyError:
    """Name the module whose gradient entries belong to several samples each."""
    return PrivacyError(
        f"The gradient at the output of module {call.module_name!r} does not split into samples: a later operation "
        "mixes the samples of the batch (a loss divided by a batch total, attention or normalisation across the "
        "batch). Check the model with quietgrad.check_independence(model, x)."
    )


def user_function_error(call: Call, function: str) -> PrivacyError:
    """Name the user's autograd function that may have mixed the samples of a module's gradient."""
    return PrivacyError(
        f"The gradient at the output of module {call.module_name!r} does not split into samples, and whether "
        f"{function}, a torch.autograd.Function of your own, hands gradients from one sample to another cannot be "
        "tested. Write its backward sample by sample, use torch's own operations, or freeze the module."
    )
