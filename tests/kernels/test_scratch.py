"""Working memory has one owner at a time, whoever calls whom and on which thread."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from quietgrad._kernels.scratch import LINE, Scratch


def test_memory_is_reused_after_it_was_returned() -> None:
    scratch = Scratch()
    with scratch.borrow("a", 15, np.float64) as first:
        place = first.ctypes.data
        assert first.shape == (15,)
    with scratch.borrow("a", 30, np.float32) as again:
        assert again.ctypes.data == place
        assert again.dtype == np.float32
    assert place % LINE == 0


def test_nested_blocks_of_one_name_do_not_share() -> None:
    """A function that borrows may call itself, as a kernel in a callback of another one does."""
    scratch = Scratch()

    def filled(depth: int) -> None:
        with scratch.borrow("a", 100, np.int64) as mine:
            mine[:] = depth
            if depth:
                filled(depth - 1)
            assert (mine == depth).all()

    filled(5)
    assert len(scratch._free) == 1, "one array of a name is enough to keep"


def test_the_larger_array_stays() -> None:
    scratch = Scratch()
    with scratch.borrow("a", 10, np.uint8), scratch.borrow("a", 1000, np.uint8) as large:
        place = large.ctypes.data
    with scratch.borrow("a", 1000, np.uint8) as again:
        assert again.ctypes.data == place


def test_names_do_not_share() -> None:
    scratch = Scratch()
    with scratch.borrow("a", 8, np.uint8) as a, scratch.borrow("b", 8, np.uint8) as b:
        a[:], b[:] = 1, 2
        assert a.tolist() == [1] * 8


def test_memory_comes_back_from_a_block_that_raised() -> None:
    scratch, places = Scratch(), []

    def fail() -> None:
        with scratch.borrow("a", 8, np.uint8) as first:
            places.append(first.ctypes.data)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with scratch.borrow("a", 8, np.uint8) as again:
        assert again.ctypes.data == places[0]


def test_threads_do_not_share() -> None:
    """Each fills what it borrowed, waits for all others, and finds its own numbers."""
    scratch, count = Scratch(), 8
    together, right = threading.Barrier(count), []

    def work(number: int) -> None:
        for turn in range(20):
            with scratch.borrow("a", 1000, np.int64) as mine:
                mine[:] = number * 100 + turn
                together.wait()
                right.append(bool((mine == number * 100 + turn).all()))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(right) == 20 * count
    assert all(right)


def test_zero_numbers_take_no_memory() -> None:
    with Scratch().borrow("a", 0, np.float64) as nothing:
        assert nothing.shape == (0,)
