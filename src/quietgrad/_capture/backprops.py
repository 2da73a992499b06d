"""One backward: the gradient at every recorded output, attributed to samples.

The losses are a vector, and an ordinary backward of their sum mixes nothing as long as the forward does not: row i of
the gradient at an output `[n, …]` is that of loss i. What has to be found out is which entries of a gradient are
"row i", since a model may transpose, merge, mask or broadcast its batch. Three approaches are tried, cheapest first:

1. Graph analysis (`graph_analysis`) reads it off the operations between losses and output. Most models need no more,
   and their gradients are consumed during the backward (`consumption`). An output that all samples share (position
   embeddings) gets its gradient where it was broadcast (`broadcast`).
2. Probing (`probing`) runs further backwards of losses scaled by powers of two, and sees whose factor each entry has.
3. A backward per sample, where entries belong to several samples. Whether the samples share them or are mixed, which
   no gradient shows, is for the caller to decide (`Backward.unattributed`).

A record that is not a number must not change the rows of others. Graph analysis keeps them apart whatever the values
are. The other two approaches start again, by a backward per sample without such numbers (`finite`).

Everything is found anew for every batch. Nothing is remembered, so nothing can change after it was checked.

Checked by: tests/laws/test_law1_per_sample.py, tests/attacks/test_not_a_number_of_others.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from quietgrad._capture.broadcast import BroadcastConsumer, Consumers, gradient_before_broadcast
from quietgrad._capture.call import Call
from quietgrad._capture.consumption import Take, consume_during_backward, ready_outputs
from quietgrad._capture.finite import all_finite, finite_gradients
from quietgrad._capture.fsdp import is_fsdp
from quietgrad._capture.graph import Graph
from quietgrad._capture.graph_analysis import GraphAnalysis
from quietgrad._capture.layout import BatchAxis, BatchLayout, Layout, Placement, whole
from quietgrad._capture.output_gradients import (
    CallOutput,
    Key,
    OutputGradient,
    gradients_at,
    key_of,
    sample_dims,
)
from quietgrad._capture.probing import layout_of_rows, may_hold_samples, probe_layouts
from quietgrad._errors import PrivacyError

Verdict = Callable[[Exception | None], None]
"""Takes what speaks against a backward; raises it, or what another rank has to say."""


@dataclass
class Attribution:
    """The modules of the last batch, by how their gradients were attributed to samples."""

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
    """Run backwards, and report how each module's gradients were attributed to samples.

    Args:
        one_pass: called before each backward with what would take more than one of them, or None.
    """

    def __init__(self, one_pass: Verdict | None = None) -> None:
        self._one_pass = one_pass
        self.attribution = Attribution()
        self.unattributed: list[Call] = []
        """Calls of the last batch with entries that belong to several samples: they share them, or are mixed."""
        self.met_not_finite = False
        """Whether the last batch held a number that is not finite where graph analysis does not keep samples apart."""

    def __call__(self, losses: Float[Tensor, " n"], calls: list[Call], graph: Graph, take: Take) -> None:
        """Hand each call that got gradients to `take`, narrowed to the outputs that did, in no order."""
        n, self.attribution, self.unattributed = len(losses), Attribution(), []
        self.met_not_finite = False
        outputs = [
            (call, output) for call in calls for output in call.outputs if output.edge.node in graph.children
        ]
        # A single sample owns every entry, so there is nothing to analyse.
        analysis = GraphAnalysis(graph, n) if n > 1 else None
        layouts: dict[Key, BatchLayout] = {
            key_of((call, output)): BatchAxis.ABSENT
            if analysis is None
            else BatchAxis.UNKNOWN  # the sizes that autograd notes of nested tensors are not those of their rows
            if output.is_nested
            else analysis.layout_of(output.edge, output.shape)
            for call, output in outputs
        }
        # Outputs without a batch axis are not lost: if they were broadcast to the samples, the gradient at the
        # broadcast still has one slice for each sample.
        consumers = {} if analysis is None else _find_consumers(graph, analysis, outputs, layouts)
        # Where a layout is missing, more backwards follow. Otherwise autograd frees the graph as it goes.
        keep_graph = n > 1 and not all(
            _is_row(layouts[key_of(pair)], pair) or key_of(pair) in consumers for pair in outputs
        )
        if self._one_pass is not None:
            self._one_pass(_needs_more_passes(n, calls, outputs, layouts, consumers))
        ready = []
        if n > 1 and not keep_graph:
            # The engine is asked for gradients only at these nodes. One of them that others lie behind is passed on
            # the way, and can run a hook. One that nothing lies behind is an end, and its gradient is returned
            # instead.
            ends = {output.edge.node for call, output in outputs if key_of((call, output)) not in consumers}
            ends |= {consumer.edge.node for found in consumers.values() for consumer in found}
            ready = ready_outputs(losses, graph.onward(ends), outputs, layouts)
        self.attribution.by_graph_analysis.update(call.module_name for call, _, _ in ready)
        # What the analysis attributes for certain is used up in hooks while the backward runs. Its memory is free
        # before the next layer's gradient exists; only the rest is collected below.
        consumed = {key_of((call, output)) for call, output, _ in ready}
        with consume_during_backward(ready, n, take):
            remaining = [pair for pair in outputs if key_of(pair) not in consumed]
            gradients = _output_gradients(losses, remaining, consumers, keep_graph=keep_graph)
        # What remains is one of three: single samples, outputs whose layout the analysis left open, and outputs
        # without any batch axis. Probing names the owners in the second, a backward per sample splits the third.
        self._find_layouts(losses, gradients, layouts, graph)
        for call in calls:
            own = [gradient for gradient in gradients if gradient.call is call]
            if own:
                take(call.narrow_to([gradient.output for gradient in own]), *self._rows(losses, own, graph))

    def _find_layouts(
        self,
        losses: Float[Tensor, " n"],
        gradients: list[OutputGradient],
        layouts: dict[Key, BatchLayout],
        graph: Graph,
    ) -> None:
        """Give each gradient its layout, from graph analysis or by probing."""
        unknown = []
        for gradient in gradients:
            layout = layouts[gradient.key]
            if len(losses) == 1:
                gradient.layout = whole(gradient.output.shape) if gradient.sample_dims else None
            elif isinstance(layout, Layout):
                gradient.layout = layout if _is_row(layout, (gradient.call, gradient.output)) else None
            elif layout is BatchAxis.UNKNOWN and gradient.sample_dims:
                unknown.append(gradient)
            elif not gradient.is_per_sample and may_hold_samples(gradient, len(losses)):
                # No batch axis, but room for one. Learned queries look like that, as many as there are samples, and
                # so does the second factor of q·kᵀ. The graph proves neither.
                self.unattributed.append(gradient.call)
        if unknown:
            # Probing compares ratios of gradients, and NaN has none. A gradient that holds one is taken again, sample
            # by sample, so that a bad record cannot decide how the layouts of the others are found.
            # Inside a compiled function no number can be replaced on the way. There a sample whose gradient is not a
            # number says nothing, and the others confirm the layout.
            not_finite = [gradient for gradient in unknown if not all_finite([gradient.gradient])]
            self.met_not_finite |= bool(not_finite)
            broken = [gradient for gradient in not_finite if not gradient.call.is_compiled]
            sound = [gradient for gradient in unknown if gradient not in broken]
            self.unattributed += probe_layouts(losses, sound) if sound else []
            self.unattributed += _find_layouts_without(losses, broken, graph) if broken else []
            _refuse_compiled(unknown)
            self.attribution.by_probing.update(g.call.module_name for g in unknown if g.layout is not None)

    def _rows(
        self, losses: Float[Tensor, " n"], gradients: list[OutputGradient], graph: Graph
    ) -> tuple[list[Placement | None], list[Float[Tensor, "n ..."]]]:
        """Return the layouts and gradients of one call's outputs, samples first."""
        name = gradients[0].call.module_name
        # The outputs of one call go together: an adapter gets them all with samples first, or all with a row per
        # sample. So the slowest approach that one output needs is used for every output of the call.
        if all(gradient.layout is not None for gradient in gradients):
            self.attribution.by_graph_analysis.update({name} - self.attribution.by_probing)
            return [g.layout for g in gradients], [g.samples_first(len(losses)) for g in gradients]
        if all(gradient.is_per_sample for gradient in gradients):
            self.attribution.by_graph_analysis.add(name)
            return [None] * len(gradients), [gradient.gradient for gradient in gradients]
        self.attribution.by_sample.add(name)
        rows = _backward_per_sample(losses, gradients)
        # The one-hot backward of sample i multiplies the paths of others by zero, and zero times their NaN is NaN.
        if len(losses) > 1 and not all_finite(rows):
            self.met_not_finite = True
            with finite_gradients(graph.order):
                rows = _backward_per_sample(losses, gradients)
        return [None] * len(gradients), rows


