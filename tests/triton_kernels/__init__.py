"""Triton kernels in the interpreter, and compiled without a GPU."""
