"""What the runtime checks and guards of a private step cost, on the models of the engine's benchmark.

    python -m benchmarks.runtime_checks            a table
    python -m benchmarks.runtime_checks --json     {"models": [{"name", "without_ms", "always", ...}, ...], "passes": …}
    python -m benchmarks.runtime_checks --models "" --micro-batches 20000      only counts passes

One Privatizer of each model takes its steps in turn with everything on, with everything off, and with a probe (records
replaced and the losses computed again), which later steps have with a chance of one in `ONE_IN`. Counted are all
checks: the graph walked, coverage, whose gradient it is, the state of the model, private inputs, plain backwards,
scaled losses. Their time is taken inside them, and for comparison as the median difference of neighbouring steps. Off
exists here alone: the places of samples are remembered from an earlier step, and the functions that check are replaced
by ones that do nothing. The first three micro-batches, which are asked about in more ways, are timed one by one: what
their questions took, in steps. How many passes the questions to the loop take is counted exactly, in a run of
`--micro-batches` on a linear model, in micro-batches of `ROWS`: a pass is a forward and a backward without clip, noise
and optimizer, of as many rows as the micro-batch; one of fewer rows counts as that part of it. On a machine
that is busy with other work `--processor-time` counts the processor time of a single-threaded run; differences of whole
steps then still scatter by several percent, what is taken inside does not.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch.autograd.graph import GradientEdge
from torch.utils.data import TensorDataset

import quietgrad as qg
from benchmarks.contenders import MANY, data
from benchmarks.engine import Clock, chosen_clock
from benchmarks.models import SETTINGS, Setting
from quietgrad._capture import backprops, recorder
from quietgrad._capture.call_recorder import CallRecorder
from quietgrad._capture.graph import Graph
from quietgrad._capture.graph_analysis import GraphAnalysis
from quietgrad._capture.layout import BatchLayout
from quietgrad._guards import guards
from quietgrad._guards.guards import Guards
from quietgrad._guards.model_state import ModelStateGuard
from quietgrad._guards.private_inputs import PrivateInputs
from quietgrad._guards.raw_backward import RawBackwardGuard
from quietgrad._independence.in_loop import FIRST, ONE_IN, LoopCheck
from quietgrad._independence.repetition import Repetition

WARM_UP, ROWS = 8, 64


@dataclass(frozen=True)
class Cost:
    """Milliseconds of a step without any check; `always`, `probes` and their sum are shares of it.

    Args:
        difference: the same as `always`, as the difference of whole steps.
        start: what the questions about the first three micro-batches took, in steps without any check.
    """

    name: str
    without_ms: float
    always: float
    probes: float
    total: float
    difference: float
    start: float


class Stopwatch:
    """The time spent inside some functions, the outermost of them where one calls another."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._depth, self.spent = clock, 0, 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            start = self._clock()
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.spent += 1e3 * (self._clock() - start)

        return timed


class Remembered:
    """Answers of a `GraphAnalysis` in the order in which they were asked for, noted once and trusted from then on."""

    def __init__(self) -> None:
        self._analysis: GraphAnalysis | None = None
        self._answers: list[BatchLayout] = []
        self._asked = 0

    def noting(self, graph: Graph, n: int) -> Remembered:
        self._analysis = GraphAnalysis(graph, n)
        self._answers.clear()
        return self

    def answering(self, *_: Any) -> Remembered:
        self._analysis, self._asked = None, 0
        return self

    def layout_of(self, edge: GradientEdge, shape: torch.Size) -> BatchLayout:
        if self._analysis is not None:
            self._answers.append(self._analysis.layout_of(edge, shape))
            return self._answers[-1]
        self._asked += 1
        return self._answers[self._asked - 1]


def _nothing(*_: Any, **__: Any) -> None:
    return None


HOOKS: tuple[tuple[Any, str], ...] = (
    (CallRecorder, "before_model"),
    (Guards, "before_module"),
    (Guards, "before_model"),
)
"""Checks that modules call: bound when a Privatizer is made, so that what takes their place later is not called."""


@contextmanager
def bound_late() -> Iterator[None]:
    """Hooks that look up what they call, under `late` and their name, whenever they are called."""
    with ExitStack() as stack:
        for target, name in HOOKS:
            stack.enter_context(patch.object(target, f"late{name}", getattr(target, name), create=True))
            stack.enter_context(patch.object(target, name, _calling(f"late{name}")))
        yield


def _calling(name: str) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: getattr(self, name)(*args, **kwargs)


CHECKS: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (recorder, "uses", lambda *_: set()),
    (recorder, "check_coverage", _nothing),
    (LoopCheck, "note", _nothing),
    (guards, "refuse_scaled", _nothing),
    (guards, "refuse_stopping_at_nan", _nothing),
    (Repetition, "suspect", lambda *_, **__: False),
    (Repetition, "begin", _nothing),
    (ModelStateGuard, "check", _nothing),
    (PrivateInputs, "consume", _nothing),
    (PrivateInputs, "hand_out", _nothing),
    (RawBackwardGuard, "attach", _nothing),
    *((target, f"late{name}", _nothing) for target, name in HOOKS),
)
"""Where checks are made, and what takes their place when there are none."""