def _needs_more_passes(
    n: int,
    calls: list[Call],
    outputs: list[CallOutput],
    layouts: dict[Key, BatchLayout],
    consumers: dict[Key, list[BroadcastConsumer]],
) -> Exception | None:
    """Return why one backward is not enough, or why parameters are read after it; None if neither is so."""
    for call in calls:
        if call.unit.adapter.reads_parameters or isinstance(call.unit.module, nn.RNNBase):
            return ValueError(
                f"Module {call.module_name!r} ({type(call.unit.module).__name__}) has no per-sample gradients under "
                "fully_shard: its parameters would be read after the backward, when they are sharded again. Build it "
                "of linear, convolution, embedding and norm layers that are called, freeze it, or use AllReduce()."
            )
    for pair in outputs if n > 1 else ():
        if key_of(pair) in consumers and is_fsdp(pair[0].unit.module):
            # The gradient goes back through FSDP's hooks at another time than for a single sample.
            return ValueError(
                f"All samples share the output of module {pair[0].module_name!r}, to which fully_shard was applied. "
                "Apply it to a module around that one instead."
            )
        if not _is_row(layouts[key_of(pair)], pair) and key_of(pair) not in consumers:
            return ValueError(
                f"The graph does not say which sample owns which gradient at the output of module "
                f"{pair[0].module_name!r}, and probing would take more backwards, which ranks under fully_shard must "
                "all run alike. Keep the batch first in its output and in what follows, or use AllReduce()."
            )
    return None


