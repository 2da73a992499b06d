"""Federated training: clients send encoded updates, the server clips, sums and noises them like gradients."""

from quietgrad.federated.client import encode_update, noised_update, train_locally
from quietgrad.federated.rounds import Task
from quietgrad.federated.server import FederatedServer
from quietgrad.federated.shared_start import restored, shortened
from quietgrad.federated.shares import Shares

__all__ = [
    "FederatedServer",
    "Shares",
    "Task",
    "encode_update",
    "noised_update",
    "restored",
    "shortened",
    "train_locally",
]
