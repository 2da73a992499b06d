"""Triton kernels, registered for GPUs: they run where the package triton is installed.

Device code is imported at the first call, because triton takes a second to import and few programs need it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quietgrad._kernels import triton_noise, triton_norms
from quietgrad._kernels.levels import TRITON_DEVICES, triton_is_installed
from quietgrad._kernels.registry import register

KERNELS: tuple[tuple[Callable[..., Any], Callable[..., bool]], ...] = (
    (triton_norms.row_squared_norms, triton_norms.is_single),
    (triton_norms.weighted_rows, lambda _, rows: triton_norms.is_single(rows)),
    (triton_norms.products_in_runs, lambda b, a, *_: triton_norms.is_single(a, b) and a.numel() > 0),
    (triton_norms.gram_sums, lambda a, b, _: triton_norms.is_single(a, b) and a.numel() > 0),
    (triton_norms.norm_gradients, triton_norms.is_single),
    (triton_noise.keyed_trials, lambda *_: True),
)
"""Each kernel has the name of its operation; beside it, which arguments it takes."""


def _where_installed(supports: Callable[..., bool]) -> Callable[..., bool]:
    return lambda *args, **kwargs: triton_is_installed() and supports(*args, **kwargs)


for _device in TRITON_DEVICES:
    for _run, _supports in KERNELS:
        register(
            _run.__name__, device=_device, backend="Triton", run=_run, supports=_where_installed(_supports)
        )
