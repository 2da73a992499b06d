"""Memory that is given out again is nobody's."""

from __future__ import annotations

import platform
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch

from quietgrad._kernels.library import Recycled


def test_memory_is_given_out_again_once_no_tensor_lies_in_it() -> None:
    recycled = Recycled()
    first = recycled((3, 5), torch.float64)
    place = first.data_ptr()
    del first
    again = recycled((5, 3), torch.float64)
    assert again.data_ptr() == place
    assert again.shape == (5, 3)


def test_what_a_view_holds_is_not_given_out() -> None:
    recycled = Recycled()
    first = recycled((4, 4), torch.float32)
    views: dict[str, Any] = {
        "row": first[1],
        "flat": first.view(-1),
        "numbers": first.numpy(),
        "detached": first.detach(),
    }
    first.fill_(1.0)
    place = first.data_ptr()
    del first
    while views:
        second = recycled((4, 4), torch.float32)
        assert second.data_ptr() != place, sorted(views)
        second.zero_()
        del second
        _, view = views.popitem()
        assert float(view.sum()) in (4.0, 16.0)
        del view
    assert recycled((4, 4), torch.float32).data_ptr() == place


def test_what_is_of_no_use_any_more_is_let_go() -> None:
    recycled = Recycled()
    for size in range(1, 50):
        recycled((size,), torch.float32)
    assert len(recycled._arrays) == 1


def test_threads_share_nothing() -> None:
    recycled = Recycled()
    recycled((8,), torch.float32)
    seen = []
    other = threading.Thread(target=lambda: seen.append(len(recycled._arrays)))
    other.start()
    other.join()
    assert seen == [0]
    assert len(recycled._arrays) == 1


FREED_AND_TAKEN_AGAIN = """
import resource, sys
import numpy as np
from quietgrad._kernels.library import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
np.ones(4_000_000, np.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    blocks = [np.ones(4_000_000, np.uint8) for _ in range(10)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc")
def test_memory_that_is_freed_in_a_step_is_there_in_the_next_one() -> None:
    """Pages are asked for once, and without it in every round."""
    faults = {
        how: int(subprocess.check_output([sys.executable, "-c", FREED_AND_TAKEN_AGAIN, how]))
        for how in ("keep", "plain")
    }
    pages = 40_000_000 // 4096
    assert faults["keep"] < 2 * pages
    assert faults["plain"] > 5 * pages
