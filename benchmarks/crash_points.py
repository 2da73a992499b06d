"""Break `train`, `federated` and `tune` off at every write, resume them, and check that nothing was forgotten.

    python -m benchmarks.crash_points --json

A first run counts what it changes on the disk: writes, cuts, syncs, renames, removals, all of which go through
`quietgrad.accounting.disk`. Then, for each of these places, a forked child with a `FailingDisk` runs the same command
on a fresh folder and is broken off there by one of three failures:

    killed   SIGKILL before it
    torn     SIGKILL after half of a write, or right after any other change
    full     the disk is full from there on: half of the write, then ENOSPC for every later one

The command is then started again, with --resume if the folder has a config. The children count their releases by
themselves, in a file that is not part of the run; no ledger may ever hold fewer. A run that does not finish, or answers
a full disk with a traceback, is listed too.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from quietgrad._release.releaser import AccountedDraw
from quietgrad.accounting.disk import Disk, replace_disk
from quietgrad.accounting.ledger import Ledger
from quietgrad.lab.cli.app import app
from quietgrad.lab.report import html
from quietgrad.lab.tune import private

TAKES_SPACE = ("write", "sync", "make_folder")
"""Changes that a full disk refuses."""

CONFIG = """\
[data]
name = "{data}"
test = 48
[model]
name = "mlp"
hidden = [4]
[privacy]
noise_multiplier = 1.0
[method]
name = "dp_sgd"
clip = 1.0
[training]
epochs = 1
batch = 48
lr = 0.5
checkpoint_every = 1
[federated]
clients = 12
"""
SCHEDULED = ("method.name=gip", "method.theta=1e-3", "method.group_size=4", "training.epochs=2")
KEEP = 'method.keep={schedule = "Linear", start = 1.0, end = 0.5, length = 1}'
COMMANDS: dict[str, tuple[str, ...]] = {
    "train": ("train",),
    "train, scheduled": ("train", *(part for change in (*SCHEDULED, KEEP) for part in ("--set", change))),
    "train, linear probe": (
        *("train", "--set", "method.name=quiet", "--set", "method.moments=private"),
        *("--set", "privacy.epsilon=0.2", "--set", "method.clip="),
    ),
    "federated": ("federated", "--set", "training.batch=4"),
    "tune": ("tune", "--on", "private", "--tries", "2"),
}
"""A schedule gives steps different events; the linear probe releases statistics before it trains. The number of private
tries is fixed to 2, so that places stay the same."""


@dataclass
class Tally:
    """What became of a command that was broken off.

    Args:
        places: what it changes on the disk.
        cases: places and failures at which it was to be broken off; `cases_of` says which are equal.
        broken_off: how often it was.
        under_counts: ledgers that held fewer releases than were made.
        unfinishable: runs that did not finish when started again.
        tracebacks: full disks that were not answered by one line.
        over_counted: releases in ledgers that were never made, in all runs.
    """

    command: str
    places: int = 0
    cases: int = 0
    broken_off: int = 0
    under_counts: int = 0
    unfinishable: int = 0
    tracebacks: int = 0
    over_counted: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


class FailingDisk(Disk):
    """The disk of a child process, broken off at one of the changes that it makes.

    Args:
        place: the number of the change; None lets all of them pass.
        failure: how.
    """

    def __init__(self, place: int | None = None, failure: str = "killed") -> None:
        self._place, self._failure = place, failure
        self.seen: list[str] = []
        self._is_full = False

    def write(self, file: IO[bytes], content: bytes) -> int:
        """Write, unless it is the place; then nothing of it, or half."""
        if self._arrives("write") or self._is_full:
            file.write(content[: len(content) // 2])
            file.flush()
            self._fail()
        return super().write(file, content)

    def truncate(self, file: IO[bytes]) -> None:
        with self._change("truncate"):
            super().truncate(file)

    def sync(self, descriptor: int) -> None:
        with self._change("sync"):
            super().sync(descriptor)

    def replace(self, old: Path, new: Path) -> None:
        with self._change("replace"):
            super().replace(old, new)

    def remove(self, path: Path) -> None:
        with self._change("remove"):
            super().remove(path)

    def remove_folder(self, path: Path) -> None:
        with self._change("remove_folder"):
            super().remove_folder(path)

    def make_folder(self, path: Path) -> None:
        with self._change("make_folder"):
            super().make_folder(path)

    @contextlib.contextmanager
    def _change(self, kind: str) -> Iterator[None]:
        """A change that is whole or not there; a full disk stops those that need space."""
        here = self._arrives(kind)
        self._is_full |= here and self._failure == "full"
        if self._is_full and kind in TAKES_SPACE:
            self._fail()
        yield
        if here and self._failure == "torn":
            _die()

    def _arrives(self, kind: str) -> bool:
        """Count a change; a run that is to be killed at it dies here."""
        self.seen.append(kind)
        here = self._place == len(self.seen) - 1
        if here and self._failure == "killed":
            _die()
        return here

    def _fail(self) -> None:
        if self._failure == "torn":
            _die()
        self._is_full = True
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run(arguments: list[str], disk: FailingDisk, notes: Path) -> int:
    """Run a command in a forked child; its exit code, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            code = _in_child(arguments, disk, notes)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _in_child(arguments: list[str], disk: FailingDisk, notes: Path) -> int:
    log = os.open(notes / "releases", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    said = os.open(notes / "said", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.dup2(said, 1)
    os.dup2(said, 2)
    accept = AccountedDraw.accept

    def counted(self: AccountedDraw, released: Any) -> None:
        accept(self, released)
        file: Any = self._releaser.ledger._file
        os.write(log, f"{file.name}\n".encode())

    AccountedDraw.accept = counted  # type: ignore[method-assign]
    private.draw_count = lambda mean: 2  # noqa: ARG005
    html.to_svg = lambda *_, **__: "<svg/>"  # type: ignore[attr-defined]  # drawing takes most of the time
    replace_disk(disk)
    warnings.simplefilter("default")  # as users run it: a test makes errors of warnings
    try:
        app(arguments, standalone_mode=True)
    except SystemExit as stop:
        return int(stop.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        os.write(
            os.open(notes / "seen", os.O_CREAT | os.O_TRUNC | os.O_WRONLY), json.dumps(disk.seen).encode()
        )
    return 0


def command_line(name: str, config: Path, out: Path) -> list[str]:
    """The command, with --resume where a run can be gone on with."""
    kind, *options = COMMANDS[name]
    resumed = ["--resume"] if kind != "tune" and (out / "config.toml").exists() else []
    return [kind, str(config), "--out", str(out), *options, *resumed]


def under_counted(out: Path, notes: Path) -> tuple[int, int]:
    """(ledgers that hold fewer releases than were made, releases that they hold too many)."""
    log = notes / "releases"
    made = Counter(log.read_text().splitlines()) if log.exists() else Counter[str]()
    short = extra = 0
    for path in out.rglob("ledger.jsonl"):
        try:
            count = Ledger.read(path).count
        except ValueError:
            count = 0  # broken off inside its header
        # A finished private search has renamed the best try, whose releases were counted under its old name.
        releases = max(made.values(), default=0) if path.parent.name == private.BEST else made[str(path)]
        short += count < releases
        extra += max(0, count - releases)
    return short, extra


def finished(name: str, out: Path) -> bool:
    """Whether the command left what it promises, and nothing that is not to be shown."""
    if name != "tune":
        return (out / "results.json").exists()
    return (out / private.BEST / "results.json").exists() and len(list(out.iterdir())) == 1


def break_off(name: str, place: int, failure: str, config: Path, tally: Tally) -> None:
    """Break one run off, start it again, and note what became of it."""
    with tempfile.TemporaryDirectory(prefix="crash_point_") as folder:
        out, notes = Path(folder) / "run", Path(folder) / "notes"
        notes.mkdir()
        code = run(command_line(name, config, out), FailingDisk(place, failure), notes)
        what = f"{name}, place {place} ({failure})"
        tally.broken_off += code != 0
        tally.under_counts += under_counted(out, notes)[0]
        if code not in (0, 2, -signal.SIGKILL):
            tally.tracebacks += 1
            tally.failures.append(f"{what}: {_last_words(notes)}")
        code = run(command_line(name, config, out), FailingDisk(), notes)
        short, extra = under_counted(out, notes)
        tally.under_counts += short
        tally.over_counted += extra
        if code or not finished(name, out):
            tally.unfinishable += 1
            tally.failures.append(f"{what}, started again: {_last_words(notes)}")


def _last_words(notes: Path) -> str:
    said = (notes / "said").read_text(errors="replace").strip().splitlines()
    return said[-1] if said else "nothing was said"


def measure(name: str, config: Path, every: int = 1) -> Tally:
    """Break a command off at every place, or at each so-manieth, by every failure."""
    tally = Tally(name)
    _warm_up(name, config)
    with tempfile.TemporaryDirectory(prefix="crash_point_") as folder:
        out, notes = Path(folder) / "run", Path(folder) / "notes"
        notes.mkdir()
        if run(command_line(name, config, out), FailingDisk(), notes):
            raise RuntimeError(f"{name} does not even run undisturbed: {_last_words(notes)}")
        seen = json.loads((notes / "seen").read_text())
    tally.places, tally.kinds = len(seen), dict(Counter(seen))
    for place, failure in cases_of(seen):
        if place % every == 0:
            tally.cases += 1
            break_off(name, place, failure, config, tally)
            print(f"{name}: {tally.cases} cases, {len(tally.failures)} failures", end="\r", file=sys.stderr)
    return tally


def cases_of(seen: list[str]) -> Iterator[tuple[int, str]]:
    """Where and how to break a command off; of cases that leave the same files, one.

    To be killed before a change is to be killed right after the one before it. A full disk shows at the next change
    that takes space.
    """
    for place, kind in enumerate(seen):
        if place == 0 or seen[place - 1] == "write":
            yield place, "killed"
        yield place, "torn"
        if kind in TAKES_SPACE:
            yield place, "full"


def _warm_up(name: str, config: Path) -> None:
    """Run the command once in this process, so that its children need not import and account for everything anew."""
    private.draw_count = lambda mean: 2  # noqa: ARG005
    with (
        tempfile.TemporaryDirectory(prefix="crash_point_") as folder,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(SystemExit),
    ):
        app(command_line(name, config, Path(folder) / "run"), standalone_mode=True)


def write_task(folder: Path) -> Path:
    """Write a small table and the config of a run on it."""
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=240)
    inputs = (rng.normal(size=(240, 8)) + 2.5 * np.eye(3, 8)[labels]).astype(np.float32)
    np.savez(folder / "own.npz", x=inputs, y=labels)
    config = folder / "own.toml"
    config.write_text(CONFIG.format(data=folder / "own.npz"))
    return config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="every seventeenth place")
    parser.add_argument("--only", choices=list(COMMANDS), help="one command")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="crash_points_"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        config = write_task(folder)
        names = [options.only] if options.only else list(COMMANDS)
        tallies = [measure(name, config, every=17 if options.quick else 1) for name in names]
    if options.json:
        print(json.dumps([asdict(tally) for tally in tallies], indent=2))
        return
    print(
        "| command | places | cases | broken off | under-counts | unfinishable | tracebacks | over-counted |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for t in tallies:
        cells = (
            t.places,
            t.cases,
            t.broken_off,
            t.under_counts,
            t.unfinishable,
            t.tracebacks,
            t.over_counted,
        )
        print(f"| {t.command} | {' | '.join(map(str, cells))} |")
    for failure in [failure for tally in tallies for failure in tally.failures]:
        print(failure)


if __name__ == "__main__":
    main()
