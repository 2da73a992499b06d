"""Ask a training loop about its micro-batches: hand some of them out again, in another company.

`Batch.split` is a generator that the user's loop draws from, so it can hand out more than it was asked for. After a
micro-batch has gone through `backward`, the questions of `ask` follow as further micro-batches. The loop computes their
losses as it computes all others, `backward` takes their fingerprints, and nothing of them is added to the sum. Random
generators and modes are put back afterwards: training goes on as if nothing had been asked.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from quietgrad._capture.backprops import mixing_error
from quietgrad._capture.call import Call
from quietgrad._capture.graph import GraphShape
from quietgrad._errors import PrivacyError
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._independence.direct import MIXED, evaluation_mode, shapes_of
from quietgrad._independence.fingerprints import Fingerprints, TakeFingerprints
from quietgrad._independence.questions import (
    SECRET,
    Asking,
    IndependenceOutcome,
    IndependenceVerdict,
    PassResult,
    ProbePass,
    ask,
)
from quietgrad._independence.random_states import RandomStates
from quietgrad._sampling.padding import PaddingRule

FIRST = 3
"""Micro-batches of at least two records that are all asked about at the beginning."""

ONE_IN = 256
"""Later ones are asked about with this chance. That takes two more passes, so the mean price is below 1% of a step."""


NOT_CHECKED = "independence not checked"
RAGGED = (
    "Records are collated to a length that depends on the other records of their micro-batch, as padding to the "
    "longest does: that length is data, and the rounding of every row follows it. Pad to a constant, "
    "PoissonBatches(…, pad_to=128) or collate_fn=qg.pad_collate(128), or state pad_to='longest', which explain() and "
    "statements then name."
)
LEFT = (
    "Whether records influence each other was not checked: the loop left batch.split(size) before it could be asked. "
    "Iterate over all of it, and call release() after that loop, not inside it."
)
DATA_LOADER = (
    "Whether records influence each other was not checked: a loop over a DataLoader cannot be asked. Call "
    "private.check_independence(losses_of, dataset, collate_fn) once, or iterate over PoissonBatches."
)


class Buffers:
    """Remember the buffers of a model: spectral norm, for example, changes its own at every forward."""

    def __init__(self, model: nn.Module) -> None:
        self._remembered = [(buffer, buffer.clone(), buffer._version) for buffer in model.buffers()]

    def restore(self) -> None:
        """Put back what was changed."""
        with torch.no_grad():
            for index, (buffer, value, version) in enumerate(self._remembered):
                if buffer._version != version:
                    buffer.copy_(value)
                    self._remembered[index] = buffer, value, buffer._version


class LoopCheck:
    """Decide which micro-batches are asked about, and refuse loops that mix records.

    Args:
        model: its modules are put into evaluation mode for some passes.
        required: whether a run that cannot be checked is refused.
        padding: to which lengths records are collated; None where a DataLoader of the user's collates them.
    """

    def __init__(
        self, model: nn.Module, *, required: bool = True, padding: PaddingRule | None = None
    ) -> None:
        self._model, self._required, self._padding = model, required, padding
        self.check_model: Callable[[], None] = lambda: None
        """Refuses a model that a forward has changed: a better reason than losses that differ by themselves."""
        self._asked = 0
        self._question: ProbePass | None = None
        self._fingerprints: Fingerprints | None = None
        self._take = TakeFingerprints()
        self._seen_shapes: set[GraphShape] = set()
        self._has_new_shape = False
        self._was_added = False
        """Whether the last micro-batch went through `backward` without an error."""
        self._must_ask = ""
        self._has_warned = False
        self._sizes: set[int] = set()
        """Sizes of micro-batches that loops asked for which could be asked about."""
        self.unchecked = ""
        """Why nothing could be checked; empty while everything could."""

    def __str__(self) -> str:
        if self.unchecked:
            return f"{NOT_CHECKED}: {self.unchecked}"
        return f"{self._said}, in {self._asked} micro-batches" if self._asked else self._said

    @property
    def _said(self) -> str:
        if self._asked:
            return "no record moved when others were exchanged or left out"
        if self.is_alone:
            return "every micro-batch holds one record, so none is beside another"
        return NOT_CHECKED

    def describe(self) -> dict[str, Any]:
        """Return what statements say: `checked`, `said`, and the `lengths` of records.

        How many micro-batches were asked about is left out: it may depend on the draws.
        """
        checked = self.is_checked or (self.is_alone and not self.unchecked)
        said = f"{NOT_CHECKED}: {self.unchecked}" if self.unchecked else self._said
        return {"checked": checked, "said": said, "lengths": self.padding}

    @property
    def padding(self) -> str:
        """To which lengths records are collated, in words."""
        rule = self._padding or PaddingRule()
        if rule.follows_longest or rule.lengths:
            return str(rule)
        return "collated shapes did not depend on the draw" if self._asked else str(rule)

    @property
    def is_asking(self) -> bool:
        """Whether the micro-batch under way is a question, of which nothing may be added to a sum."""
        return self._question is not None

    @property
    def is_checked(self) -> bool:
        """Whether at least one micro-batch was asked about, and every answer said that records are apart."""
        return self._asked > 0 and not self.unchecked

    @property
    def is_alone(self) -> bool:
        """Whether the loop asked for micro-batches of one record each."""
        return self._sizes == {1}

    def note(self, shape: GraphShape, unattributed: Call | None) -> None:
        """Take notice of a micro-batch: code that was not seen before is asked about.

        Args:
            shape: of its graph.
            unattributed: a call whose gradients belong to several samples, as far as the graph and probing show.
                Learned queries are like that, and so is mixing: only asking tells one from the other.
        """
        self._was_added = True
        self._has_new_shape |= shape not in self._seen_shapes
        self._seen_shapes.add(shape)
        if unattributed is not None:
            self._must_ask = unattributed.module_name

    def refuse_unanswered(self) -> None:
        """Refuse to release gradients of a micro-batch that had to be asked about and was not.

        Raises:
            PrivacyError: the loop left the micro-batch before it was asked.
        """
        if self._must_ask and not self.is_checked:
            raise mixing_error(self._must_ask)

    def warn_unasked(self) -> None:
        """Warn once that a loop cannot be asked about its micro-batches, or was left too early."""
        # A loop that could be asked has had no micro-batch of two records yet. It is asked about the first one.
        if self._asked or self._has_warned or self._sizes or not self._seen_shapes:
            return
        self._has_warned = True
        warnings.warn(DATA_LOADER if self._padding is None else LEFT, stacklevel=4)

    def record(self, verdict: IndependenceVerdict, padding: PaddingRule) -> None:
        """Count a check that was made outside of the loop.

        Args:
            padding: what was stated about the records of that check.
        """
        if self._padding is None or not (self._padding.lengths or self._padding.follows_longest):
            self._padding = padding
        self._conclude(verdict)

    def answer(self, losses: Tensor, grads: BlockwiseGrads, precision: torch.dtype) -> None:
        """Take the fingerprints of the question under way.

        Args:
            precision: the lowest one that took part.
        """
        self._fingerprints = self._take(losses, grads, precision)

    def questions(
        self,
        records: Sequence[Any],
        others: Callable[[int], list[Any]],
        collate: Callable[[Sequence[Any]], Any],
        size: int,
    ) -> Iterator[tuple[int, Any]]:
        """Yield the micro-batches, with their numbers of rows, that ask about one that has gone through `backward`.

        Args:
            records: of that micro-batch.
            others: draws so many other records of the data set.
            collate: makes a micro-batch of records.
            size: of micro-batches, as the loop asked for them.

        Raises:
            PrivacyError: records are mixed, or it cannot be checked and must be.
        """
        was_added, self._was_added = self._was_added, False
        self._sizes.add(size)
        if not was_added or not self._is_due(len(records)):
            return
        thorough = self._asked < FIRST
        after = RandomStates.capture()
        asking = ask(
            records, others, rounds=(2 if self._asked == 0 else 1) if thorough else 0, alone=thorough
        )
        buffers = Buffers(self._model)
        try:
            verdict = yield from self._answers(asking, collate, after, buffers)
        finally:
            self._question = None
            after.restore()
            buffers.restore()
        self._must_ask, self._has_new_shape = "", False
        self._conclude(verdict)

    def _is_due(self, records: int) -> bool:
        if records < 2 or self.unchecked:
            return False
        chosen = self._asked < FIRST or SECRET.randrange(ONE_IN) == 0
        return chosen or self._has_new_shape or bool(self._must_ask)

    def _answers(
        self,
        asking: Asking,
        collate: Callable[[Sequence[Any]], Any],
        start: RandomStates,
        buffers: Buffers,
    ) -> Generator[tuple[int, Any], None, IndependenceVerdict]:
        question = next(asking)
        while True:
            start.restore()
            buffers.restore()
            self._question, self._fingerprints = question, None
            with evaluation_mode(self._model) if question.evaluating else nullcontext():
                batch = collate(question.records)
                shapes = shapes_of(batch)
                yield len(question.records), batch
                drew = RandomStates.capture() != start
            fingerprints = self._taken()
            if fingerprints is None:
                reason = "the loop did not pass every micro-batch to backward"
                return IndependenceVerdict(IndependenceOutcome.UNCHECKED, reason)
            try:
                question = asking.send(PassResult(fingerprints, shapes, drew))
            except StopIteration as end:
                verdict: IndependenceVerdict = end.value
                return verdict

    def _taken(self) -> Fingerprints | None:
        return self._fingerprints

    def _conclude(self, verdict: IndependenceVerdict) -> None:
        self._asked += 1
        if verdict.outcome is IndependenceOutcome.MIXED:
            raise PrivacyError(MIXED)
        if verdict.ragged and not (self._padding and self._padding.follows_longest):
            raise PrivacyError(RAGGED)
        if verdict.outcome is IndependenceOutcome.UNCHECKED:
            self.check_model()
            self.unchecked = verdict.reason
            if self._required:
                raise PrivacyError(
                    f"Whether records influence each other cannot be checked: {verdict.reason}. Draw augmentations "
                    "in the data set's __getitem__ or from the global generators, pad to a constant length, or pass "
                    "require_independence=False; the run is then reported as not covered by ε."
                )
            warnings.warn(f"{NOT_CHECKED}: {verdict.reason}", stacklevel=3)
