"""Data-parallel private training on torch.distributed: one draw, one release, one ε, on every rank."""

from quietgrad._collective import Reducer, SingleProcess
from quietgrad.distributed.all_reduce import AllReduce
from quietgrad.distributed.sharded import Sharded
from quietgrad.distributed.weights import copy_weights

__all__ = ["AllReduce", "Reducer", "Sharded", "SingleProcess", "copy_weights"]
