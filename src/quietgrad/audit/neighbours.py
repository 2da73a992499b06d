"""Neighbouring runs: the same randomness, one record or user removed; what differs beyond the sums is a leak.

Sees what no statistics of the noise can: a data-dependent divisor, a skipped empty batch, an early exit, a draw made or
left out because of a record, a ledger that depends on the data, a sum that moves by more than its sensitivity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from quietgrad._gradients.blocks import Blocks
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._privatizer.privatizer import Privatizer
from quietgrad._sampling.batches import PoissonBatches
from quietgrad._sampling.users import Ids, Pooled
from quietgrad.audit.traces import Loop, RunTrace, TracedRelease, trace_run

Losses = Callable[..., Tensor]


@dataclass(frozen=True)
class Difference:
    """Something that must not depend on a record but does.

    Args:
        kind: "control flow", "random draws", "ledger", "divisor", "noise" or "sensitivity".
        detail: with the record and without it.
    """

    kind: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class NeighbourReport:
    """What neighbouring runs showed; `print` it.

    Args:
        differences: none if all is well.
        pairs: how many pairs of runs were compared.
        largest_change: the largest change of a sum over its sensitivity; at most 1.

    Example:
        report = qg.audit.compare_neighbours(model, mechanism, train_set, losses, rate=0.25)
        assert not report.differences
    """

    differences: tuple[Difference, ...]
    pairs: int
    largest_change: float

    @property
    def passed(self) -> bool:
        return not self.differences

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "attack": "neighbouring runs",
            "passed": self.passed,
            "pairs": self.pairs,
            "largest_change_over_sensitivity": self.largest_change,
            "differences": [{"kind": d.kind, "detail": d.detail} for d in self.differences],
        }

    def __str__(self) -> str:
        head = "no leak found" if self.passed else f"{len(self.differences)} differences"
        lines = [f"neighbouring runs: {head} in {self.pairs} pairs"]
        lines.append(f"  largest change of a sum: {self.largest_change:.4f} of its sensitivity")
        return "\n".join(lines + [f"  {d.kind}: {d.detail}" for d in self.differences])


def compare_neighbours(
    model: nn.Module,
    mechanism: Mechanism,
    dataset: Dataset[Any],
    losses: Losses,
    *,
    rate: float,
    record: int = 0,
    others: Sequence[int] = (1, 2, 3),
    loss_scales: Sequence[float] = (1.0, 1e4),
    loop: Loop | None = None,
    privatizer: Callable[..., Privatizer] = Privatizer,
    seed: int = 0,
    unit: Ids | None = None,
    most_records: int | None = None,
    pooled: Pooled = "mean",
    participation: Mapping[str, Any] | None = None,
    **options: Any,
) -> NeighbourReport:
    """Run pairs of short trainings that differ in one record, or in one user with all records, and compare them.

    Args:
        losses: (model, *tensors of a batch) → losses `[n]`.
        record: the one that is removed; with `unit` it is the number of a user, in the order of their ids.
        others: records, or users, that stay.
        loss_scales: losses are multiplied by these, so that records at and beyond the clip are tried.
        loop: a training loop of your own, `loop(private, batches, model)`; plain SGD if left out.
        privatizer: Privatizer or a subclass of it.
        seed: of noise, public randomness and torch's generator, the same in both runs.
        unit, most_records, pooled: users, as for `PoissonBatches`.
        participation: `groups`, `at_most` or `once_an_epoch`, as for `PoissonBatches`.
        options: for the privatizer.

    Returns:
        what differed that must not.
    """
    draws = [[record, *others], [record], list(others), [record, others[0]]]
    users: dict[str, Any] = {"unit": unit, "most_records": most_records, "pooled": pooled}
    users |= participation or {}

    def replay(chosen: Sequence[Sequence[int]]) -> PoissonBatches:
        return PoissonBatches.replay(dataset, chosen, rate=rate, **users)

    expected = replay(draws).sampler.expected_batch
    differences: list[Difference] = []
    largest, pairs = 0.0, 0
    for scale in loss_scales if loop is None else (1.0,):
        train = loop or _plain_sgd(lambda *args, scale=scale: scale * losses(*args))
        for start in range(len(draws)):
            # The first draw that holds the record comes first: until then both runs are in the same state.
            turned = draws[start:] + draws[:start]
            runs = [turned, [[row for row in draw if row != record] for draw in turned]]
            with_record, without = (
                trace_run(model, mechanism, replay(d), train, privatizer, seed, options) for d in runs
            )
            first = next(step for step, draw in enumerate(turned) if record in draw)
            found, change = _compare(with_record, without, first, expected)
            differences += [difference for difference in found if difference not in differences]
            largest, pairs = max(largest, change), pairs + 1
    return NeighbourReport(differences=tuple(differences), pairs=pairs, largest_change=largest)


def _compare(a: RunTrace, b: RunTrace, first: int, expected: float) -> tuple[list[Difference], float]:
    """`first` is the first step that saw the record: only there may, and must, just the sums differ."""
    found = []
    if repr(a.error) != repr(b.error):
        found.append(Difference("control flow", f"stopped by {a.error!r} against {b.error!r}"))
    elif a.error is not None:
        raise a.error
    steps_a, steps_b = [r.step for r in a.releases], [r.step for r in b.releases]
    if steps_a != steps_b:
        found.append(Difference("control flow", f"releases in steps {steps_a} against {steps_b}"))
    if a.draws != b.draws:
        found.append(Difference("random draws", f"{a.draws} integers against {b.draws}"))
    if a.ledger != b.ledger:
        found.append(Difference("ledger", f"{a.ledger} against {b.ledger}"))
    divisors = sorted({r.divisor for r in (*a.releases, *b.releases)})
    if any(abs(d - expected) > 1e-9 * expected for d in divisors):
        found.append(Difference("divisor", f"{divisors} where the constant qN = {expected:g} is expected"))
    change = 0.0
    for r, s in zip(_at(a, first), _at(b, first), strict=False):
        found += _compare_releases(r, s)
        change = max(change, _distance(r.total.blocks, s.total.blocks) / r.total.sensitivity)
    return found, change


def _compare_releases(a: TracedRelease, b: TracedRelease) -> list[Difference]:
    found = []
    if (a.std, a.total.sensitivity) != (b.std, b.total.sensitivity):
        claims = (
            f"std {a.std:g}, sensitivity {a.total.sensitivity:g} against {b.std:g}, {b.total.sensitivity:g}"
        )
        found.append(Difference("noise", claims))
    moved = _distance(a.total.blocks, b.total.blocks)
    if not moved <= a.total.sensitivity:
        found.append(
            Difference("sensitivity", f"a sum moved by {moved:g}, but {a.total.sensitivity:g} is declared")
        )
    # Equal draws: what is left of each release when its sum is taken out must be the same noise.
    left = [_noise_of(a), _noise_of(b)]
    shown = {name: (a.released.blocks[name] != 0) & (b.released.blocks[name] != 0) for name in left[0]}
    apart = _distance(*({name: noise[name] * shown[name] for name in noise} for noise in left))
    size = max(_distance(a.total.blocks, {}), _distance(b.total.blocks, {}), _distance(left[0], {}), 1e-30)
    if apart > 1e-4 * size:
        found.append(
            Difference("noise", f"the noise itself moved by {apart:g} (all of it measures {size:g})")
        )
    return found


def _noise_of(release: TracedRelease) -> Blocks:
    total, blocks = release.total.blocks, release.released.blocks
    return {name: blocks[name] * release.divisor - total[name] for name in total}


def _at(trace: RunTrace, step: int) -> list[TracedRelease]:
    return [release for release in trace.releases if release.step == step]


def _distance(a: Blocks, b: Blocks) -> float:
    squares = [(block.double() - b.get(name, 0.0)).square().sum() for name, block in a.items()]
    return float(torch.stack(squares).sum().sqrt())


def _plain_sgd(losses: Losses, learning_rate: float = 0.05, micro: int = 2) -> Loop:
    def loop(private: Privatizer, batches: PoissonBatches, model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
        for batch in batches:
            for tensors in batch.split(micro):
                private.backward(losses(model, *tensors))
            private.release()
            optimizer.step()

    return loop
