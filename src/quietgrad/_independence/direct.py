"""Check the independence of records outside of a training loop, on losses that a function computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils.data import default_collate

from quietgrad._errors import PrivacyError
from quietgrad._independence.fingerprints import Fingerprints
from quietgrad._independence.passes import PassResult
from quietgrad._independence.questions import (
    SECRET,
    IndependenceOutcome,
    IndependenceVerdict,
    ask,
)
from quietgrad._independence.random_states import RandomStates
from quietgrad._sampling.collate import MapStyle

LossesOf = Callable[[Any], Tensor]
"""From a collated batch to one loss per record."""

MIXED = (
    "The loss or gradient of one record depends on other records of the batch: it changed when they were exchanged or "
    "left out. Clipping then bounds nobody's influence. Look for padding that the model reads (mask it, and pad to a "
    "constant length), statistics over the batch (also detached ones), mixup, in-batch negatives, sorting, capacities, "
    "or losses divided by a number of rows or words in the batch; divide by a constant instead."
)


NONE_FINITE = "none of the records that were drawn has a finite loss and gradient"


def check_losses_independent(
    losses_of: LossesOf,
    dataset: MapStyle,
    collate_fn: Callable[[list[Any]], Any] = default_collate,
    *,
    model: nn.Module | None = None,
    records: int = 16,
    rounds: int = 3,
) -> IndependenceVerdict:
    """Refuse losses of which one depends on another record of its batch.

    Args:
        losses_of: the loop's own code from a collated batch to one loss per record.
        dataset: where records come from.
        collate_fn: the loader's.
        model: its modules are put into evaluation mode for some passes; leave it out where `losses_of` does not have
            modes.
        records: how many are asked together.
        rounds: how often they are asked, each time with other records.

    Returns:
        what was found: that records are apart, or why it could not be checked.

    Raises:
        PrivacyError: a record's loss or gradient depends on other records.
        ValueError: the data set has fewer than 4 records.
    """
    total = len(dataset)  # type: ignore[arg-type]
    if total < 4:
        raise ValueError(f"Expected at least 4 records, got {total}: some must change while others stay.")
    verdict, ragged = IndependenceVerdict(IndependenceOutcome.APART), False
    for _ in range(rounds):
        chosen = SECRET.sample(range(total), min(records, total // 2))
        rest = sorted(set(range(total)) - set(chosen))
        verdict = _answered(
            [dataset[i] for i in chosen],
            lambda count, rest=rest: [dataset[i] for i in SECRET.choices(rest, k=count)],  # type: ignore[misc]
            lambda some: collate_fn(list(some)),
            losses_of,
            model,
        )
        if verdict.outcome is IndependenceOutcome.MIXED:
            raise PrivacyError(MIXED)
        ragged |= verdict.ragged
        if verdict.outcome is IndependenceOutcome.UNKNOWN:
            verdict = IndependenceVerdict(IndependenceOutcome.UNCHECKED, NONE_FINITE)
        if verdict.outcome is IndependenceOutcome.UNCHECKED:
            break
    return replace(verdict, ragged=ragged)


def _answered(
    records: Sequence[Any],
    others: Callable[[int], list[Any]],
    collate: Callable[[Sequence[Any]], Any],
    losses_of: LossesOf,
    model: nn.Module | None,
) -> IndependenceVerdict:
    """Answer every question about one micro-batch by calling the function."""
    asking, fingerprints = ask(records, others, rounds=2, alone=True), SlowFingerprints()
    start = RandomStates.capture()
    question = next(asking)
    try:
        while True:
            start.restore()
            with evaluation_mode(model) if question.evaluating else _as_it_is():
                batch = collate(question.records)
                losses = losses_of(batch)
                drew = RandomStates.capture() != start
                answer = PassResult(fingerprints(losses), shapes_of(batch), drew)
            question = asking.send(answer)
    except StopIteration as end:
        verdict: IndependenceVerdict = end.value
        return verdict
    finally:
        start.restore()


def shapes_of(batch: Any) -> tuple[tuple[int, ...], ...] | None:
    """Return the shapes of all tensors in a collated batch; None if it holds none."""
    return tuple(_shapes(batch)) or None


def _shapes(part: Any) -> Iterator[tuple[int, ...]]:
    if isinstance(part, Tensor) and part.is_nested:
        yield from (tuple(row.shape) for row in part.unbind())
    elif isinstance(part, Tensor | np.ndarray):
        yield tuple(part.shape)
    elif isinstance(part, Mapping):  # transformers' BatchEncoding too, which pytree does not open
        for value in part.values():
            yield from _shapes(value)
    elif isinstance(part, list | tuple):
        for value in part:
            yield from _shapes(value)
    elif callable(getattr(part, "to_dict", None)) and not isinstance(part, type):  # a batch of graphs
        yield from _shapes(part.to_dict())
    elif not isinstance(part, type) and hasattr(part, "__dict__"):  # a batch of the user's own class
        for value in vars(part).values():
            yield from _shapes(value) if isinstance(value, Tensor | np.ndarray) else ()


class SlowFingerprints:
    """Take fingerprints by one backward per record: slow, and needs nothing but the losses."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(SECRET.getrandbits(62))
        # By parameter, and not by the place in the graph: the graph may differ from pass to pass.
        self._directions: dict[Tensor, Tensor] = {}

    def __call__(self, losses: Tensor) -> Fingerprints:
        losses = losses.mean(1) if losses.dim() == 2 else losses
        parameters = list(_parameters(losses))
        rows = [self._of(loss, parameters) for loss in losses]
        numbers = torch.tensor(rows, dtype=torch.float64).reshape(len(losses), 2)
        dtype = min((losses.dtype, *(p.dtype for p in parameters)), key=lambda kind: kind.itemsize)
        return Fingerprints(losses.detach().double().cpu(), numbers[:, 0], numbers[:, 1], dtype)

    def _of(self, loss: Tensor, parameters: list[Tensor]) -> tuple[float, float]:
        grads = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        square = projection = 0.0
        for parameter, grad in zip(parameters, grads, strict=True):
            if grad is not None:
                wide = grad.detach().double().cpu()
                square += float(wide.square().sum())
                projection += float((wide * self._direction(parameter)).sum())
        return square**0.5, projection

    def _direction(self, parameter: Tensor) -> Tensor:
        if parameter not in self._directions:
            self._directions[parameter] = torch.randn(
                parameter.shape, generator=self._generator, dtype=torch.float64
            )
        return self._directions[parameter]


def _parameters(losses: Tensor) -> Iterator[Tensor]:
    """The leaves that the losses were computed from."""
    front: list[Node] = [] if losses.grad_fn is None else [losses.grad_fn]
    seen = set(front)
    while front:
        node = front.pop()
        variable = getattr(node, "variable", None)
        if isinstance(variable, nn.Parameter):
            yield variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                front.append(following)


@contextmanager
def evaluation_mode(model: nn.Module | None) -> Iterator[None]:
    """Put every module into evaluation mode, and back into the mode that it had."""
    modes = [] if model is None else [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield
