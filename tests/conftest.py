"""Set up every test: one thread, a fixed seed, annotations where wanted; name at the end what did not run."""

from __future__ import annotations

import gc
import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.annotations import MODE, executed

torch.set_num_threads(1)  # tests run in two processes on small tensors: more threads would only compete
os.environ.pop("QUIETGRAD_CACHE", None)  # what one test has measured is none of the next one's
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = (
        "1"  # read where triton is imported: device code then runs on the CPU's tensors
    )
STARTED = time.monotonic()
LAWS = Path(__file__).parent / "laws"
CHOSEN = pytest.StashKey[bool]()
"""Whether a test of a law executes annotations."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seconds",
        type=float,
        help="start no test later than this, and mix the order, so that all files come up",
    )


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the tests that execute annotations; where all do, only those are run."""
    chosen = _first_and_last(items, _function)
    if MODE == "laws":
        # Shapes differ from layer to layer and from method to method, so each of them is checked in each file.
        chosen |= _first_and_last(items, _case)
    for item in chosen:
        item.stash[CHOSEN] = True
    if MODE == "all":
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]
    if config.getoption("seconds") is not None:
        items.sort(key=lambda item: hashlib.sha256(item.nodeid.encode()).digest())


def pytest_runtest_setup(item: pytest.Item) -> None:
    limit = item.config.getoption("seconds")
    if limit is not None and time.monotonic() - STARTED > limit:
        pytest.skip(f"no time left of --seconds {limit:g}")


def _first_and_last(items: list[pytest.Item], key: Callable[[pytest.Item], str]) -> set[pytest.Item]:
    """Return the first and the last of all items with the same key: types rarely differ between the others."""
    same: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        same[key(item)].append(item)
    return {item for group in same.values() for item in (group[0], group[-1])}


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _case(item: pytest.Item) -> str:
    case = getattr(item, "callspec", None) and item.callspec.params.get("case")  # type: ignore[attr-defined]
    return f"{item.path} {getattr(case, 'name', case)}"


def pytest_collection_finish() -> None:
    """Leave what was imported out of garbage collections: a full one took half a second for a million objects."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Execute the library's annotations where this run wants it, fixtures included."""
    with executed(on=_wants_annotations(item)):
        return (yield)


def _wants_annotations(item: pytest.Item) -> bool:
    if MODE == "0" or item.get_closest_marker("wrong_types") is not None:
        return False
    if MODE == "all" or item.get_closest_marker("annotations") is not None:
        return True
    return LAWS in item.path.parents and item.stash.get(CHOSEN, False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what was skipped: a test that needs a package or a program must not disappear silently."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix("Skipped: ")].append(report.nodeid.split("::")[0])
    for reason, files in sorted(reasons.items()):
        terminalreporter.write_line(f"not run: {len(files)} in {', '.join(sorted(set(files)))}: {reason}")
