"""Poisson batches: each step draws each record, or each user, independently with probability q.

Formal guarantee: the draw of a step is independent of the data and of all other draws: a coin for each of them, from
AES-256 under OS entropy that is fresh for every draw, or for every run of several ranks, which share its draws.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from quietgrad._collective import Reducer
from quietgrad._errors import PrivacyError
from quietgrad._noise.aes import RandomWords
from quietgrad._sampling.draws import Draw, Draws
from quietgrad._sampling.owner import Owner
from quietgrad._sampling.participation import Poisson, Scheme, scheme_of
from quietgrad._sampling.users import Ids, Pooled, Users
from quietgrad.accounting.base import Event
from quietgrad.accounting.planning import Charge


class PoissonSampler(Sampler[list[int]]):
    """Index lists of Poisson draws, for `DataLoader(batch_sampler=…)`.

    Each loop goes on where the last one stopped, until `steps` draws were made in all. Under a Privatizer, to which the
    sampler belongs until that is closed, a loop begins with the first draw that was not released: whatever a loop that
    was left had drawn ahead is handed out again.

    Args:
        records: N, the number of records. It is public (neighbours are zero-out).
        rate: q in (0, 1].
        steps: how many draws the plan has.
        seed: makes the draws reproducible and the run not private; leave it out for OS entropy.
        unit: the user of each record, where users are protected instead of records: users are drawn, and N is
            their number. The rows of a draw are those of one user after the other, and must stay in that order.
        most_records: with `unit`, how many records of a user a step uses at most.
        pooled: with `unit`, whether the gradients of a user's records are averaged ("mean") or added ("sum").
        groups: b, for noise of b bands (`qg.BandedNoise`): cyclic Poisson. Records are in b groups, fixed by their
            numbers alone, and step t draws from group t mod b with probability b·q. The expected batch stays qN.
        at_most: B, how many records a step uses at most. If more are drawn, some are left out at random; a batch is
            filled up to B with rows that count nothing. So all batches have one shape, and time tells nothing.
        once_an_epoch: each record takes part exactly once in 1/q steps, at a step drawn for it at random.

    Raises:
        ValueError: there are no records or steps, the rate or b·q is not in (0, 1], the users do not fit the records,
            or options do not go together.
        PrivacyError: a subclass draws in its own way and does not say what that costs.

    Example:
        sampler = qg.PoissonSampler(len(train_set), rate=0.25, steps=10)
        loader = DataLoader(train_set, batch_sampler=sampler, collate_fn=qg.collate_possibly_empty(train_set))
    """

    def __init__(
        self,
        records: int,
        *,
        rate: float,
        steps: int,
        seed: int | None = None,
        unit: Ids | None = None,
        most_records: int | None = None,
        pooled: Pooled = "mean",
        groups: int = 1,
        at_most: int | None = None,
        once_an_epoch: bool = False,
    ) -> None:
        if records < 1:
            raise ValueError(f"Expected records >= 1, got {records}. Is the training set empty?")
        if not 0 < rate <= 1:
            raise ValueError(
                f"Expected rate in (0, 1], got {rate}. It is the expected batch size divided by N."
            )
        if steps < 1:
            raise ValueError(f"Expected steps >= 1, got {steps}.")
        self.records, self.rate, self.steps = records, float(rate), int(steps)
        self._records_of_others: int | None = None
        self.users = _users(unit, records, most_records, pooled)
        if at_most is not None and self.users is not None:
            raise ValueError(
                "at_most= bounds the rows of a batch, and users have several each. Leave it out, or protect records."
            )
        self.groups, self.at_most = int(groups), at_most
        self._scheme: Scheme = scheme_of(
            self.units, self.rate, groups=groups, at_most=at_most, once_an_epoch=once_an_epoch
        )
        self.private = seed is None
        if self.private:
            _check_charged(type(self))
        self._key = None if seed is None else hashlib.sha256(f"quietgrad draws {seed}".encode()).digest()
        self._process, self._draws_made = os.getpid(), 0
        self._rank, self._world = 0, 1
        self._made = Draws()
        self._owner = Owner()
        self.loops = 0
        """How many loops over the draws were begun."""

    @property
    def expected_batch(self) -> float:
        """qN, the constant every release is divided by."""
        return self.rate * self.units

    @property
    def units(self) -> int:
        """N: how many records, or users, are protected and may be drawn. Public."""
        own = self.records if self.users is None else self.users.count
        return own + (self._records_of_others or 0)

    def charge(self, event: Event, step: int) -> Charge:
        """Say what a step costs that releases this, given how records take part.

        A sampler by which records take part in another way says so here. What it returns is planned, and written to
        the ledger before the step is released.
        """
        return self._scheme.charge(event, step)

    def describe(self) -> dict[str, Any]:
        """Say what is protected, as a ledger keeps it."""
        protected = {"records": self.units} if self.users is None else self.users.describe()
        return {**protected, **self._scheme.describe()}

    def rows(self, step: int) -> int | None:
        """Return how many rows this rank drew for a step; None if it was not drawn yet. Private."""
        draw = self._made.of(step)
        return None if draw is None else len(draw.rows)

    def used(self, step: int) -> int | None:
        """Return how many of the rows of a step count; None if all do, or it was not drawn yet. Private."""
        draw = self._made.of(step)
        return None if draw is None else draw.used

    def counts(self, step: int) -> list[int] | None:
        """Return how many rows each user contributes to a step, in order; None where records are drawn. Private."""
        draw = self._made.of(step)
        return None if draw is None else draw.counts

    def draw_hash(self, step: int) -> int | None:
        """Return a hash of the whole draw of a step, on whichever rank; None if it was not drawn yet. Private.

        None too where each rank draws records of its own: no other rank may learn which.
        """
        draw = self._made.of(step)
        return None if draw is None or self._records_of_others is not None else draw.hash

    @property
    def waiting(self) -> bool:
        """Whether a draw was made that is not released yet."""
        return self._made.next > self._made.first

    @property
    def is_alone_waiting(self) -> bool:
        """Whether just one draw was made that is not released yet: no loader has drawn ahead."""
        return self._made.next == self._made.first + 1

    @property
    def upcoming(self) -> int:
        """The step that a loop would begin with."""
        return self._made.first if self.owned else self._made.next

    def mark_released(self, step: int) -> None:
        """Use up the draws up to this step: no loop hands them out again."""
        self._made.forget_through(step)

    @property
    def owned(self) -> bool:
        """Whether a Privatizer takes its batches from here."""
        return self._owner.current is not None

    def refuse_second_owner(self) -> None:
        """Refuse a second owner, before anything is set up.

        Raises:
            ValueError: it belongs to a Privatizer.
        """
        self._owner.refuse_second()

    def claim(self, owner: object) -> None:
        """Make it belong to one Privatizer until that lets go; the next one begins the plan anew, with fresh draws.

        Raises:
            ValueError: it belongs to another one.
        """
        if self._owner.take(owner):
            self.skip_to(0)

    def let_go(self, owner: object) -> None:
        """Let it go: the Privatizer was closed."""
        self._owner.leave(owner)

    def join(self, reducer: Reducer) -> None:
        """Count the records that other ranks hold, where each rank holds its own.

        Each rank flips a coin for each of its records. Together these are one Poisson draw of all records.

        Raises:
            ValueError: on every rank, if users are protected, or records take part other than by Poisson draws.
        """
        self._records_of_others = None
        if not reducer.local_records:
            return
        plain = self.users is None and type(self._scheme) is Poisson
        found = reducer.gather((self.records, plain))
        if not all(plain for _, plain in found):
            raise ValueError(
                "Ranks with records of their own take plain Poisson draws: a rank cannot know whether others hold "
                "records of the same user, or how many they drew. Leave out unit, groups, at_most and once_an_epoch, "
                'or give every rank all records (records="shared").'
            )
        self._records_of_others = sum(records for records, _ in found) - self.records

    def divide(self, reducer: Reducer) -> None:
        """Make the draws of rank 0 on every rank, and yield only this rank's part of each; parts may be empty.

        A rank with records of its own draws from these alone, from its own entropy.

        Raises:
            ValueError: draws were made before, among another number of ranks.
        """
        if reducer.local_records:
            return
        if self._made.next and reducer.world != self._world:
            raise PrivacyError(
                f"{self._made.next} batches were drawn in a world of {self._world} before {reducer.world} ranks began "
                "to share the draws: a record could be in two parts. Make the Privatizer before iterating over batches."
            )
        if reducer.world > 1:
            self._key, self._draws_made = reducer.broadcast(
                lambda: (self._key or os.urandom(32), self._draws_made)
            )
        self._rank, self._world = reducer.rank, reducer.world

    def skip_to(self, step: int) -> None:
        """Go on at a later step of the plan (after a resume), with fresh draws."""
        self._made = Draws(step)
        self._scheme.begin(step)
        self.loops += 1

    def draw(self) -> list[int]:
        """Draw the numbers of the records, or users, of one step, ascending."""
        words, self._draws_made = self._words(), self._draws_made + 1
        drawn: list[int] = self._scheme.draw(self._made.next, words).tolist()
        return drawn

    def _words(self) -> RandomWords:
        # A forked process may not repeat the draws that its ranks agreed on: they would notice its own.
        shared = not self.private or self._process == os.getpid()
        return RandomWords(self._key, self._draws_made) if shared else RandomWords()

    def __iter__(self) -> Iterator[list[int]]:
        self.loops += 1
        loop, step = self.loops, self.upcoming
        if step >= self.steps:
            raise PrivacyError(
                f"All {self.steps} planned steps were drawn, and ε covers the plan only. "
                "Plan more steps before calibrating."
            )
        while step < self.steps:
            if self.owned and loop != self.loops:
                raise PrivacyError(
                    "Another loop over the same draws has begun, and this one would hand out a batch twice. Run one "
                    "loop at a time over the batches of a Privatizer."
                )
            if step == self._made.next:
                self._made.add(self._drawn())
            yield self._made.get(step).rows
            step += 1

    def _drawn(self) -> Draw:
        whole = self.draw()
        part, mark = whole[self._rank :: self._world], zlib.crc32(np.asarray(whole, dtype=np.int64).tobytes())
        if self.at_most is not None:
            # Which records fill a batch up does not matter: nothing of them is added to a sum.
            missing = len(range(self._rank, self.at_most, self._world)) - len(part)
            return Draw([*part, *(place % self.records for place in range(missing))], mark, used=len(part))
        if self.users is None:
            return Draw(part, mark)
        # Which records stand for a user needs no entropy of its own: none of it is what ε rests on.
        seed = self._made.next if not self.private else int.from_bytes(os.urandom(8), "big")
        chosen = self.users.contributions(part, seed)
        return Draw([row for rows in chosen for row in rows], mark, [len(rows) for rows in chosen])

    def __len__(self) -> int:
        """Return the number of planned draws; `private.steps_left` says what is left of it."""
        return self.steps

    def __getstate__(self) -> dict[str, Any]:
        """A copy belongs to nobody, does not hand out what was drawn here, and repeats no private draw."""
        key = None if self.private else self._key
        return self.__dict__ | {"_owner": Owner(), "_made": Draws(self._made.next), "_key": key}


def _check_charged(kind: type[PoissonSampler]) -> None:
    """Refuse a class that changes who is drawn below the class that says what a draw costs.

    Raises:
        PrivacyError: the ledger would count plain Poisson draws, whatever the class draws.
    """

    def depth(name: str) -> int:
        return next(place for place, base in enumerate(kind.__mro__) if name in vars(base))

    for name in ("draw", "_drawn", "__iter__"):
        if depth(name) < depth("charge"):
            raise PrivacyError(
                f"{kind.__name__} overrides {name} and not charge: ε would be that of plain Poisson draws, whatever it "
                "draws. Override charge(event, step) in the same class, to say what a step costs."
            )


class ReplayedSampler(PoissonSampler):
    """Explicit draws, for audits that compare neighbouring runs; never private. Options as of the base class."""

    def __init__(
        self,
        records: int,
        draws: Sequence[Sequence[int]],
        *,
        rate: float,
        users: Users | None = None,
        **options: Any,
    ) -> None:
        super().__init__(records, rate=rate, steps=len(draws), seed=0, **options)
        self.users = users
        self._draws = [list(draw) for draw in draws]

    def draw(self) -> list[int]:
        return self._draws[self._made.next]


def _users(unit: Ids | None, records: int, most_records: int | None, pooled: Pooled) -> Users | None:
    if unit is not None:
        return Users.of(unit, records=records, most_records=most_records, pooled=pooled)
    if most_records is not None or pooled != "mean":
        raise ValueError(
            "most_records and pooled bound what a user contributes, but unit is missing. Pass unit=, the user of "
            "each record, or leave them out to protect single records."
        )
    return None
