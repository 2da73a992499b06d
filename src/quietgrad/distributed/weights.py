"""The same model on every rank."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from quietgrad.distributed.group import first_rank, process_group


def copy_weights(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Give every rank rank 0's parameters and buffers, before the Privatizer and the optimizer are made."""
    ranks = process_group(group)
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            sent = tensor.detach().contiguous()
            dist.broadcast(sent, first_rank(ranks), group=ranks)
            tensor.copy_(sent)
