"""Federated training: clients send encoded updates, the server clips, sums and noises them like gradients."""

import warnings
from typing import Any

from quietgrad.federated.client import encode_update, noised_update, train_locally
from quietgrad.federated.rounds import Task
from quietgrad.federated.server import FederatedServer
from quietgrad.federated.shared_start import restore_task, shorten_task
from quietgrad.federated.shares import Shares

__all__ = [
    "FederatedServer",
    "Shares",
    "Task",
    "encode_update",
    "noised_update",
    "restore_task",
    "shorten_task",
    "train_locally",
]

_RENAMED = {"shortened": "shorten_task", "restored": "restore_task"}
"""Names of 0.2, which leave in 0.4."""


def __getattr__(name: str) -> Any:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = _RENAMED[name]
    warnings.warn(
        f"qg.federated.{name} is deprecated and leaves in 0.4. Use {new}.", DeprecationWarning, stacklevel=2
    )
    return globals()[new]
