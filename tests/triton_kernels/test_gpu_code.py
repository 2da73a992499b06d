"""Every kernel compiles for NVIDIA's and AMD's GPUs, and keeps its values in registers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.triton_kernels.interpreter import needs_triton

pytestmark = [needs_triton, pytest.mark.slow]
MOST_REGISTERS = {
    "tents": 64,
    "boxes": 64,
    "row_squares": 96,
    "weighted_columns": 128,
    "norm_rows": 128,
    "gram_tiles fp32": 255,
    "formed_tiles fp32": 255,
    "gram_tiles bf16": 255,
    "formed_tiles bf16": 255,
    "run_products": 255,
}
"""More would leave too few programs on a processor at once."""


@pytest.fixture(scope="module")
def compiled() -> list[dict[str, int | str]]:
    # In a process of its own: this one may import triton for the interpreter, which then compiles nothing.
    command = [sys.executable, "-m", "benchmarks.gpu_code", "--json"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, int | str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
def test_every_kernel_compiles_without_spills(compiled: list[dict[str, int | str]], target: str) -> None:
    mine = {str(row["kernel"]): row for row in compiled if row["target"] == target}
    assert mine.keys() == MOST_REGISTERS.keys()
    for name, row in mine.items():
        print(f"{name} on {target}: {row['registers']} registers, {row['shared']} bytes shared")
        assert row["spills"] == 0, row
        assert int(row["registers"]) <= MOST_REGISTERS[name], row