def _refuse_compiled(gradients: list[OutputGradient]) -> None:
    """Refuse layers of a compiled function that give several samples one output.

    A backward per sample would multiply what is not a number by zero, inside a function that cannot be looked into, and
    so drop the rows of all samples for the sake of one.
    """
    shared = next((g for g in gradients if g.call.is_compiled and g.layout is None), None)
    if shared is not None:
        raise ValueError(
            f"Module {shared.call.module_name!r} in the compiled model has an output that belongs to several samples. "
            "If it is shared, like position embeddings, give every sample its own (positions.expand(n, -1)). If later "
            "operations mix samples, the model cannot be private. Without compile=… the first is allowed."
        )


def _is_row(layout: BatchLayout, pair: CallOutput) -> bool:
    """Ask whether each sample has positions of its own; with samples among the features, all share every position."""
    return isinstance(layout, Layout) and layout.dim < sample_dims(pair)


def _find_consumers(
    graph: Graph, analysis: GraphAnalysis, outputs: list[CallOutput], layouts: dict[Key, BatchLayout]
) -> dict[Key, list[BroadcastConsumer]]:
    """Find where outputs without a batch axis were broadcast to all samples, as far as the graph tells."""
    # Consumers are followed for calls with one output only. The gradients of several would have to come from one
    # backward.
    shared = [
        pair for pair in outputs if layouts[key_of(pair)] is BatchAxis.ABSENT and len(pair[0].outputs) == 1
    ]
    if not shared:
        return {}
    consumers = Consumers(graph)
    found = {key_of(pair): consumers.of(pair[1].edge, analysis) for pair in shared}
    return {key: consumers for key, consumers in found.items() if consumers}


