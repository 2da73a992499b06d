"""No kernel takes more instructions than it did, counted by valgrind: timings would depend on what else runs."""

from __future__ import annotations

import pytest
from benchmarks.kernel_instructions import KERNELS, RECORD, TOLERANCE, count, recorded, why_not

from quietgrad._kernels.library import KERNELS as EXPORTED


@pytest.mark.slow
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be counted")
def test_no_kernel_takes_more_instructions_than_recorded() -> None:
    before = recorded()
    if not before:
        pytest.skip(f"{RECORD.name} is of another compiler")
    now = count()
    more = {name: (n, before[name]) for name, n in now.items() if n > (1 + TOLERANCE) * before[name]}
    assert not more, f"more instructions than recorded: {more}"


def test_counted_kernels_exist() -> None:
    assert set(KERNELS) <= set(EXPORTED)
