"""Set up every test: one thread, a fixed seed, annotations where wanted; name at the end what did not run."""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from collections.abc import Iterator
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
LAWS = Path(__file__).parent / "laws"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the first and the last parameters of each test where all annotations are executed: types rarely differ."""
    if MODE != "all":
        return
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    kept = {item for same in tests.values() for item in (same[0], same[-1])}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


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
    is_law = LAWS in item.path.parents or item.get_closest_marker("annotations") is not None
    return MODE == "all" or is_law


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what was skipped: a test that needs a package or a program must not disappear silently."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix("Skipped: ")].append(report.nodeid.split("::")[0])
    for reason, files in sorted(reasons.items()):
        terminalreporter.write_line(f"not run: {len(files)} in {', '.join(sorted(set(files)))}: {reason}")
