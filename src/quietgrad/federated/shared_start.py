"""Tasks as differences from first weights that all clients have: from a public seed, or fetched once.

Freezing moves few weights, and most representations remember where (a mask) or the first weights themselves (RGP). Both
are short for a client that has the first weights. Lossless, and nothing here is private.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from quietgrad._gradients.blocks import Blocks
from quietgrad.federated.rounds import Task, pack, unpack

FROM_START, SHAPE, GAPS = "from start", "shape", "gaps"
"""Keys of what replaces a tensor in a message."""


def shorten_task(task: Task, start: Blocks) -> bytes:
    """Pack a task for clients that have the first weights.

    Args:
        task: of the round in progress.
        start: the first weights, `FederatedServer.start`.

    Returns:
        bytes for `restore_task`.
    """
    moved = {name: _changes(weight, start[name]) for name, weight in task.weights.items()}
    state = _map(task.state, lambda tensor: _abbreviated(tensor, start))
    content = {**asdict(task), "weights": moved, "state": state, "start": fingerprint(start)}
    return zlib.compress(pack(content), 9)


def restore_task(data: bytes, start: Blocks) -> Task:
    """Unpack what `shorten_task` or `Task.packed` made.

    Args:
        data: the message.
        start: the first weights of this client.

    Returns:
        the task.

    Raises:
        ValueError: the server has other first weights.
    """
    try:
        content = unpack(zlib.decompress(data))
    except zlib.error:
        return Task.unpacked(data)
    if content.pop("start") != fingerprint(start):
        raise ValueError(
            "The server's first weights are others than this client's. Build the model from the same public seed, or "
            "send whole weights (shared_start=False)."
        )
    weights = {name: _put_back(moved, start[name]) for name, moved in content["weights"].items()}
    return Task(**{**content, "weights": weights, "state": _map_back(content["state"], start)})


def fingerprint(weights: Blocks) -> str:
    """Return a hash of names, shapes, dtypes and bits."""
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype};".encode())
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _changes(weight: Tensor, start: Tensor) -> dict[str, Tensor]:
    # Bits and not values: −0 is another weight than 0, and a NaN is itself.
    changed = (_bits(weight) != _bits(start)).any(-1)
    return {"where": changed, "weights": weight[changed]}


def _put_back(moved: dict[str, Tensor], start: Tensor) -> Tensor:
    weight = start.clone()
    weight[moved["where"]] = moved["weights"]
    return weight


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().unsqueeze(-1).view(torch.uint8)


def _abbreviated(tensor: Tensor, start: Blocks) -> Any:
    for name, first in start.items():
        if (tensor.dtype, tensor.numel()) == (first.dtype, first.numel()) and torch.equal(
            tensor.flatten(), first.flatten()
        ):
            return {FROM_START: name, SHAPE: tuple(tensor.shape)}  # a kernel as a matrix, say
    if tensor.dtype == torch.int64 and tensor.dim() == 1:  # sorted positions have small gaps
        return {GAPS: torch.diff(tensor, prepend=tensor.new_zeros(1))}
    return tensor


def _map(value: Any, change: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _map(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_map(part, change) for part in value)
    return value


def _map_back(value: Any, start: Blocks) -> Any:
    if isinstance(value, dict):
        if value.keys() == {FROM_START, SHAPE}:
            return start[value[FROM_START]].clone().view(value[SHAPE])
        if value.keys() == {GAPS}:
            return value[GAPS].cumsum(0)
        return {key: _map_back(part, start) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_map_back(part, start) for part in value)
    return value
