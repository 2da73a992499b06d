"""Compile the Triton kernels for GPUs that need not be there; print registers, spills and shared memory.

    python -m benchmarks.gpu_code                a table
    python -m benchmarks.gpu_code --json         the same to read by a program

A spill means that a program keeps values in slow memory because it has too few registers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

# Read where triton is imported: compiled functions, products and sums rounded one by one.
os.environ.pop("TRITON_INTERPRET", None)
os.environ["TRITON_DEFAULT_FP_FUSION"] = "0"

TARGETS = {
    "sm_80": ("cuda", 80, 32),  # A100
    "sm_90": ("cuda", 90, 32),  # H100
    "gfx942": ("hip", "gfx942", 64),  # MI300
}


@dataclass(frozen=True)
class Kernel:
    """A kernel as it is launched.

    Args:
        types: of its arguments, in Triton's words.
        constants: its compile-time arguments.
    """

    name: str
    function: Any
    types: dict[str, str]
    constants: dict[str, Any]
    warps: int = 4


@dataclass(frozen=True)
class Compiled:
    """What a compiler made of a kernel.

    Args:
        registers: of a thread.
        spills: bytes (NVIDIA) or registers (AMD) that did not fit.
        shared: bytes of a program.
    """

    kernel: str
    target: str
    registers: int
    spills: int
    shared: int


def kernels() -> Iterator[Kernel]:
    """Every kernel with the constants of its launches."""
    from quietgrad._kernels import triton_noise

    noise_code = import_module("quietgrad._kernels.triton_code.noise_code")
    from quietgrad._noise.rounded_gaussian import default

    tables, pointer = default().tables, "*i32"
    pieces = {"TENTS": tables.tents, "BITS": tables.log_apart, "B": triton_noise.WIDTH}
    lists = dict.fromkeys(("out", "places", "slots", "found"), pointer)
    keyed = {"key": "*u32", "centre": "*i8"}
    yield Kernel(
        "tents", noise_code.tents, {**lists, **keyed, "first": "i64", "n": "i32", "room": "i32"}, pieces
    )
    left = dict.fromkeys(("left", "left_slots", "left_trials", "left_found"), pointer)
    sizes = {"first": "i64", "room": "i32", "left_room": "i32"}
    yield Kernel(
        "boxes",
        noise_code.boxes,
        {**lists, **left, **keyed, "box": pointer, "level": "*fp32", **sizes},
        {
            **pieces,
            "LOG_STD": tables.log_std,
            "BOXES": tables.boxes,
            "HEIGHT": tables.height,
            "MARGIN": tables.margin,
        },
    )

    yield from norm_kernels()


def norm_kernels() -> Iterator[Kernel]:
    """Norms and sums; products in both precisions."""
    from quietgrad._kernels import triton_norms
    from quietgrad._kernels.rounding import CORE_POSITIONS

    norm_code = import_module("quietgrad._kernels.triton_code.norm_code")

    tiles, single, double = triton_norms.TILES, "*fp32", "*fp64"
    columns = tiles.row // tiles.samples
    yield Kernel(
        "row_squares",
        norm_code.row_squares,
        {"rows": single, "out": double, "p": "i64"},
        {"SPAN": triton_norms.SPAN, "BLOCK": tiles.row},
    )
    yield Kernel(
        "weighted_columns",
        norm_code.weighted_columns,
        {"weights": double, "rows": single, "out": double, "n": "i32", "p": "i64"},
        {"ROWS": tiles.samples, "BLOCK": columns},
    )
    yield Kernel(
        "norm_rows",
        norm_code.norm_rows,
        {**dict.fromkeys(("x", "b", "mean", "scale", "gamma", "beta"), single), "count": "i32", "d": "i32"},
        {"T": tiles.samples, "D": columns},
    )
    sizes = dict.fromkeys(("count", "i", "o"), "i32")
    side = {"WI": tiles.formed, "WO": tiles.formed, "T": tiles.positions, "WIDE": False}
    for kind, run in (("fp32", 256), ("bf16", CORE_POSITIONS)):
        factors = {"a": f"*{kind}", "b": f"*{kind}"}
        yield Kernel(
            f"gram_tiles {kind}",
            norm_code.gram_tiles,
            {**factors, "out": double, **sizes},
            {"T": tiles.gram, "D": tiles.depth, "DEPTH": triton_norms.DEPTH, "WIDE": False},
        )
        yield Kernel(
            f"formed_tiles {kind}",
            norm_code.formed_tiles,
            {**factors, "out": double, **sizes},
            {**side, "RUN": run},
            warps=8,
        )
    yield Kernel(
        "run_products",
        norm_code.run_products,
        {
            **dict.fromkeys(("b", "a", "weights"), single),
            **dict.fromkeys(("starts", "ends"), "*i32"),
            "out": double,
            **dict.fromkeys(("runs", "positions", "i", "o"), "i32"),
        },
        {"WI": tiles.formed, "WO": tiles.formed, "T": tiles.positions},
        warps=8,
    )


def compile_for(kernel: Kernel, target: str) -> Compiled:
    """Compile one kernel for one kind of GPU."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.function.arg_names
    types = {**kernel.types, **dict.fromkeys(kernel.constants, "constexpr")}
    source = ASTSource(
        kernel.function,
        {name: types[name] for name in names},
        constexprs={(names.index(name),): value for name, value in kernel.constants.items()},
    )
    made = triton.compile(source, target=GPUTarget(*TARGETS[target]), options={"num_warps": kernel.warps})
    registers, spills = _of_ptx(made.asm["ptx"]) if "ptx" in made.asm else _of_amd(made.asm["amdgcn"])
    return Compiled(kernel.name, target, registers, spills, int(made.metadata.shared))


def _of_ptx(ptx: str) -> tuple[int, int]:
    """Ask NVIDIA's assembler, which the package brings, for registers and bytes of spills."""
    from triton.backends.nvidia.compiler import get_ptxas

    arch = re.search(r"\.target (sm_(\d+)\w*)", ptx)
    assert arch is not None, "PTX names its target"
    assembler = get_ptxas(int(arch[2])).path
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.ptx"
        file.write_text(ptx)
        command = [assembler, "-v", f"-arch={arch[1]}", str(file), "-o", str(file.with_suffix(".cubin"))]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode:
            raise RuntimeError(f"ptxas failed: {ran.stderr[-500:]}")
    stored = sum(map(int, re.findall(r"(\d+) bytes spill", ran.stderr)))
    return max(map(int, re.findall(r"Used (\d+) registers", ran.stderr))), stored


def _of_amd(assembly: str) -> tuple[int, int]:
    found = {name: int(value) for name, value in re.findall(r"\.(\w+_count):\s+(\d+)", assembly)}
    return found["vgpr_count"], found["vgpr_spill_count"] + found["sgpr_spill_count"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", nargs="*", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--kernels", nargs="*", help="some names; all if left out")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    chosen = [kernel for kernel in kernels() if not args.kernels or kernel.name in args.kernels]
    results = [compile_for(kernel, target) for kernel in chosen for target in args.targets]
    if args.json:
        print(json.dumps([asdict(result) for result in results], indent=1))
        return
    print(f"{'kernel':24}{'target':>8}{'registers':>11}{'spills':>8}{'shared bytes':>14}")
    for r in results:
        print(f"{r.kernel:24}{r.target:>8}{r.registers:11}{r.spills:8}{r.shared:14}")


if __name__ == "__main__":
    main()