def _output_gradients(
    losses: Float[Tensor, " n"],
    outputs: list[CallOutput],
    consumers: dict[Key, list[BroadcastConsumer]],
    *,
    keep_graph: bool,
) -> list[OutputGradient]:
    """Run one backward to all outputs; those that were broadcast get their gradients sample by sample.

    Of a broadcast output the gradient is asked for at its consumers and not behind them, so that autograd keeps the
    graph there: `gradient_before_broadcast` goes back through it.
    """
    plain = [pair for pair in outputs if key_of(pair) not in consumers]
    edges = [output.edge for _, output in plain]
    # The order matters: the gradients come back in the order of the edges, and are read one after the other below.
    edges += [consumer.edge for found in consumers.values() for consumer in found]
    arrived = iter(gradients_at(losses, edges, torch.ones_like(losses), keep_graph=keep_graph))
    gradients = [
        OutputGradient(call, output, gradient.reshape(output.shape))
        for (call, output), gradient in zip(plain, arrived, strict=False)
        if gradient is not None
    ]
    for call, output in (pair for pair in outputs if key_of(pair) in consumers):
        own = consumers[key_of((call, output))]
        rows = gradient_before_broadcast([next(arrived) for _ in own], own, output.edge, len(losses))
        if rows is not None:
            rows = rows.reshape(len(losses), *output.shape)
            gradients.append(OutputGradient(call, output, rows, is_per_sample=True))
    return gradients


def _backward_per_sample(
    losses: Float[Tensor, " n"], gradients: list[OutputGradient]
) -> list[Float[Tensor, "n ..."]]:
    """Run one backward for each sample: always right, and n times as slow."""
    if len(losses) == 1:
        return [gradient.gradient.unsqueeze(0) for gradient in gradients]
    edges = [gradient.output.edge for gradient in gradients]
    rows: list[list[Tensor]] = [[] for _ in edges]
    for one_hot in torch.eye(len(losses), dtype=losses.dtype, device=losses.device):
        arrived = gradients_at(losses, edges, one_hot, keep_graph=True)
        for row, gradient, found in zip(rows, gradients, arrived, strict=True):
            # No gradient means that this sample does not use the output; its row is zero, and must still be there.
            full = torch.zeros_like(gradient.gradient) if found is None else found
            row.append(full.reshape(gradient.output.shape))
    return [torch.stack(row) for row in rows]


def _find_layouts_without(
    losses: Float[Tensor, " n"], gradients: list[OutputGradient], graph: Graph
) -> list[Call]:
    """Take gradients that are not finite again, sample by sample, and set the layouts of those that split.

    Returns:
        the calls in which some position belongs to several samples, as `probe_layouts` does.
    """
    with finite_gradients(graph.order):
        found = _backward_per_sample(losses, gradients)
    for gradient, rows in zip(gradients, found, strict=True):
        gradient.layout = layout_of_rows(rows, gradient.sample_dims)
        if gradient.layout is not None:
            # One sample's number and zeros, which is exact; in memory as it was, so that nothing rounds otherwise.
            gradient.gradient = torch.empty_like(gradient.gradient).copy_(rows.sum(0))
    return [g.call for g in gradients if g.layout is None and may_hold_samples(g, len(losses))]


def mixing_error(module_name: str) -> PrivacyError:
    """Name the module whose gradient entries belong to several samples each."""
    return PrivacyError(
        f"The gradient at the output of module {module_name!r} does not split into samples: a later operation "
        "mixes the samples of the batch (a loss divided by a batch total, attention or normalisation across the "
        "batch). Check it with private.check_independence(losses_of, dataset, collate_fn)."
    )
