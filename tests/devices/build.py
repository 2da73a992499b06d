"""Compile the stand-in device once for each version of torch: `python -m tests.devices.build`."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("stand_in.cpp")


def compiled_library() -> Path:
    """Return where the compiled device of this source and this torch lies, whether or not it is there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quietgrad-tests"
    version = f"{torch.__version__}-py{sys.version_info.major}{sys.version_info.minor}"
    return cache / f"standin-{version}-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}.so"


def build() -> Path | None:
    """Return the compiled device, compiled now if it was not; None without a C++ compiler."""
    library = compiled_library()
    if library.exists():
        return library
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return None
    library.parent.mkdir(parents=True, exist_ok=True)
    part = library.with_suffix(
        f".{os.getpid()}.part"
    )  # renamed when whole: others may build at the same time
    torch_folder = Path(torch.__file__).parent
    include = torch_folder / "include"
    command = [
        *(compiler, "-O0", "-g0", "-w", "-fPIC", "-shared", "-std=c++20"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-I{include}", f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}", str(SOURCE)),
        *(f"-L{torch_folder / 'lib'}", "-ltorch_cpu", "-lc10", "-o", str(part)),
    ]
    subprocess.run(command, check=True)
    part.rename(library)
    return library


if __name__ == "__main__":
    print(build() or "No C++ compiler (g++ or clang++): tests/devices will be skipped.")
