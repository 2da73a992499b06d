"""Ordinary training on the labelled public part: the row "public only", and the start it gives to any method."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from quietgrad.lab.data import Parts
from quietgrad.lab.errors import LabError

STEPS, BATCH, LEARNING_RATE = 300, 50, 1e-3


def train_on_public(model: nn.Module, parts: Parts) -> None:
    """A few hundred Adam steps on public examples with their labels; costs no privacy."""
    labels = parts.public_labels
    if labels is None or len(parts.public) == 0:
        raise LabError(
            "A warm start on public data needs labels. Set data.public = N and data.public_labels = true."
        )
    inputs = parts.public_inputs
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for _ in range(STEPS):
        rows = torch.randint(len(inputs), (min(BATCH, len(inputs)),))
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    model.zero_grad(set_to_none=True)
