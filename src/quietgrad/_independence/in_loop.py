"""Ask a training loop about its micro-batches: hand some of them out again, in another company.

`Batch.split` is a generator that the user's loop draws from, so it can hand out more than it was asked for. After a
micro-batch has gone through `backward`, the questions of `ask` follow as further micro-batches. The loop computes their
losses as it computes all others, `backward` takes their fingerprints, and nothing of them is added to the sum. Random
generators and modes are put back afterwards: training goes on as if nothing had been asked.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from quietgrad._capture.backprops import mixing_error
from quietgrad._capture.call import Call
from quietgrad._capture.graph import GraphShape
from quietgrad._errors import PrivacyError
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._independence.answers import Answer, Beginning, LoopAnswers
from quietgrad._independence.buffers import Buffers
from quietgrad._independence.direct import MIXED, shapes_of
from quietgrad._independence.messages import DATA_LOADER, LEFT, NOT_CHECKED, NOT_PASSED, RAGGED
from quietgrad._independence.questions import (
    SECRET,
    IndependenceOutcome,
    IndependenceVerdict,
    ask,
    ask_in_group,
)
from quietgrad._independence.random_states import RandomStates
from quietgrad._independence.repetition import Repetition
from quietgrad._independence.sketches import Sketch
from quietgrad._sampling.padding import PaddingRule

FIRST = 3
"""Micro-batches of at least two records that are all asked about at the beginning."""

ONE_IN = 256
"""Later ones are asked about with this chance. That takes one more pass: 0.4% of the steps."""


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
        self.flip_coin: Callable[[], bool] = lambda: SECRET.randrange(ONE_IN) == 0
        """Chooses later micro-batches; ranks in lockstep share one, so that they ask about the same ones."""
        self.end_of_questions: Callable[[], Callable[[], None] | None] = lambda: None
        """A weak reference to what is called after all ranks have asked about a micro-batch."""
        self._is_accompanying = False
        self._asked = 0
        self._answers = LoopAnswers(model)
        self._repetition = Repetition(model, self._answers)
        self._beginning: Beginning | None = None
        """Of the last micro-batch, if it was chosen to be asked about before it was handed out."""
        self._original: Answer | None = None
        """About that micro-batch, taken as it went through `backward`."""
        self._was_chosen: bool | None = None
        """Whether the last micro-batch is asked about; None if that was not decided when it was collated."""
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
        """Say what was found, but not in how many micro-batches: draws of fewer than two records are not asked."""
        return f"{NOT_CHECKED}: {self.unchecked}" if self.unchecked else self._said

    @property
    def _said(self) -> str:
        if self._asked:
            return "no record's loss or gradient changed when others were exchanged or left out"
        if self.is_alone:
            return "every micro-batch holds one record, so none is beside another"
        return NOT_CHECKED

    def describe(self) -> dict[str, Any]:
        """Return what statements say: `checked`, `said`, and the `lengths` of records."""
        checked = self.is_checked or (self.is_alone and not self.unchecked)
        return {"checked": checked, "said": str(self), "lengths": self.padding}

    @property
    def padding(self) -> str:
        """To which lengths records are collated, in words."""
        rule = self._padding or PaddingRule()
        if rule.follows_longest or rule.lengths:
            return str(rule)
        return "shapes of micro-batches did not depend on the draw" if self._asked else str(rule)

    @property
    def is_asking(self) -> bool:
        """Whether the micro-batch under way is a question, of which nothing may be added to a sum."""
        return self._answers.is_asking or self._is_accompanying

    @property
    def is_checked(self) -> bool:
        """Whether at least one micro-batch was asked about, and every answer said that records are apart."""
        return self._asked > 0 and not self.unchecked

    @property
    def is_alone(self) -> bool:
        """Whether the loop asked for micro-batches of one record each."""
        return self._sizes == {1}

    def note(self, shape: GraphShape, unattributed: Call | None, *, is_odd: bool = False) -> None:
        """Take notice of a micro-batch: code that was not seen before is asked about.

        Args:
            shape: of its graph.
            unattributed: a call whose gradients belong to several samples, as far as the graph and probing show.
                Learned queries are like that, and so is mixing: only asking tells one from the other.
            is_odd: whether some samples had other outputs when they ran alone. The micro-batch is asked about if it can
                be; a loop over a DataLoader is not refused for it, because one odd record may be the reason.
        """
        self._was_added = True
        self._has_new_shape |= is_odd or shape not in self._seen_shapes
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

    def begin_sketch(self) -> Sketch | None:
        """Return what takes the blocks of a micro-batch as they come; None where no fingerprints are taken."""
        return self._answers.begin_sketch() if self._answers.is_asking or self.takes_fingerprints else None

    def answer(
        self,
        losses: Tensor,
        grads: BlockwiseGrads,
        sketch: Sketch | None,
        precision: torch.dtype,
        *,
        spread: bool,
    ) -> None:
        """Take the fingerprints of the question under way, or of a micro-batch that is to be asked about.

        Args:
            sketch: of all blocks.
            precision: the lowest one that took part.
            spread: whether a number that is not finite may have reached the rows of others.
        """
        if sketch is None:
            return
        taken = self._answers.take(losses, grads, sketch, precision, spread=spread)
        if not self._answers.is_asking:
            self._original = taken

    @property
    def takes_fingerprints(self) -> bool:
        """Whether those of the micro-batch under way spare a pass, because it is to be asked about."""
        return self._beginning is not None and not self.is_repeating and not self._is_accompanying

    def collate(self, records: Sequence[Any], collate: Callable[[Sequence[Any]], Any]) -> Any:
        """Collate a micro-batch; if it is to be asked about, remember what it begins with."""
        self._beginning = self._original = None
        self._was_chosen = self.flip_coin()
        # A loop that has left its micro-batches before it could be asked would pay for fingerprints at every one.
        is_due = not self._has_warned and self._is_due(len(records), self._was_chosen)
        start = self._repetition.begin(len(records))
        batch = collate(records)
        if is_due and start is not None:
            self._beginning = Beginning(*start, shapes_of(batch))
        return batch

    def begin(self, records: int) -> None:
        """Remember the state of everything before a micro-batch of so many records is collated."""
        self._repetition.begin(records)

    @property
    def is_repeating(self) -> bool:
        """Whether the micro-batch under way is the last one again, with other records in the place of bad ones."""
        return self._repetition.is_in_progress

    def leave_out_bad(self, losses: Tensor) -> Tensor:
        """Make the losses in the places of bad records NaN."""
        return self._repetition.leave_out_bad(losses)

    def suspect(self, losses: Tensor, *, spread: bool) -> bool:
        """Return whether to keep back a micro-batch, because some of its records may not be finite.

        Args:
            spread: whether a number that is not finite may have reached the rows of others.
        """
        # A loop over a DataLoader is given nothing again.
        return self._padding is not None and self._repetition.suspect(losses, spread=spread)

    def end_questions(self) -> None:
        """End the questions of all ranks about a micro-batch."""
        add = self.end_of_questions()
        if add is not None:
            add()

    @contextmanager
    def accompany(self) -> Iterator[None]:
        """Answer nothing inside: the pass keeps other ranks, which ask, from waiting."""
        states, buffers = RandomStates.capture(), Buffers(self._model)
        self._is_accompanying = True
        try:
            yield
        finally:
            self._is_accompanying = False
            states.restore()
            buffers.restore()

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
        chosen, self._was_chosen = self._was_chosen, None
        was_chosen = (
            self.flip_coin() if chosen is None else chosen
        )  # always: ranks in lockstep share the coins
        if was_added and self._repetition.is_due:
            yield from self._repetition.hand_out_again(records, collate)
            self._was_added = False
        if not was_added or not self._is_due(len(records), was_chosen):
            return
        after, buffers = RandomStates.capture(), Buffers(self._model)
        try:
            verdict = yield from self._ask(records, others, collate, after, buffers)
        finally:
            self._answers.end()
            after.restore()
            buffers.restore()
        # Where hardly a record is finite, no other one adds a row, and so nothing is left to be asked about.
        self._must_ask = ""
        self._has_new_shape &= verdict is not None and verdict.outcome is IndependenceOutcome.UNKNOWN
        self._conclude(verdict or IndependenceVerdict(IndependenceOutcome.UNCHECKED, NOT_PASSED))

    def _ask(
        self,
        records: Sequence[Any],
        others: Callable[[int], list[Any]],
        collate: Callable[[Sequence[Any]], Any],
        after: RandomStates,
        buffers: Buffers,
    ) -> Generator[tuple[int, Any], None, IndependenceVerdict | None]:
        """Compare with the micro-batch as it was added, if its fingerprints were taken; it may only be accepted so.

        Code may do something once, at its first call. So anything else is decided by passes that all come after it.
        """
        ask_anew = (
            partial(ask_in_group, records, others, is_first=self._asked == 0)
            if self._asked < FIRST
            else partial(ask, records, others, rounds=0, alone=False)
        )
        beginning, original = self._beginning, self._original
        if beginning is not None and original is not None and beginning.buffers.are_unchanged:
            known = original.of_pass(beginning.shapes, drew=after != beginning.states)
            verdict = yield from self._answers.of(ask_anew(known=known), collate, beginning.states, buffers)
            if verdict is not None and verdict.outcome is IndependenceOutcome.APART:
                return verdict
        return (yield from self._answers.of(ask_anew(), collate, after, buffers))

    def _is_due(self, records: int, was_chosen: bool) -> bool:
        if records < 2 or self.unchecked:
            return False
        return was_chosen or self._asked < FIRST or self._has_new_shape or bool(self._must_ask)

    def _conclude(self, verdict: IndependenceVerdict) -> None:
        if verdict.outcome is IndependenceOutcome.UNKNOWN:
            return  # hardly any record was finite: another micro-batch is asked about
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
