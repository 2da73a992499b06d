"""Entries one after another, each in a process of one thread; a queue that was stopped goes on where it was.

Nothing is remembered beside what the entries write. An entry is done if its result file is there, which is written
whole. A training goes on from its own checkpoint and ledger. So a queue may be killed at any moment and started again.

While an entry runs, its process holds the lock of `ENTRY.lock`. A process that outlives a killed queue goes on, and the
next queue waits for it. Two queues may share a folder.

Checked by: tests/papers/test_queue.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from quietgrad.lab.errors import LabError
from quietgrad.lab.files import make_folder, read_json
from quietgrad.lab.papers.claims import paper
from quietgrad.lab.papers.committed import PARTIAL
from quietgrad.lab.papers.experiment import Experiment, Place
from quietgrad.lab.papers.finding import SCALES, Scale
from quietgrad.lab.papers.registry import EXPERIMENTS, experiment_of
from quietgrad.lab.run.interrupt import Stopped, StopRequest

Status = Literal["done", "waiting", "failed"]
Command = Callable[["QueueItem", Place], list[str]]

POLL = 0.2
"""Seconds between two looks at the processes."""
ATTEMPTS = 3
"""Processes of one entry that may die, of a lack of memory for example, before the entry counts as failed."""
INTERRUPTED = 130
"""The command's exit code after an interrupt."""


@dataclass(frozen=True)
class QueueItem:
    """One entry of a paper at one scale."""

    paper: str
    entry: str
    scale: Scale

    @property
    def name(self) -> str:
        return f"{self.paper}.{self.entry}.{self.scale}"

    @property
    def experiment(self) -> Experiment:
        found = experiment_of(self.paper, self.entry)
        if found is None:
            raise LabError(
                f"{self.paper} {self.entry} has no experiment; it is checked by "
                f"{paper(self.paper).entry(self.entry).check}."
            )
        found.check(self.scale)
        return found


def items_of(names: Sequence[str], scale: Scale | None) -> list[QueueItem]:
    """Read PAPER.ENTRY.SCALE, or PAPER.ENTRY with a scale for all; every entry that has the scale if there is no name.

    Raises:
        LabError: an unknown paper, entry or scale, or nothing that says the scale.
    """
    if not names:
        if scale is None:
            raise LabError("Give --scale quick, reduced or full, or entries such as gep.table1.reduced.")
        every = ((name, entry) for name, found in EXPERIMENTS.items() for entry in found)
        return [QueueItem(n, e, scale) for n, e in every if scale in EXPERIMENTS[n][e].scales]
    return list(dict.fromkeys(_item(name, scale) for name in names))


def _item(name: str, scale: Scale | None) -> QueueItem:
    for ending in SCALES:
        if name.endswith(f".{ending}"):
            name, scale = name.removesuffix(f".{ending}"), ending
    first, _, entry = name.partition(".")
    item = paper(first).entry(entry)  # entries have dots of their own: lemma3.1
    if scale is None:
        raise LabError(f"Expected {name} with a scale, such as {name}.quick, or --scale for all.")
    found = QueueItem(first, item.id, scale)
    _ = found.experiment
    return found


@dataclass
class _Running:
    """An entry and its process; none of ours if it outlived another queue."""

    item: QueueItem
    process: subprocess.Popen[bytes] | None
    started: float = field(default_factory=time.monotonic)
    asked: bool = False

    def stop(self) -> None:
        """Ask once: the same signal again would break off in the middle of a step."""
        if self.process is not None and not self.asked:
            self.process.send_signal(signal.SIGINT)
        self.asked = True


