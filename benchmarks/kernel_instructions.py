"""How many instructions the C kernels take, counted by valgrind: the same number on a busy machine and an idle one.

    python -m benchmarks.kernel_instructions             a table: counted now, and as recorded
    python -m benchmarks.kernel_instructions --record    writes what was counted to kernel_instructions.json

Each kernel runs once on fixed shapes in one thread, in a small C program that opens the built library. valgrind knows
no AVX-512, so the levels are portable and AVX2. Counts depend on the compiler, which is recorded with them; those of
another compiler are not compared. Instructions are no time: a kernel that waits for memory takes longer at the same
count.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from quietgrad._kernels.levels import LEVELS, levels
from quietgrad._kernels.library import load_library

KERNELS = (
    "qg_sums_of_products",
    "qg_gram_sums",
    "qg_conv_grads",
    "qg_row_squares",
    "qg_row_sums",
    "qg_norm_rows",
    "qg_add_steps",
    "qg_key_stream",
)
SOURCE = Path(__file__).with_suffix(".c")
RECORD = Path(__file__).with_suffix(".json")
TOLERANCE = 0.02
"""What a count may rise by: the first calls of the C library's own functions are in it."""

Counts = dict[str, int]


def why_not() -> str:
    """Say why nothing can be counted here; empty if it can."""
    missing = [program for program in ("valgrind", "cc") if shutil.which(program) is None]
    return (
        f"there is no {' and no '.join(missing)}" if missing else "" if levels() else "there are no C kernels"
    )


def compiler() -> str:
    """Return which compiler made the library, as it says in it."""
    found = re.search(
        rb"GCC: \([^)]*\) [0-9.]+|clang version [0-9.]+", Path(load_library()._name).read_bytes()
    )
    return "unknown" if found is None else found.group().decode()


def recorded() -> Counts:
    """Return what was counted with this compiler before; nothing if it was another one."""
    found = json.loads(RECORD.read_text(encoding="utf-8"))
    return dict(found["counts"]) if found["compiler"] == compiler() else {}


def count() -> Counts:
    """Count the instructions of each kernel at each level that valgrind knows."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "kernel_instructions"
        subprocess.run(["cc", "-O1", "-o", program, SOURCE, "-ldl"], check=True)
        return {
            f"{kernel} {LEVELS[level]}": _count(program, kernel, level)
            for kernel in KERNELS
            for level in range(min(2, len(levels())))
        }


def _count(program: Path, kernel: str, level: int) -> int:
    command = [
        "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", f"--toggle-collect={kernel}",
        str(program), load_library()._name, kernel, str(level),
    ]  # fmt: skip
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    found = re.search(r"Collected : (\d+)", said)
    assert found is not None, said
    return int(found.group(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--record", action="store_true", help="write the counts")
    options = parser.parse_args()
    if why_not():
        sys.exit(f"Nothing is counted: {why_not()}.")
    counts, before = count(), recorded() if RECORD.exists() else {}
    print(f"{'kernel':32}{'instructions':>14}{'recorded':>14}")
    for name, instructions in counts.items():
        print(f"{name:32}{instructions:14,}{before.get(name, 0):14,}")
    if options.record:
        record = {"compiler": compiler(), "counts": counts}
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