@contextmanager
def unchecked(remembered: Remembered) -> Iterator[None]:
    """A private step that trusts everything. It reads the graph all the same: the backward's order comes from it."""
    with ExitStack() as stack:
        for target, name, stand_in in (
            *CHECKS,
            (backprops, "GraphAnalysis", remembered.answering),
        ):
            stack.enter_context(patch.object(target, name, stand_in))
        yield


@contextmanager
def timed(watch: Stopwatch) -> Iterator[None]:
    """A private step whose checks are timed."""
    with ExitStack() as stack:
        for target, name in (
            *((target, name) for target, name, _ in CHECKS),
            (Graph, "of"),
            (Graph, "reaches"),
            (backprops, "GraphAnalysis"),
            (GraphAnalysis, "layout_of"),
        ):
            stack.enter_context(patch.object(target, name, watch.around(getattr(target, name))))
        yield


def measure(setting: Setting, repeats: int, clock: Clock) -> Cost:
    """The cost on one model."""
    with bound_late():
        return _measured(setting, repeats, clock)


def _measured(setting: Setting, repeats: int, clock: Clock) -> Cost:
    model, (x, y) = setting.model(), data(setting)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = qg.PoissonBatches(TensorDataset(x, y), rate=1.0, steps=MANY)
    asking = 0.0
    private = qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches)
    drawn = iter(batches)

    def step(*, probe: bool) -> float:
        nonlocal asking
        start = begun = clock()
        with patch.object(LoopCheck, "_is_due", lambda *_: probe):
            for rows in next(drawn).split(len(x)):
                is_asking = private.independence.is_asking
                private.backward(F.cross_entropy(model(rows[0]), rows[1], reduction="none"))
                now = clock()
                asking, begun = asking + is_asking * 1e3 * (now - begun), now
        private.release()
        optimizer.step()
        return 1e3 * (clock() - start)

    remembered, watch, first = Remembered(), Stopwatch(clock), 0.0
    for _ in range(WARM_UP):
        with patch.object(backprops, "GraphAnalysis", remembered.noting):
            step(probe=True)
            first = asking if private.step == FIRST else first

    def inside(*, probe: bool) -> float:
        watch.spent = 0.0
        with timed(watch):
            step(probe=probe)
        return watch.spent

    off, on, checks, probes = [], [], [], []
    for turn in range(repeats):
        with unchecked(remembered):
            off.append(step(probe=False))
        on.append(step(probe=False))
        checks.append(inside(probe=False))
        if turn % 4 == 0:
            probes.append(step(probe=True))
    private.close()
    whole, always = statistics.median(off), statistics.median(checks)
    probed = (statistics.median(probes) - statistics.median(on)) / ONE_IN
    difference = statistics.median(a - b for a, b in zip(on, off, strict=True))
    shares = [cost / whole for cost in (always, probed, always + probed, difference, first)]
    return Cost(setting.name, whole, *shares)


@dataclass(frozen=True)
class Passes:
    """Passes that asked, beside the micro-batches of a run; `share` is their ratio.

    Args:
        at_first: those about the first micro-batches, all of which are asked about.
    """

    micro_batches: int
    asking: float
    at_first: float
    share: float


def count_passes(micro_batches: int) -> Passes:
    """Train a linear model on that many micro-batches, one a step, and count."""
    x, model = torch.randn(ROWS, 4), torch.nn.Linear(4, 2)
    data = TensorDataset(x, torch.arange(ROWS) % 2)
    batches = qg.PoissonBatches(data, rate=1.0, steps=micro_batches)
    asking = at_first = 0.0
    with qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches) as private:
        for batch in batches:
            for rows, labels in batch.split(ROWS):
                asking += private.independence.is_asking * len(rows) / ROWS
                private.backward(F.cross_entropy(model(rows), labels, reduction="none"))
            private.release()
            at_first = asking if private.step == FIRST else at_first
    return Passes(micro_batches, asking, at_first, asking / micro_batches)


def table(costs: list[Cost]) -> str:
    lines = [
        "| model | step without, ms | every step | probes | together | difference of steps | start, steps |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {c.name} | {c.without_ms:.1f} | {c.always:.1%} | {c.probes:.1%} | {c.total:.1%} | {c.difference:+.1%} "
        f"| {c.start:.1f} |"
        for c in costs
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Times private steps with and without their checks.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--models", default=",".join(s.name for s in SETTINGS), help="comma-separated names")
    parser.add_argument("--repeats", type=int, default=30, help="pairs of steps a model")
    parser.add_argument(
        "--processor-time", action="store_true", help="processor time of one thread, not wall time"
    )
    parser.add_argument(
        "--micro-batches", type=int, default=10_000, help="of the run whose passes are counted"
    )
    options = parser.parse_args(arguments)
    clock = chosen_clock(options.processor_time)
    costs = [measure(s, options.repeats, clock) for s in SETTINGS if s.name in options.models.split(",")]
    passes = count_passes(options.micro_batches)
    if options.json:
        print(json.dumps({"models": [asdict(c) for c in costs], "passes": asdict(passes)}))
        return
    print(table(costs) if costs else "")
    print(
        f"{passes.asking:.1f} passes asked beside {passes.micro_batches} micro-batches ({passes.share:.2%}), "
        f"{passes.at_first:.1f} of them about the first {FIRST}"
    )


if __name__ == "__main__":
    main()
