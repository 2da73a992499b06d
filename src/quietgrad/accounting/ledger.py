"""The durable record of releases: append-only JSON lines, chained by hashes, on disk before the release."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from quietgrad.accounting.base import Event, event_from_dict, event_to_dict
from quietgrad.accounting.chain import (
    digest,
    header_of,
    key_from_environment,
    line_of,
    lock,
    parse_line,
    sync_folder,
    what_changed,
    write_line,
)
from quietgrad.accounting.events import Phase, coalesce, phase_from_dict

_DIGEST = 32
"""Bytes of a line's hash that are kept to compare with checkpoints."""


class Ledger:
    """Counts every release of a run, in memory and (given a path) in a file that survives kill -9.

    The file begins with a header (plan and description) and has one line per release, each holding the hash
    of itself and of everything before it. `record` returns after the line is on disk, so a crash can only
    over-count. What the chain shows: lines edited, removed or swapped by accident, and with a checkpoint's
    (head, count) also deleted last lines. What it cannot show: a copy of the file that went another way (a fork), and a
    file that somebody wrote anew on purpose; against the latter, set a secret in QUIETGRAD_LEDGER_KEY (see `chain`).

    Args:
        path: file to create or to resume; None keeps the ledger in memory.
        plan: what the run may release at most. Order is free, counts are not: replayed steps use the plan up.
        description: JSON-able facts of the run (clip bounds, shares ...) that a resumed run must repeat
            exactly.

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
        self._plan = None if plan is None else coalesce(plan)
        self._key = key_from_environment()
        self._header = header_of(self._plan, description or {}, keyed=self._key is not None)
        self._left = Counter[tuple[Event, float]]()
        for phase in self._plan or ():
            self._left[phase.event, phase.rate] += phase.count
        self._runs: list[tuple[Event, float, int]] = []
        self._digests = bytearray()
        self._count = 0
        self._run = secrets.token_hex(16)  # made here, so that copies on other ranks count the same run
        self._head = digest("", self._header, self._key)
        self._file: IO[bytes] | None = None
        self._writer = os.getpid()
        if path is not None:
            self._open(Path(path))

    @classmethod
    def read(cls, path: Path | str) -> Ledger:
        """A finished or running ledger, checked and kept in memory; the file is not touched.

        A torn last line counts as one release.

        Raises:
            ValueError: it is no ledger, or its chain is broken.
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
        return self._count

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
        return self._plan

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What was released, equal neighbours counted together."""
        return tuple(Phase(event=event, rate=rate, count=count) for event, rate, count in self._runs)

    @property
    def upcoming(self) -> Phase | None:
        """The first planned event that is not used up, and how many of it are left; None at the plan's end.

        After a resume a schedule must run by what is left here, not by the step of the saved weights.
        """
        for phase in self._plan or ():
            left = self._left[phase.event, phase.rate]
            if left:
                return Phase(event=phase.event, rate=phase.rate, count=left)
        return None

    def record(self, event: Event, rate: float, *, step: int) -> None:
        """Write one release down, to the disk if there is a file, before it becomes visible.

        Raises:
            ValueError: the ledger is closed or another process's, or the plan does not hold this release.
        """
        if self._file is not None and self._file.closed:
            raise ValueError(
                "Expected an open ledger, got a closed one. Open it again with Ledger(path, ...)."
            )
        if self._file is not None and os.getpid() != self._writer:
            raise ValueError(
                f"Expected the process that opened the ledger, got a fork of it (process {os.getpid()}): both would "
                "count the same steps. Train in one of them, or make the Privatizer after the fork."
            )
        self._check_planned(event, rate)
        entry = {"step": int(step), "event": event_to_dict(event), "rate": float(rate)}
        if self._count == 0:
            # Two runs of one plan would else have the same chain, and one's checkpoint would pass for the other's.
            entry["run"] = self._run
        self._append(entry, event, float(rate))

    def verify_against(self, head: str, count: int) -> None:
        """Refuse a ledger that is not a continuation of the one a checkpoint knew.

        Raises:
            ValueError: lines are missing, or it belongs to another run.
        """
        if count > self._count:
            raise ValueError(
                f"Expected a ledger of at least {count} lines (the checkpoint's), got {self._count}: "
                "last lines are missing. Restore the ledger that belongs to this checkpoint."
            )
        known = self._digest_at(count)
        if known != head:
            raise ValueError(
                f"Expected line {count} of the ledger to have the hash {head[:12]}..., got "
                f"{known[:12]}...: it belongs "
                "to another run. Restore the ledger that belongs to this checkpoint."
            )

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process counts along in memory; only the original writes the file."""
        return {**self.__dict__, "_file": None}

    def close(self) -> None:
        """Let go of the file; the ledger stays readable but records nothing more."""
        if self._file is not None:
            self._file.close()

    def _check_planned(self, event: Event, rate: float) -> None:
        if self._plan is None or self._left[event, float(rate)] > 0:
            return
        if all((phase.event, phase.rate) != (event, float(rate)) for phase in self._plan):
            raise ValueError(
                f"Expected a planned release, got {event} at rate={rate:g}, which the plan does not hold. "
                "Noise, shares, rates and their schedules are fixed before training: make a new plan "
                "and a new ledger."
            )
        raise ValueError(
            f"Expected at most the planned number of releases {event} at rate={rate:g}; all are used up "
            f"after {self._count} of {sum(phase.count for phase in self._plan)} steps. Stop here (replayed "
            "steps count too), or go on with Ledger.upcoming."
        )

    def _append(self, entry: dict[str, Any], event: Event, rate: float) -> None:
        link = digest(self._head, entry, self._key)
        if self._file is not None:
            try:
                write_line(self._file, entry, link)
            except OSError:
                self.close()  # what was written of the line counts on resume; nothing may follow it
                raise
        self._count_one(event, rate, link)

    def _count_one(self, event: Event, rate: float, link: str) -> None:
        if self._runs and self._runs[-1][:2] == (event, rate):
            self._runs[-1] = (event, rate, self._runs[-1][2] + 1)
        else:
            self._runs.append((event, rate, 1))
        self._left[event, rate] -= 1
        self._digests += bytes.fromhex(link)
        self._head = link
        self._count += 1

    def _digest_at(self, count: int) -> str:
        if count == 0:
            return digest("", self._header, self._key)
        return self._digests[(count - 1) * _DIGEST : count * _DIGEST].hex()

    def _open(self, path: Path) -> None:
        # Unbuffered: one line is one write, so a kill leaves whole lines or (rarely) one torn last line.
        self._file = open(path, "ab+", buffering=0)  # noqa: SIM115
        try:
            lock(self._file, path)
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
        """A new file, or one that was killed inside its header: nothing was released yet."""
        assert self._file is not None
        whole = line_of(self._header, self._head)
        if not whole.startswith(torn):
            raise ValueError(
                f"Expected a ledger in {path}, got another file. Give the ledger a path of its own."
            )
        self._file.truncate(0)
        write_line(self._file, self._header, self._head)
        sync_folder(path)

    def _load(self, data: bytes, path: Path) -> None:
        *lines, torn = data.split(b"\n")
        self._replay(lines, path)
        if torn:
            self._repair(torn, path)

    def _replay(self, lines: list[bytes], path: Path) -> None:
        header, _ = parse_line(lines[0], "", path, 1, self._key)
        if header != self._header:
            raise ValueError(what_changed(header, self._header, path))
        for number, line in enumerate(lines[1:], start=2):
            entry, link = parse_line(line, self._head, path, number, self._key)
            event, rate = event_from_dict(entry["event"]), float(entry["rate"])
            self._check_planned(event, rate)
            self._count_one(event, rate, link)

    def _repair(self, torn: bytes, path: Path) -> None:
        """A last line without its end: killed while writing. Its release counts, made or not."""
        phase = self.upcoming
        if phase is None and self._plan is None and self._runs:
            event, rate, _ = self._runs[-1]
            phase = Phase(event=event, rate=rate, count=1)
        if phase is None:
            raise ValueError(
                f"Expected a whole last line in {path}, got {torn[:40]!r}, and no plan says what it "
                "released. Restore the ledger from a backup."
            )
        if self._file is not None:
            self._file.truncate(self._file.seek(0, os.SEEK_END) - len(torn))
        entry = {
            "step": None,
            "event": event_to_dict(phase.event),
            "rate": phase.rate,
            "torn": torn.decode("latin-1"),
        }
        self._append(entry, phase.event, phase.rate)
