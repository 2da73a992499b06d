"""Which passes of the user's code show whether records influence each other, and what follows from the answers.

The per-sample clip bounds the influence of a record on its own gradient. That is worth nothing if a record also moves
the gradients of others: by padding, batch statistics, mixup, in-batch negatives, a division by a count. So the user's
own code runs again on records in another company, and every record that stayed must keep its fingerprint:

1. *Exchanged*, in training mode: half of the records are replaced by other ones of the data set. The random generators
   are put back, so dropout masks are equal wherever shapes are. A record that moved although all collated shapes
   stayed was influenced by another one.
2. *Alone*, in evaluation mode: each half without the other. This shows padding for certain, because the longest record
   is missing from one of the halves; also counts and `len(batch)`. Random masks follow the shape of a batch, so this
   says nothing if the code draws random numbers even in evaluation mode.
3. *Control*: the same records once more, asked only after something moved. Code that differs by itself draws from
   generators of its own. It cannot be checked, and says so.

A pass costs as much as training on what it holds. Few records show mixing as well as many: each of them moves more. So
the first micro-batches are asked about in a small group of their records, by all of the above. Code may also mix beyond
a number of records only, as a capacity of experts does, so the whole micro-batch is exchanged too (`ask_in_group`).

The questions come from a generator, because the code that answers them is the user's loop: it asks for micro-batches
and cannot be called. `ask` yields a `ProbePass`, receives its `PassResult`, and returns a `IndependenceVerdict`.
Checked by: tests/independence/test_patterns_directly.py and tests/independence/test_patterns_in_loops.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from quietgrad._independence.bad_records import find_bad_records
from quietgrad._independence.fingerprints import Fingerprints
from quietgrad._independence.passes import PassResult, ProbePass

SECRET = random.SystemRandom()
"""Chooses what is asked. A generator that is put back would choose the same ones again and again."""


class IndependenceOutcome(Enum):
    """What the answers say about the records of a micro-batch."""

    APART = "apart"
    MIXED = "mixed"
    UNCHECKED = "unchecked"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class IndependenceVerdict:
    """State the outcome, why nothing could be checked, and whether collated shapes followed the records."""

    outcome: IndependenceOutcome
    reason: str = ""
    ragged: bool = False


Asking = Generator[ProbePass, PassResult, IndependenceVerdict]

TIES = 50.0
"""How many times the usual tolerance ties may move a gradient when they are broken the other way: a tenth of it."""

OWN_GENERATOR = (
    "the same records gave other losses or gradients the second time: the loop draws random numbers from a generator "
    "of its own"
)
RANDOM_SHAPES = (
    "records are collated to lengths that depend on the others, and the loop draws random numbers even in evaluation "
    "mode"
)


def ask(
    records: Sequence[Any],
    others: Callable[[int], list[Any]],
    *,
    rounds: int,
    alone: bool,
    known: PassResult | None = None,
) -> Asking:
    """Ask about one micro-batch; the first question is the micro-batch itself, unless it is known.

    Args:
        records: of the micro-batch, at least two.
        others: draws so many other records of the data set.
        rounds: how often both halves are exchanged; 0 exchanges one half.
        alone: whether each half is also asked alone.
        known: the answer about the micro-batch itself.
    """
    return (yield from _Interrogation(records, others, known).verdict(rounds=rounds, alone=alone))


PAIRS = 16
"""Pairs of records that are asked about alone where collated shapes follow the records."""

GROUP = 8
"""Records of a micro-batch that are asked about by themselves, in all ways."""


def ask_in_group(
    records: Sequence[Any],
    others: Callable[[int], list[Any]],
    *,
    is_first: bool,
    known: PassResult | None = None,
) -> Asking:
    """Ask about a whole micro-batch by exchange, and about a small group of its records in every way.

    Args:
        records: of the micro-batch, at least two.
        others: draws so many other records of the data set.
        is_first: whether it is the first one, of which both halves are exchanged.
        known: the answer about the micro-batch itself.
    """
    rounds = 2 if is_first else 1
    if len(records) <= GROUP:
        return (yield from ask(records, others, rounds=rounds, alone=True, known=known))
    whole = yield from ask(records, others, rounds=int(is_first), alone=False, known=known)
    if whole.outcome is not IndependenceOutcome.APART:
        return whole
    group = [records[i] for i in SECRET.sample(range(len(records)), GROUP)]
    part = yield from ask(group, others, rounds=rounds, alone=True)
    return replace(part, ragged=whole.ragged or part.ragged)


class _Interrogation:
    """Remember what was answered about one micro-batch."""

    def __init__(
        self, records: Sequence[Any], others: Callable[[int], list[Any]], known: PassResult | None
    ) -> None:
        self._records, self._others = records, others
        self._everybody = torch.arange(len(records))
        self._known: dict[bool, PassResult] = {} if known is None else {False: known}
        """The answers about the micro-batch itself: in evaluation mode (True) and as it is (False)."""
        self._ragged = False

    def verdict(self, *, rounds: int, alone: bool) -> Asking:
        original = yield from self._original(evaluating=False)
        if bool(original.suspects.any()) and not (yield from self._leave_out_bad(original)):
            return IndependenceVerdict(IndependenceOutcome.UNKNOWN)
        for turn in range(max(1, rounds)):
            for half in self._halves() if rounds else self._halves()[:1]:
                found = yield from self._exchanged(half)
                if found is not None:
                    return found
            if alone and turn == 0:
                found = yield from self._alone(self._halves())
                if found is not None:
                    return found
                # Of a half, only the longest records lose their padding, and a maximum over words hardly sees it. Of
                # each pair, one record loses all of it.
                for pair in torch.cat(self._halves())[: 2 * PAIRS].split(2) if self._ragged else ():
                    found = yield from self._alone([pair.sort().values])
                    if found is not None:
                        return found
        return IndependenceVerdict(IndependenceOutcome.APART, ragged=self._ragged)

    def _leave_out_bad(self, original: PassResult) -> Generator[ProbePass, PassResult, bool]:
        """Go on without records that are not finite; return whether there is a finite one.

        Zero times NaN is NaN, so that such a record may move others though finite ones do not. It is handed out again
        without it (`bad_records`). Whether the loop is refused must not depend on it.
        """
        found = yield from find_bad_records(self._records, original.suspects)
        if found.records is None:
            return False
        if found.places:
            self._records, self._known = found.records, {}
            yield from self._original(evaluating=False)
        return True

    def _halves(self) -> tuple[Tensor, Tensor]:
        # Seeded by the operating system, and not SECRET: that one takes a microsecond for each of many records.
        order = torch.from_numpy(np.random.default_rng().permutation(len(self._records)))
        middle = len(order) // 2
        return order[:middle].sort().values, order[middle:].sort().values

    def _exchanged(
        self, half: Int64[Tensor, " k"]
    ) -> Generator[ProbePass, PassResult, IndependenceVerdict | None]:
        """Keep one half and replace the other one."""
        kept = set(half.tolist())
        new = iter(self._others(len(self._records) - len(kept)))
        records = [record if i in kept else next(new) for i, record in enumerate(self._records)]
        question = ProbePass(records, half, half)
        answer = yield question
        if (yield from self._moved(answer, question)) and bool(answer.suspects.any()):
            new_ones = torch.ones(len(records), dtype=torch.bool)
            new_ones[half] = False
            found = yield from find_bad_records(records, new_ones)
            records = records if found.records is None else found.records
            question = ProbePass(records, half, half)
            answer = yield question
        same_shapes = self._compare_shapes(answer)
        if not (yield from self._moved(answer, question)):
            return None
        if (yield from self._differs_by_itself(evaluating=False)):
            return self._unchecked(OWN_GENERATOR)
        if same_shapes:
            return IndependenceVerdict(IndependenceOutcome.MIXED, ragged=self._ragged)
        # Dropout masks follow the shape of a batch: ask once more without them.
        question = ProbePass(records, half, half, evaluating=True)
        original = yield from self._original(evaluating=True)
        answer = yield question
        if not (yield from self._moved(answer, question)):
            return None
        if original.drew:
            return self._unchecked(RANDOM_SHAPES)
        return IndependenceVerdict(IndependenceOutcome.MIXED, ragged=self._ragged)

    def _alone(
        self, parts: Sequence[Int64[Tensor, " k"]]
    ) -> Generator[ProbePass, PassResult, IndependenceVerdict | None]:
        """Keep each of these parts and leave all other records out."""
        original = yield from self._original(evaluating=True)
        if original.drew:
            return None
        seen = _MovedAlone(original.fingerprints)
        for part in (part for part in parts if len(part)):
            records = [self._records[i] for i in part.tolist()]
            question = ProbePass(records, part, torch.arange(len(part)), evaluating=True)
            answer = yield question
            seen.add(answer.fingerprints, question, same_shapes=self._compare_shapes(answer))
        if not seen.moved:
            return None
        if (yield from self._differs_by_itself(evaluating=True)):
            return self._unchecked(OWN_GENERATOR)
        if seen.may_be_rounding:
            for part in seen.parts:
                if (yield from self._moves_repeated(part)):
                    break
            else:
                return None
        return IndependenceVerdict(IndependenceOutcome.MIXED, ragged=self._ragged)

    def _moves_repeated(self, half: Int64[Tensor, " k"]) -> Generator[ProbePass, PassResult, bool]:
        """Ask about one half again, repeated until there are as many records as in the micro-batch."""
        repeated = [int(half[i % len(half)]) for i in range(len(self._records))]
        records = [self._records[i] for i in repeated]
        question = ProbePass(records, half, torch.arange(len(half)), evaluating=True)
        answer = yield question
        return (yield from self._moved(answer, question))

    def _original(self, *, evaluating: bool) -> Generator[ProbePass, PassResult, PassResult]:
        if evaluating not in self._known:
            self._known[evaluating] = yield ProbePass(
                self._records, self._everybody, self._everybody, evaluating
            )
        return self._known[evaluating]

    def _moved(self, answer: PassResult, question: ProbePass) -> Generator[ProbePass, PassResult, bool]:
        original = yield from self._original(evaluating=question.evaluating)
        moved = original.fingerprints.moved(answer.fingerprints, question.stayed, question.places)
        return bool(moved.any())

    def _differs_by_itself(self, *, evaluating: bool) -> Generator[ProbePass, PassResult, bool]:
        question = ProbePass(self._records, self._everybody, self._everybody, evaluating)
        answer = yield question
        return (yield from self._moved(answer, question))

    def _compare_shapes(self, answer: PassResult) -> bool:
        """Return whether everything was collated to the same shapes as the micro-batch, its length aside."""
        original = self._known[False]
        if original.shapes is None or answer.shapes is None:
            return False
        sizes = (len(original.fingerprints), len(answer.fingerprints))
        if len(original.shapes) != len(answer.shapes):
            return False  # a list of records, which the loop collates
        pairs = list(zip(original.shapes, answer.shapes, strict=True))
        self._ragged |= any(_follows_records(*pair, *sizes) for pair in pairs)
        return all(_is_alike(*pair, *sizes) for pair in pairs)

    def _unchecked(self, reason: str) -> IndependenceVerdict:
        return IndependenceVerdict(IndependenceOutcome.UNCHECKED, reason, ragged=self._ragged)


class _MovedAlone:
    """Whom it moved that other records were left out.

    Kernels round differently for another number of rows. That may break a tie of a maximum the other way and so move
    the gradients of a few records, or of more by little. A record with huge values may consist of rounding, and then
    its loss moves too. Whether a run is refused must not depend on such a record. Mixing moves losses of most records,
    or moves them among equally many rows too.

    Checked by: tests/attacks/test_refused_by_values.py
    """

    def __init__(self, original: Fingerprints) -> None:
        self._original = original
        self.moved = self._live = 0
        """How many records moved, and how many have any loss or gradient that could."""
        self._is_far = self._moves_losses = self._follows_shapes = False
        self.parts: list[Int64[Tensor, " k"]] = []
        """Those in which a record moved."""

    def add(self, answer: Fingerprints, question: ProbePass, *, same_shapes: bool) -> None:
        """Take notice of an answer."""
        stayed, places = question.stayed, question.places
        moved = self._original.moved(answer, stayed, places)
        before, after = self._original.losses[stayed], answer.losses[places]
        self._live += int(((before != 0) | (self._original.norms[stayed] != 0)).sum())
        if not bool(moved.any()):
            return
        self.moved += int(moved.sum())
        self.parts.append(stayed)
        self._is_far |= bool(self._original.moved(answer, stayed, places, factor=TIES).any())
        self._moves_losses |= not bool(((after - before).abs() <= 1e-3 * before.abs()).all())
        self._follows_shapes |= not same_shapes

    @property
    def may_be_rounding(self) -> bool:
        """Whether what moved may be rounding, which equally many rows decide."""
        few = self.moved <= 1 or self.moved * 2 <= self._live
        return not self._follows_shapes and (few or not (self._is_far or self._moves_losses))


Shape = tuple[int, ...]


def _is_alike(old: Shape, new: Shape, n: int, m: int) -> bool:
    """Whether two shapes differ in the number of records alone: from n to m, or from n·k to m·k of a flat axis."""
    if len(old) != len(new):
        return False
    differing = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
    return all((a, b) == (n, m) for a, b in differing) or (
        len(differing) == 1 and differing[0][0] * m == differing[0][1] * n
    )


def _follows_records(old: Shape, new: Shape, n: int, m: int) -> bool:
    """Whether a collated tensor got another shape because other records, or fewer, were collated.

    Among equally many records, only a tensor with an axis of records is known to be collated: others may be records
    themselves, in a list that the loop collates.
    """
    if _is_alike(old, new, n, m):
        return False
    return n != m or any(a == n and b == m for a, b in zip(old, new, strict=False))
