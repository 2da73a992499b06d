"""Data-parallel private training on torch.distributed: one draw, one release, one ε, on every rank."""

from quietgrad.distributed.all_reduce import AllReduce
from quietgrad.distributed.weights import copy_weights
from quietgrad.reduction import Reducer, SingleProcess

__all__ = ["AllReduce", "Reducer", "SingleProcess", "copy_weights"]
