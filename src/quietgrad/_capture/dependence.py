"""Does a loss depend on other records? Asked by replacing some of them and computing everything again.

Gradients do not show what was detached, counted or sorted. In the first micro-batches, at random ones later and after
the graph had a shape not seen before, half of the records are replaced, by copies of the others or by made-up ones: the
losses of the other half must stay what they were.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from quietgrad._capture.graph import Graph
from quietgrad._capture.trace import ARITHMETIC, Entry, Rerun, Trace, is_size, tensors

ALWAYS = 3
"""Micro-batches at the beginning that are all probed."""
THOROUGH = 4
"""Rounds of the first probe; later ones have one. What shows only now and then (a capacity, a maximum) needs more."""
ONE_IN = 96
"""Later ones are probed with this chance, with one half of the records replaced: one forward, which is a quarter to a
half of a private step, so that a third to half a percent is added."""

Replacement = Callable[[Tensor, Tensor], Tensor]
Shape = frozenset[tuple[str, tuple[str, ...]]]
"""Which kinds of operations follow which in a graph."""


class Dependence:
    """Decides when to probe, and refuses losses that depend on other records.

    Args:
        quiet: a context in which the model's calls are not recorded.
    """

    def __init__(self, quiet: Callable[[], AbstractContextManager[None]]) -> None:
        self._quiet = quiet
        self._trace: Trace | None = None
        self._probed = 0
        self._due = True
        self._seen: set[Shape] = set()
        self._sizes: dict[int, set[int]] = {}
        self.unproved: str | None = None

    def __str__(self) -> str:
        """What was proved so far."""
        if self.unproved:
            return f"not tested by replacing records: {self.unproved}"
        if not self._probed:
            return "not tested yet by replacing records"
        return f"no loss moved when others' records were replaced, in {self._probed} micro-batches"

    # ---- what happens to a micro-batch ----------------------------------------------------------------------

    def begin(self, rows: Any, n: int) -> None:
        """A micro-batch is handed out: note what becomes of it, if it is to be probed."""
        self.end()
        if self._due and n > 0:
            self._note(rows, n)

    def _note(self, rows: Any, n: int) -> None:
        self._trace = Trace(rows, n)
        self._trace.open()

    def enter_model(self, args: Any, kwargs: Any) -> None:
        """The model is called; with nothing known of the micro-batch, its arguments are the records."""
        if self._trace is None and self._due and torch.is_grad_enabled():  # an evaluation leads to no losses
            self._note((args, kwargs), 0)
        if self._trace is not None:
            self._trace.pause()

    def leave_model(self, model: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        if self._trace is not None:
            self._trace.resume(Entry(model, args, kwargs, tensors(result), "model"))

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Something that is no part of it happens in between."""
        trace = self._trace
        if trace is not None:
            trace.pause()
        try:
            yield
        finally:
            if trace is not None:
                trace.resume()

    def close(self) -> None:
        """The losses are there: nothing more is noted."""
        if self._trace is not None:
            self._trace.close()

    def end(self) -> None:
        """Forget the micro-batch."""
        self.close()
        self._trace = None

    # ---- the proof ------------------------------------------------------------------------------------------

    def check(self, losses: Tensor, graph: Graph, *, again: bool) -> bool:
        """Refuse losses of which one depends on another record; whether that was tested in this micro-batch.

        Args:
            again: whether the next micro-batch must be tested too; others are chosen at random.
        """
        trace = self._trace
        self.end()
        shape = _shape(graph)
        new = shape not in self._seen
        if trace is not None:
            self._seen.add(shape)
            self._probed += 1
            self.unproved = self._judge(trace, losses)
        draw = secrets.randbelow(ONE_IN) == 0
        self._due = again or draw or self._probed < ALWAYS or (new and trace is None)
        return trace is not None and self.unproved is None

    def _judge(self, trace: Trace, losses: Tensor) -> str | None:
        """Raise if the losses depend on other records; else why nothing could be proved, or None."""
        # A micro-batch has a slice for each record; the model may be given one for each view.
        views = losses.shape[1] if losses.dim() == 2 and not trace.n else 1
        if trace.broken or not trace.records(len(losses) * views):
            return trace.broken or "the micro-batch holds no tensors with one slice for each record"
        self._compare_sizes(trace)
        with self._quiet():
            for moved, replace in self._changes(len(losses)):
                found = self._rerun(trace, losses, moved, replace)
                if found is None and replace is altered:  # made-up records may be no records at all
                    found = self._rerun(trace, losses, moved, copied)
                if found is None:
                    return "what leads from the micro-batch to the losses cannot be run again"
                if not _unmoved(losses, found, ~moved):
                    again = self._rerun(trace, losses, None, copied)
                    if again is None or not _unmoved(losses, again, torch.ones_like(moved)):
                        return "the forward gives other losses when it is run again on the same records"
                    if trace.unclear(len(losses) * views):
                        return "it is not clear which dimension of the model's inputs holds the records"
                    raise ValueError(MIXED)
        return None

    def _changes(self, n: int) -> Iterator[tuple[Bool[Tensor, " n"], Replacement]]:
        """Fewer, the more probes went well."""
        if self._probed > ALWAYS:
            return itertools.islice(_rounds(n, 2), secrets.randbelow(4 if n > 1 else 2), None, 4)
        return _rounds(n, THOROUGH if self._probed == 1 else 1)

    def _rerun(
        self, trace: Trace, losses: Tensor, moved: Bool[Tensor, " n"] | None, replace: Replacement
    ) -> Tensor | None:
        """The losses with some records replaced and the batch counted one larger; as they were if none is moved."""
        replaced = {}
        if moved is not None:
            rows = moved.repeat_interleave(losses.shape[1]) if losses.dim() == 2 and not trace.n else moved
            for x, dim in trace.records(len(rows)):
                replaced[id(x)] = replace(x.detach().movedim(dim, 0), rows.to(x.device)).movedim(0, dim)
        try:
            return Rerun(trace, replaced, counts=moved is not None).result(losses)
        except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AssertionError):
            return None

    def _compare_sizes(self, trace: Trace) -> None:
        """Numbers that were the size of another batch then, and are that of this one now, are no constants."""
        now = {
            place
            for place, entry in enumerate(trace.entries)
            if entry.name in ARITHMETIC and any(is_size(number, trace.n) for number in entry.args[1:])
        }
        if any(now & places for n, places in self._sizes.items() if n != trace.n):
            raise ValueError(MIXED)
        self._sizes[trace.n] = now