class Queue:
    """Runs items, `jobs` at a time.

    Args:
        place: where results, runs and logs go.
        minutes: after which an entry that can be resumed makes room for the next one.
        command: what runs an item.
    """

    def __init__(
        self,
        items: Sequence[QueueItem],
        place: Place,
        *,
        jobs: int = 1,
        minutes: float = 80.0,
        command: Command | None = None,
    ) -> None:
        self.items, self.place, self._jobs, self._minutes = list(items), place, jobs, minutes
        self._command = command or _papers_command
        self._trainings = {item: item.experiment.trainings(item.scale) for item in self.items}
        self._attempts = dict.fromkeys(self.items, 0)
        self._failed: dict[QueueItem, str] = {}
        self._shown: dict[QueueItem, int] = {}

    def run(self) -> None:
        """Run whatever is not done yet.

        Raises:
            Stopped: it was interrupted; running entries have kept what they have.
        """
        make_folder(self.place.out)
        waiting = [item for item in self.items if not self._is_done(item)]
        running: list[_Running] = []
        self.place.tell(f"{len(waiting)} of {len(self.items)} entries to run, {self._jobs} at a time")
        with StopRequest() as stop:
            while waiting or running:
                if stop.asked:
                    for each in running:
                        each.stop()
                    waiting.clear()
                    running = [each for each in running if each.process is not None]
                self._start_some(waiting, running)
                time.sleep(POLL)
                for each in list(running):
                    self._tell_log(each.item)
                    if self._has_ended(each):
                        running.remove(each)
                        self._take(each, waiting)
                    elif each.item.experiment.resumable and waiting and self._is_over_time(each):
                        each.stop()
        if stop.asked:
            raise Stopped("Stopped, and kept. Start the command again to go on.")

    def as_rows(self) -> list[dict[str, Any]]:
        """Each entry with its status, and with the verdict and time of its result."""
        return [self._row(item) for item in self.items]

    def _row(self, item: QueueItem) -> dict[str, Any]:
        row: dict[str, Any] = {"item": item.name, "status": self._status(item)}
        if (partial := self._file(item, PARTIAL)).exists():
            row["rows"] = len(read_json(partial)["finding"]["rows"])
        if item in self._failed:
            row["error"] = self._failed[item]
        if row["status"] == "done":
            result = read_json(self._file(item, "json"))
            row |= {"verdict": result["finding"]["verdict"], "seconds": result["seconds"]}
            row["file"] = str(self._file(item, "json"))
        return row

    def _status(self, item: QueueItem) -> Status:
        return "done" if self._is_done(item) else "failed" if item in self._failed else "waiting"

    def _is_done(self, item: QueueItem) -> bool:
        return self._file(item, "json").exists()

    def _file(self, item: QueueItem, ending: str) -> Path:
        return self.place.out / f"{item.name}.{ending}"

    # ---- processes ------------------------------------------------------------------------------------------

    def _start_some(self, waiting: list[QueueItem], running: list[_Running]) -> None:
        """Start entries in their order, but none that shares a training with one that runs: they would wait or fail."""
        for item in list(waiting):
            if len(running) >= self._jobs:
                return
            busy = frozenset[str]().union(*(self._trainings[each.item] for each in running))
            if busy.isdisjoint(self._trainings[item]):
                waiting.remove(item)
                running.append(self._start(item))

    def _start(self, item: QueueItem) -> _Running:
        lock = self._file(item, "lock").open("ab")
        with closing(lock):
            if not _locked(lock):
                self._say(item, "runs already, as a process of another queue")
                return _Running(item, None)
            self._say(item, "started")
            single = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            with self._file(item, "log").open("ab") as log:
                self._shown[item] = log.tell()
                process = subprocess.Popen(
                    self._command(item, self.place),
                    env={**os.environ, **single},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    # The process keeps the lock after this queue has closed its own descriptor, or was killed.
                    pass_fds=(lock.fileno(),) if sys.platform != "win32" else (),
                    # Ctrl-C must reach it once, from here, and not from the terminal as well.
                    start_new_session=True,
                )
        return _Running(item, process)

    def _has_ended(self, each: _Running) -> bool:
        if each.process is not None:
            return each.process.poll() is not None
        with self._file(each.item, "lock").open("ab") as lock:
            return _locked(lock)

    def _is_over_time(self, each: _Running) -> bool:
        return time.monotonic() - each.started > 60 * self._minutes

    def _take(self, each: _Running, waiting: list[QueueItem]) -> None:
        """Count an entry that has ended as done, or let it wait again, or give it up."""
        item, code = each.item, None if each.process is None else each.process.returncode
        if self._is_done(item):
            self._say(item, f"done: {self._row(item)['verdict']}")
        elif code is None or (each.asked and (code < 0 or code == INTERRUPTED)):
            self._say(item, "stopped, and kept")
            waiting.append(item)
        elif (code < 0 or code == INTERRUPTED) and self._attempts[item] + 1 < ATTEMPTS:
            self._attempts[item] += 1
            self._say(item, f"was killed (exit code {code}); it goes on later")
            waiting.append(item)
        else:
            self._failed[item] = self._last_line(item) or f"exit code {code}"
            self._say(item, f"failed: {self._failed[item]}")

    # ---- what is shown --------------------------------------------------------------------------------------

    def _say(self, item: QueueItem, text: str) -> None:
        done = sum(self._is_done(each) for each in self.items)
        self.place.tell(f"[{done}/{len(self.items)}] {item.name} {text}")

    def _tell_log(self, item: QueueItem) -> None:
        """Show the lines that the entry has written since the last look."""
        with self._file(item, "log").open("rb") as log:
            log.seek(self._shown.setdefault(item, log.seek(0, os.SEEK_END)))
            whole, end, _ = log.read().rpartition(b"\n")
        self._shown[item] += len(whole) + len(end)
        for line in whole.decode(errors="replace").splitlines():
            self.place.tell(f"  {item.name}: {line.strip()}")

    def _last_line(self, item: QueueItem) -> str:
        lines = self._file(item, "log").read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _papers_command(item: QueueItem, place: Place) -> list[str]:
    """The command of one entry, as a user types it."""
    data = [] if place.data_dir is None else ["--data-dir", str(place.data_dir)]
    entry = [item.paper, item.entry, "--scale", item.scale]
    return [sys.executable, "-m", "quietgrad", "papers", *entry, "--out", str(place.out), *data]


def _locked(file: IO[bytes]) -> bool:
    """Take the lock, which the open file keeps for itself and for processes that inherit it; False if it is taken."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
