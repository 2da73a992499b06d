"""Kernels for what torch is slow at: a registry of operations, and their implementations in C.

Every operation has a torch reference, which is what a kernel is checked against and what runs where there is none.
"""

from quietgrad._kernels import c_backend as c_backend
from quietgrad._kernels import triton_backend as triton_backend
