"""The optional C library of quietgrad._kernels; everything else is in pyproject.toml.

A machine without a compiler installs quietgrad without it, and one without OpenMP gets it single-threaded.
"""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, PlatformError

NATIVE = Path("src/quietgrad/_kernels/native")
FLAGS = [
    "-std=gnu11",
    "-O3",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
]
"""Contracted products would differ in the last bit between processors; kernels ask for them where they may."""


class BuildKernels(build_ext):
    """With OpenMP where the compiler has it."""

    def build_extension(self, ext: Extension) -> None:
        try:
            ext.extra_compile_args, ext.extra_link_args = [*FLAGS, "-fopenmp"], ["-fopenmp"]
            super().build_extension(ext)
        except (CCompilerError, PlatformError):
            ext.extra_compile_args, ext.extra_link_args = FLAGS, []
            super().build_extension(ext)


setup(
    ext_modules=[
        Extension(
            "quietgrad._kernels._native",
            sources=sorted(map(str, NATIVE.glob("*.c"))),
            depends=sorted(map(str, NATIVE.glob("*.h"))),
            libraries=["m"] if os.name == "posix" else [],
            py_limited_api=True,
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernels},
)
