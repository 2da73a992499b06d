"""An operation takes the first kernel for its device that supports its arguments, else the torch reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from quietgrad._capture.adapters.norm import norm_gradients
from quietgrad._gradients import gram, indexed, kernel_gradients, row_arithmetic, small_blocks
from quietgrad._gradients.row_arithmetic import row_squared_norms
from quietgrad._kernels import levels, registry
from quietgrad._kernels.c_backend import KERNELS
from quietgrad._kernels.registry import CONTRACTS, Implementation, Operation, register
from quietgrad._noise import aes, gaussian, keyed, trials

DECLARED: list[Operation[Any, Any]] = [
    row_arithmetic.row_squared_norms,
    row_arithmetic.weighted_rows,
    small_blocks.block_norms,
    small_blocks.block_sums,
    indexed.table_pairs,
    indexed.table_sums,
    row_arithmetic.each_times,
    row_arithmetic.lifted_rows,
    row_arithmetic.products_in_runs,
    kernel_gradients.patch_products,
    gram.gram_sums,
    kernel_gradients.kernel_gradients,
    norm_gradients,
    aes.key_stream,
    trials.draw_tents,
    trials.draw_boxes,
    keyed.keyed_trials,
    gaussian.add_steps,
]
NOT_IN_C = {"keyed_trials"}


def seven(rows: Tensor) -> Tensor:
    return torch.full((len(rows),), 7.0, dtype=torch.float64)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Implementation]:
    """A kernel for rows of a device that this machine always has, and that has no other kernels."""
    monkeypatch.delenv(levels.VARIABLE, raising=False)
    levels.read_environment_again()
    handle = register(
        "row_squared_norms",
        device="meta",
        backend="fake",
        run=seven,
        supports=lambda rows: rows.dtype == torch.float32,
    )
    yield handle
    handle.remove()
    monkeypatch.undo()
    levels.read_environment_again()


def rows(device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(3, 4, device=device, dtype=dtype)


def test_a_kernel_runs_on_its_own_device(elsewhere: Implementation) -> None:
    assert row_squared_norms.find_kernel(rows("meta")) is elsewhere
    assert row_squared_norms(rows("meta")).tolist() == [7.0] * 3
    assert row_squared_norms.find_kernel(rows("cpu")) is not elsewhere
    torch.testing.assert_close(row_squared_norms(rows("cpu")), torch.full((3,), 4.0, dtype=torch.float64))


@pytest.mark.usefixtures("elsewhere")
def test_arguments_that_a_kernel_does_not_support_take_the_reference() -> None:
    assert row_squared_norms.find_kernel(rows("meta", torch.float64)) is None
    assert row_squared_norms(rows("meta", torch.float64)).is_meta


def test_the_first_that_supports_the_arguments_is_taken(elsewhere: Implementation) -> None:
    second = register("row_squared_norms", device="meta", backend="other", run=seven, supports=lambda _: True)
    try:
        assert row_squared_norms.find_kernel(rows("meta")) is elsewhere
        assert row_squared_norms.find_kernel(rows("meta", torch.float64)) is second
    finally:
        second.remove()
    assert row_squared_norms.find_kernel(rows("meta", torch.float64)) is None


def test_off_takes_the_reference_on_every_device(elsewhere: Implementation) -> None:
    with levels.use_level("off"):
        assert row_squared_norms.find_kernel(rows(elsewhere.device)) is None
        assert row_squared_norms.find_kernel(rows("cpu")) is None


def test_a_registration_can_be_taken_back(elsewhere: Implementation) -> None:
    elsewhere.remove()
    assert row_squared_norms.find_kernel(rows("meta")) is None
    registry._IMPLEMENTATIONS["row_squared_norms", "meta"].append(elsewhere)


def test_an_unknown_operation_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"Expected an operation among row_squared_norms, .*got 'row_norms'"):
        register("row_norms", device="cpu", backend="fake", run=seven, supports=lambda _: True)


def test_every_contract_has_a_reference_and_every_c_kernel_a_contract() -> None:
    assert [operation.name for operation in DECLARED] == list(CONTRACTS)
    assert [run.__name__ for run, _ in KERNELS] == [name for name in CONTRACTS if name not in NOT_IN_C]
    assert all(operation.__doc__ and "Checked by: tests/" in operation.__doc__ for operation in DECLARED)