def _shape(graph: Graph) -> Shape:
    names = graph.names
    return frozenset(
        [
            (names[node], tuple([names[child] for child, _ in following if child is not None]))
            for node, following in graph.children.items()
        ]
    )


def _rounds(n: int, rounds: int) -> Iterator[tuple[Bool[Tensor, " n"], Replacement]]:
    """In each round a random half of the records is replaced, then the other half; of one record only the count."""
    generator = torch.Generator().manual_seed(secrets.randbits(62))
    for turn in range(rounds):
        half = torch.randperm(n, generator=generator) < n // 2
        first, second = (copied, altered) if turn % 2 == 0 else (altered, copied)
        yield half, first
        if n > 1:
            yield ~half, second


def copied(x: Shaped[Tensor, "n ..."], moved: Bool[Tensor, " n"]) -> Shaped[Tensor, "n ..."]:
    """Records that are moved become copies of others: always records that the model knows how to read."""
    kept = (~moved).nonzero()[:, 0]
    rows = x.clone()
    rows[moved] = x[kept[torch.arange(int(moved.sum()), device=x.device) % len(kept)]]
    return rows


def altered(x: Shaped[Tensor, "n ..."], moved: Bool[Tensor, " n"]) -> Shaped[Tensor, "n ..."]:
    """Records that are moved get values that no other record may have: other sizes, the next word, the next class."""
    if x.is_floating_point():
        new = 0.5 - 3.0 * x
    elif x.dtype == torch.bool:
        new = ~x
    else:
        new = torch.where(x < 0, x, (x + 1) % (x.max() + 1).clamp_min(1))
    return torch.where(moved.view(-1, *[1] * (x.dim() - 1)), new, x)


def _unmoved(losses: Tensor, found: Tensor, watched: Bool[Tensor, " n"]) -> bool:
    """Whether the watched losses are what they were, up to what kernels of another shape may round."""
    if found.shape != losses.shape:
        return False
    old, new = losses.detach()[watched].double(), found[watched].double()
    tolerance = {torch.float64: 2.0**-32, torch.float32: 2.0**-14}.get(losses.dtype, 2.0**-6)
    scale = old.nan_to_num(0.0, 0.0, 0.0).abs()
    near = (new - old).abs() <= tolerance * (scale + scale.mean())
    return bool((near | (old == new) | (old.isnan() & new.isnan())).all())


MIXED = (
    "The loss of one record depends on other records of the batch: it changed when they were replaced. Clipping then "
    "bounds nobody's influence. Look for statistics over the batch (also detached ones), mixup, sorting by the batch, "
    "capacities, or losses divided by the number of rows or words in the batch; divide by a constant instead."
)
