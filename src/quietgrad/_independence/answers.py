"""What a loop answers when micro-batches are handed out that only ask."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._independence.buffers import Buffers
from quietgrad._independence.direct import evaluation_mode, shapes_of
from quietgrad._independence.fingerprints import Fingerprints, TakeFingerprints
from quietgrad._independence.passes import PassResult, ProbePass
from quietgrad._independence.random_states import RandomStates
from quietgrad._independence.sketches import Sketch

T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """Describe what `backward` saw of one micro-batch.

    Args:
        fingerprints: of its records.
        spread: whether a number that is not finite may have reached the rows of others.
    """

    fingerprints: Fingerprints
    spread: bool

    def of_pass(self, shapes: tuple[Any, ...] | None, *, drew: bool) -> PassResult:
        """Add what the surroundings show: collated shapes, and whether random numbers were drawn."""
        return PassResult(self.fingerprints, shapes, drew, self.spread)


class Start(NamedTuple):
    """The states of random generators and the buffers of the model, before a micro-batch was collated."""

    states: RandomStates
    buffers: Buffers


@dataclass(frozen=True)
class Beginning:
    """What a micro-batch that is asked about began with.

    Args:
        states, buffers: of random generators and of the model, before it was collated.
        shapes: of what was collated.
    """

    states: RandomStates
    buffers: Buffers
    shapes: tuple[tuple[int, ...], ...] | None


class LoopAnswers:
    """Hand out questions to a loop, and take what it answers.

    Args:
        model: its modules are put into evaluation mode for some passes.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._take = TakeFingerprints()
        self._question: ProbePass | None = None
        self._answer: Answer | None = None

    @property
    def is_asking(self) -> bool:
        """Whether the micro-batch under way is a question."""
        return self._question is not None

    def begin_sketch(self) -> Sketch:
        """Return what takes the blocks of the micro-batch under way as they come."""
        return self._take.begin()

    def take(
        self, losses: Tensor, grads: BlockwiseGrads, sketch: Sketch, precision: torch.dtype, *, spread: bool
    ) -> Answer:
        """Take the fingerprints of the micro-batch under way."""
        self._answer = Answer(self._take.finish(losses, grads, sketch, precision), spread)
        return self._answer

    def end(self) -> None:
        """Ask nothing more."""
        self._question = None

    def of(
        self,
        asking: Generator[ProbePass, PassResult, T],
        collate: Callable[[Sequence[Any]], Any],
        start: RandomStates,
        buffers: Buffers,
    ) -> Generator[tuple[int, Any], None, T | None]:
        """Let the loop answer all questions; None if it did not pass every micro-batch to `backward`.

        Yields the number of rows of each micro-batch, and the micro-batch.

        Args:
            start, buffers: what every pass begins with.
        """
        question = next(asking)
        while True:
            start.restore()
            buffers.restore()
            self._question, self._answer = question, None
            with evaluation_mode(self._model) if question.evaluating else nullcontext():
                batch = collate(question.records)
                shapes = shapes_of(batch)
                yield len(question.records), batch
                drew = RandomStates.capture() != start
            answer = self._taken()
            if answer is None:
                return None
            try:
                question = asking.send(answer.of_pass(shapes, drew=drew))
            except StopIteration as end:
                found: T = end.value
                return found

    def _taken(self) -> Answer | None:
        return self._answer
