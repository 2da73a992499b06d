"""Which implementation of an operation runs: a backend's for the device at hand, else the torch reference.

An *operation* is a function with a contract and a reference in torch, declared where the mathematics is:

    @operation()
    def row_squared_norms(rows): ...        # the reference

A *backend* registers its own implementation for a type of device, with a predicate over the arguments:

    register("row_squared_norms", device="cpu", backend="C", run=row_squares, supports=is_float32)

A call takes the first registered implementation that supports its arguments. There is always a reference to fall back
on, so a predicate may be as narrow as it likes. Results may differ by rounding; each implementation keeps the contract
with its own rounding bounds. `QUIETGRAD_KERNELS=off` takes the reference everywhere.

Checked by: tests/kernels/test_registry.py
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

from quietgrad._kernels.levels import kernels_are_off

CONTRACTS = {
    "row_squared_norms": "‖row‖² of every row in float64, never below the truth",
    "weighted_rows": "Σ_i w_i·row_i; a row of weight 0 adds exactly 0",
    "block_norms": "Σ over small blocks of ‖b_n a_nᵀ‖² in float64, never below the truth",
    "block_sums": "Σ_n w_n b_n a_nᵀ of small blocks in float64; a row of weight 0 adds exactly 0",
    "table_pairs": "values of equal ids of a sample added up in float32, in their order",
    "table_sums": "w·value of every entry added to its row of a table, in float64",
    "each_times": "rows_n · matrix, whose bits do not depend on the other samples",
    "lifted_rows": "scale·rows_n + thin_n · lifted, whose bits do not depend on the other samples",
    "products_in_runs": "Σ_n w_n Σ_t b_t a_tᵀ, each run in float32, runs in float64",
    "patch_products": "the same for the patches of a convolution's input",
    "gram_sums": "what a Gram norm needs of each sample, with the number of its roundings",
    "kernel_gradients": "every sample's gradient of a convolution kernel, and its squared norm",
    "norm_gradients": "every sample's gradients of a LayerNorm's scale and shift",
    "key_stream": "bytes of AES-256's key stream",
    "draw_tents": "points of tents under the Gaussian curve, and the places that want a box",
    "draw_boxes": "points of boxes, and which of them lie below the curve",
    "keyed_trials": "integers by key and index, and the places that are left for exact arithmetic",
    "add_steps": "scale·(round(x/γ) + z) of every coordinate",
}
"""Every operation that may have kernels, and what an implementation of it promises."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Implementation:
    """What one backend computes an operation with, on one type of device.

    Args:
        run: takes the operation's arguments and keeps its contract.
        supports: takes the same arguments; False leaves the call to the next implementation.
    """

    operation: str
    device: str
    backend: str
    run: Callable[..., Any]
    supports: Callable[..., bool]

    def remove(self) -> None:
        """Take the registration back, as a hook's handle does."""
        _IMPLEMENTATIONS[self.operation, self.device].remove(self)


_IMPLEMENTATIONS: dict[tuple[str, str], list[Implementation]] = {}


def register(
    operation: str,
    *,
    device: str,
    backend: str,
    run: Callable[..., Any],
    supports: Callable[..., bool],
) -> Implementation:
    """Add a backend's implementation of an operation; earlier ones are asked first.

    Args:
        operation: a key of `CONTRACTS`.
        device: a `torch.device.type`, as "cpu" or "cuda".
        backend: its name, as `explain()` prints it.
    """
    if operation not in CONTRACTS:
        raise ValueError(
            f"Expected an operation among {', '.join(CONTRACTS)}, got {operation!r}. "
            "Declare it with @operation() beside its torch reference and add its contract to CONTRACTS."
        )
    # Appended, not replaced: several backends may serve one device, each for the shapes and dtypes that it supports.
    implementation = Implementation(operation, device, backend, run, supports)
    _IMPLEMENTATIONS.setdefault((operation, device), []).append(implementation)
    return implementation


class Operation(Generic[Parameters, Result]):
    """A function whose torch reference may be replaced by a kernel, call by call."""

    def __init__(self, reference: Callable[Parameters, Result], device_of: Callable[..., str]) -> None:
        self.name, self.reference, self._device_of = reference.__name__, reference, device_of
        assert self.name in CONTRACTS, f"{self.name} has no contract in CONTRACTS"
        # Name, docstring and signature stay those of the reference, so that go-to-definition and `help` lead to the
        # mathematics.
        functools.update_wrapper(self, reference)

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        kernel = self.find_kernel(*args, **kwargs)
        return self.reference(*args, **kwargs) if kernel is None else kernel.run(*args, **kwargs)

    def find_kernel(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Implementation | None:
        """Return the implementation that these arguments take; None is the torch reference."""
        # Asked at every call of every layer: one look into a dict, and as a rule one predicate.
        for kernel in _IMPLEMENTATIONS.get((self.name, self._device_of(*args)), ()):
            if kernel.supports(*args, **kwargs) and not kernels_are_off():
                return kernel
        return None


def device_of_first(tensor: Any, *_: Any) -> str:
    """Return the type of the device on which an operation's first argument lies."""
    kind: str = tensor.device.type
    return kind


def on_the_cpu(*_: Any) -> str:
    """Return "cpu": the device of operations on numpy arrays."""
    return "cpu"


def operation(
    device_of: Callable[..., str] = device_of_first,
) -> Callable[[Callable[Parameters, Result]], Operation[Parameters, Result]]:
    """Declare a function in torch as the reference of the operation of its name.

    Args:
        device_of: of the positional arguments, the type of the device that they lie on.
    """
    return lambda reference: Operation(reference, device_of)
