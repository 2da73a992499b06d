"""Break `train`, `federated` and `tune` off at every write, resume them, and check that nothing was forgotten.

    python -m benchmarks.crash_points --json

A first run counts what is done to the disk: writes, cuts, syncs, renames, removals. Then, for each of these places, a
forked child runs the same command on a fresh folder and is broken off there by one of three failures:

    killed   SIGKILL before it
    torn     SIGKILL after half of a write, or right after a sync, rename or removal
    full     the disk is full from there on: half of the write, then ENOSPC for every later one

The command is then started again, with --resume if the folder has a config. The children count their releases by
themselves, in a file that is not part of the run; no ledger may ever hold fewer. A run that does not finish, or answers
a full disk with a traceback, is listed too.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import errno
import io
import json
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quietgrad._release.releaser import AccountedDraw
from quietgrad.accounting.ledger import Ledger
from quietgrad.lab.cli.app import app
from quietgrad.lab.tune import private

FAILURES = ("killed", "torn", "full")
CONFIG = """\
[data]
name = "{data}"
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
    "federated": ("federated", "--set", "training.batch=4"),
    "tune": ("tune", "--on", "private", "--tries", "2"),
}
"""A schedule gives steps different events. The number of private tries is fixed to 2, so that places stay the same."""


@dataclass
class Tally:
    """What became of a command that was broken off.

    Args:
        places: what it does to the disk.
        broken_off: how often it was.
        under_counts: ledgers that held fewer releases than were made.
        unfinishable: runs that did not finish when started again.
        tracebacks: full disks that were not answered by one line.
        over_counted: releases in ledgers that were never made, in all runs.
    """

    command: str
    places: int = 0
    broken_off: int = 0
    under_counts: int = 0
    unfinishable: int = 0
    tracebacks: int = 0
    over_counted: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


class Disk:
    """Everything that a child does to the disk below a folder, broken off at one place.

    Args:
        root: the folder.
        place: the number of the operation; None lets all of them pass.
        failure: how.
    """

    def __init__(self, root: Path, place: int | None = None, failure: str = "killed") -> None:
        self.root, self.place, self.failure = str(root), place, failure
        self.seen: list[str] = []
        self._full = False

    def install(self) -> None:
        """Put itself between this process, a child, and the functions that change files."""
        plain = io.open

        def opened(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            handle = plain(file, mode, *args, **options)
            writes = set(mode) & set("wax+") and not isinstance(file, int)
            return Watched(handle, self) if writes and self._below(file) else handle

        builtins.open = io.open = opened
        sync = os.fsync
        os.fsync = lambda fd: self.pass_by("sync", lambda: sync(fd)) if self._is_below(fd) else sync(fd)  # type: ignore[arg-type]
        for name in ("replace", "rename", "unlink", "remove", "rmdir", "mkdir"):
            self._watch(name)

    def _watch(self, name: str) -> None:
        plain = getattr(os, name)

        def watched(path: Any, *args: Any, **options: Any) -> Any:
            if not self._below(path) and "dir_fd" not in options:
                return plain(path, *args, **options)
            return self.pass_by(name, lambda: plain(path, *args, **options))

        setattr(os, name, watched)

    def pass_by(self, kind: str, action: Callable[[], Any]) -> Any:
        """Do an operation that is not a write, unless it is the place."""
        here = self._arrive(kind)
        if here and self.failure == "killed":
            _die()
        if here and self.failure == "full":
            self._full = True
        if self._full and kind in ("sync", "mkdir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        result = action()
        if here and self.failure == "torn":
            _die()
        return result

    def write(self, handle: Any, content: bytes | str) -> int:
        """Write, unless it is the place; then nothing of it, or half."""
        here = self._arrive("write")
        if here and self.failure == "killed":
            _die()
        if here or self._full:
            self._full = True
            handle.write(content[: len(content) // 2])
            handle.flush()
            if self.failure == "torn":
                _die()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(handle.write(content))

    def _arrive(self, kind: str) -> bool:
        self.seen.append(kind)
        return self.place == len(self.seen) - 1

    def _below(self, path: Any) -> bool:
        try:
            return str(os.path.abspath(os.fspath(path))).startswith(self.root)
        except TypeError:
            return False

    def _is_below(self, descriptor: int) -> bool:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(self.root)


class Watched:
    """A file whose writes and cuts go by a `Disk`."""

    def __init__(self, handle: Any, disk: Disk) -> None:
        self._handle, self._disk = handle, disk

    def write(self, content: Any) -> int:
        return self._disk.write(self._handle, bytes(content) if not isinstance(content, str) else content)

    def truncate(self, size: int | None = None) -> Any:
        return self._disk.pass_by("truncate", lambda: self._handle.truncate(size))

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run(arguments: list[str], disk: Disk, notes: Path) -> int:
    """Run a command in a forked child; its exit code, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            code = _in_child(arguments, disk, notes)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _in_child(arguments: list[str], disk: Disk, notes: Path) -> int:
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
    disk.install()
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
        code = run(command_line(name, config, out), Disk(out, place, failure), notes)
        what = f"{name}, place {place} ({failure})"
        tally.broken_off += code != 0
        tally.under_counts += under_counted(out, notes)[0]
        if code not in (0, 2, -signal.SIGKILL):
            tally.tracebacks += 1
            tally.failures.append(f"{what}: {_last_words(notes)}")
        code = run(command_line(name, config, out), Disk(out), notes)
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
        if run(command_line(name, config, out), Disk(out), notes):
            raise RuntimeError(f"{name} does not even run undisturbed: {_last_words(notes)}")
        seen = json.loads((notes / "seen").read_text())
    tally.places, tally.kinds = len(seen), dict(Counter(seen))
    for place in range(0, len(seen), every):
        for failure in FAILURES:
            break_off(name, place, failure, config, tally)
    return tally


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
    print("| command | places | broken off | under-counts | unfinishable | tracebacks | over-counted |")
    print("|---|---|---|---|---|---|---|")
    for t in tallies:
        cells = (t.places, t.broken_off, t.under_counts, t.unfinishable, t.tracebacks, t.over_counted)
        print(f"| {t.command} | {' | '.join(map(str, cells))} |")
    for failure in [failure for tally in tallies for failure in tally.failures]:
        print(failure)


if __name__ == "__main__":
    main()
