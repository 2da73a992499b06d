"""The durable record of releases: append-only JSON lines, chained by hashes, on disk before the release."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from quietgrad._errors import PrivacyError
from quietgrad.accounting.balance import Balance
from quietgrad.accounting.base import Event, event_from_dict, event_to_dict
from quietgrad.accounting.chain import (
    check_in_place,
    digest,
    header_of,
    key_from_environment,
    line_of,
    lock,
    parse_line,
    replace_content,
    what_changed,
    write_line,
)
from quietgrad.accounting.disk import disk, sync_folder
from quietgrad.accounting.events import Phase, phase_from_dict
from quietgrad.accounting.planning import Charge

_DIGEST = 32
"""Bytes of a line's hash that are kept to compare with checkpoints."""


class Ledger:
    """Record every release of a run.

    In memory and, given a path, in a file that survives kill -9.

    The file begins with a header (plan and description). Each release adds one line, which holds the hash of itself
    and of everything before it. The chain shows lines that were edited, removed or swapped by accident. With a
    checkpoint's (head, count) it also shows deleted last lines. It cannot show a copy of the file that was continued
    elsewhere, nor a file that somebody wrote anew on purpose. Against the latter, set a secret in
    QUIETGRAD_LEDGER_KEY (see `chain`).

    Guarantee: `record` returns after the line is on disk, so a crash can only over-count, and no record is charged more
    than the plan. Checked by: tests/accounting/test_ledger.py, tests/laws/test_law8_resume.py

    Args:
        path: file to create or to resume; None keeps the ledger in memory.
        plan: what the run may release at most. Order is free, counts are not: replayed steps use the plan up.
        description: JSON-able facts of the run (clip bounds, shares ...) that a resumed run must repeat
            exactly.

    Raises:
        PrivacyError: the file is the ledger of another run, its chain is broken, or another writer has it open.
        ValueError: the file is no ledger, or an event of the plan does not survive JSON.

    Example:
        ledger = qg.Ledger.read(path)
        spent = qg.accounting.epsilon(ledger.phases, delta=1e-5)
    """

    def __init__(
        self,
        path: Path | str | None = None,
        *,
        plan: Sequence[Phase] | None = None,
        description: Mapping[str, Any] | None = None,
    ) -> None:
        self._balance = Balance(plan)
        self._key = key_from_environment()
        self._header = header_of(self._balance.plan, description or {}, keyed=self._key is not None)
        self._digests = bytearray()
        # Made here, so that copies on other ranks count the same run; None once a line holds it.
        self._run: str | None = secrets.token_hex(16)
        self._head = digest("", self._header, self._key)
        self._file: IO[bytes] | None = None
        self._writer = os.getpid()
        if path is not None:
            self._open(Path(path))

    @classmethod
    def read(cls, path: Path | str) -> Ledger:
        """Read a finished or running ledger into memory and check it; the file is not touched.

        A torn last line counts as one release, zeros in the place of lines as many as may have stood there.

        Raises:
            PrivacyError: its chain is broken, or its key is missing.
            ValueError: it is no ledger.
        """
        data = Path(path).read_bytes()
        if b"\n" not in data:
            raise ValueError(
                f"Expected a ledger in {path}, got no whole line. Is it the ledger.jsonl of a run?"
            )
        header, _ = parse_line(data.split(b"\n", 1)[0], "", Path(path), 1, key_from_environment())
        phases = header.get("plan")
        plan = None if phases is None else [phase_from_dict(phase) for phase in phases]
        ledger = cls(plan=plan, description=header.get("description"))
        ledger._load(data, Path(path))
        return ledger

    @property
    def description(self) -> dict[str, Any]:
        """The facts of the run that a resumed run must repeat."""
        return dict(self._header["description"])

    @property
    def count(self) -> int:
        """How many releases were recorded, replayed ones included."""
        return self._balance.count

    @property
    def head(self) -> str:
        """The hash of the last line: what a checkpoint keeps, together with `count`."""
        return self._head

    @property
    def keyed(self) -> bool:
        """Whether the chain was made with a secret."""
        return self._key is not None

    @property
    def plan(self) -> tuple[Phase, ...] | None:
        """What the run may release at most."""
        return self._balance.plan

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What every record was charged at most so far, equal neighbours counted together."""
        return self._balance.phases

    def phases_with(self, charges: Iterable[Charge]) -> tuple[Phase, ...]:
        """Return what every record would be charged at most after these charges too; nothing is recorded."""
        return self._balance.phases_with(charges)

    def room_for(self, charges: Iterable[Charge]) -> int:
        """Count how many of these charges, in their order, the plan still allows; nothing is recorded."""
        return self._balance.room_for(charges)

    @property
    def upcoming(self) -> Phase | None:
        """The first phase of the plan that is not used up, and how many of it remain; None at the plan's end.

        After a resume a schedule must run by what remains here, not by the step of the saved weights.
        """
        return self._balance.upcoming

    def record(
        self, event: Event, rate: float, *, step: int, group: int | None = None, partition: str = ""
    ) -> None:
        """Write one release down, to the disk if there is a file, before it becomes visible.

        Args:
            event: what is released.
            rate: the probability with which each record took part.
            step: of the run.
            group: the group of records that could take part; None for all of them. See `Charge`.
            partition: names how records are divided into groups.

        Raises:
            PrivacyError: the plan does not contain this release, or a fork of the writing process records it.
            ValueError: the ledger is closed.
        """
        if self._file is not None and self._file.closed:
            raise ValueError(
                "Expected an open ledger, got a closed one. Open it again with Ledger(path, ...)."
            )
        if os.getpid() != self._writer:
            raise PrivacyError(
                f"Expected the process that made the ledger, got a fork of it (process {os.getpid()}): both would "
                "count the same steps. Train in one of them, or make the Privatizer after the fork."
            )
        charge = Charge(event=event, rate=rate, group=group, partition=partition, separation=event.separation)
        self._balance.check(charge)
        entry = {"step": int(step), "event": event_to_dict(event), "rate": charge.rate}
        if group is not None:
            entry["group"] = int(group)
        if partition:
            entry["partition"] = partition
        if self._run is not None:
            # The first line of every session. Else two runs of one plan, or two copies of one run that both went on,
            # would have the same chain, and one's checkpoint would pass for the other's.
            entry["run"] = self._run
        self._append(entry, charge)
        self._run = None

    def verify_against(self, head: str, count: int) -> None:
        """Refuse a ledger that is not a continuation of the one a checkpoint knew.

        Raises:
            PrivacyError: lines are missing, or it belongs to another run.
        """
        if count > self.count:
            raise PrivacyError(
                f"Expected a ledger of at least {count} lines (the checkpoint's), got {self.count}: "
                "last lines are missing. Restore the ledger that belongs to this checkpoint."
            )
        known = self._digest_at(count)
        if known != head:
            raise PrivacyError(
                f"Expected line {count} of the ledger to have the hash {head[:12]}..., got "
                f"{known[:12]}...: it belongs "
                "to another run. Restore the ledger that belongs to this checkpoint."
            )

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process counts along in memory; only the original writes the file."""
        return {**self.__dict__, "_file": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _writer=os.getpid())

    def close(self) -> None:
        """Close the file; the ledger stays readable but records nothing more."""
        if self._file is not None:
            self._file.close()

    def _append(self, entry: dict[str, Any], charge: Charge) -> None:
        link = digest(self._head, entry, self._key)
        if self._file is not None:
            try:
                write_line(self._file, entry, link)
            except OSError:
                self.close()  # what was written of the line counts on resume; nothing may follow it
                raise
        self._count_one(charge, link)

    def _count_one(self, charge: Charge, link: str) -> None:
        self._balance.add(charge)
        self._digests += bytes.fromhex(link)
        self._head = link

    def _digest_at(self, count: int) -> str:
        if count == 0:
            return digest("", self._header, self._key)
        return self._digests[(count - 1) * _DIGEST : count * _DIGEST].hex()

    def _open(self, path: Path) -> None:
        # Unbuffered: one line is one write, so a kill leaves whole lines or (rarely) one torn last line.
        self._file = open(path, "ab+", buffering=0)  # noqa: SIM115
        try:
            lock(self._file, path)
            check_in_place(self._file, path)
            self._file.seek(0)
            data = self._file.read()
            if b"\n" in data:
                self._load(data, path)
            else:
                self._start(path, data)
        except BaseException:
            self.close()
            raise

    def _start(self, path: Path, torn: bytes) -> None:
        """Begin a new file, or one that was killed inside its header: nothing was released yet."""
        assert self._file is not None
        whole = line_of(self._header, self._head)
        if not whole.startswith(torn):
            raise ValueError(
                f"Expected a ledger in {path}, got another file. Give the ledger a path of its own."
            )
        disk().truncate(self._file)
        write_line(self._file, self._header, self._head)
        sync_folder(path)

    def _load(self, data: bytes, path: Path) -> None:
        *lines, torn = data.split(b"\n")
        self._replay(lines, path)
        if torn:
            self._repair(data[: -len(torn)], torn, path)

    def _replay(self, lines: list[bytes], path: Path) -> None:
        header, _ = parse_line(lines[0], "", path, 1, self._key)
        if header != self._header:
            raise PrivacyError(what_changed(header, self._header, path))
        for number, line in enumerate(lines[1:], start=2):
            entry, link = parse_line(line, self._head, path, number, self._key)
            event = event_from_dict(entry["event"])
            charge = Charge(
                event=event,
                rate=entry["rate"],
                group=entry.get("group"),
                partition=entry.get("partition", ""),
                separation=event.separation,
            )
            self._balance.check(charge)
            self._count_one(charge, link)

    def _repair(self, whole: bytes, torn: bytes, path: Path) -> None:
        """Count what follows the last whole line: killed while writing, its releases were made or not.

        Which group of records they concerned is lost with them, so they count for all of them.
        """
        lines = []
        for place in range(self._most_lines(torn, path)):
            phase = self.phases[-1] if self.plan is None and self.phases else self.upcoming
            if phase is None and place:
                break  # all of the plan is counted, and nothing beyond it was ever released
            if phase is None:
                raise PrivacyError(
                    f"Expected a whole last line in {path}, got {torn[:40]!r}, and no plan says what it "
                    "released. Restore the ledger from a backup."
                )
            entry = {
                "step": None,
                "event": event_to_dict(phase.event),
                "rate": phase.rate,
                "torn": "" if place else torn.decode("latin-1"),
            }
            link = digest(self._head, entry, self._key)
            lines.append(line_of(entry, link))
            charge = Charge(event=phase.event, rate=phase.rate, separation=phase.event.separation)
            self._count_one(charge, link)
        if self._file is not None:
            self._file = replace_content(self._file, path, whole + b"".join(lines))

    def _most_lines(self, torn: bytes, path: Path) -> int:
        """Return how many releases the end of a file may stand for.

        A kill leaves the beginning of one line. A power cut may also leave zeros in the place of several lines, whose
        number is then at most what fits into their length.

        Raises:
            PrivacyError: there are zeros, and no plan says how long a line was.
        """
        if all(32 <= byte < 127 for byte in torn):
            return 1
        if not self.plan:
            raise PrivacyError(
                f"Expected lines at the end of the ledger {path}, got {len(torn)} bytes that are none, and no plan "
                "says what they released. Restore the ledger from a backup."
            )
        shortest = min(
            len(line_of({"step": 0, "event": event_to_dict(p.event), "rate": p.rate}, self._head))
            for p in self.plan
        )
        return math.ceil(len(torn) / shortest)
