"""The process group of the ranks."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist


def process_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return the given group or the default one.

    Raises:
        ValueError: there is no group, or this process is not in it.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError(
            "torch.distributed has no process group. Start the script with torchrun and call "
            'dist.init_process_group("gloo") (or "nccl") first.'
        )
    found = dist.group.WORLD if group is None else group
    assert found is not None, "an initialised torch.distributed has a default group"
    if dist.get_rank(found) < 0:
        raise ValueError("This process is not in `group`. Use the group on its own ranks only.")
    return found


def patient_group(group: dist.ProcessGroup | None, timeout: float) -> dist.ProcessGroup:
    """Return a group of the same ranks that waits so many seconds; all of them call this together."""
    ranks = dist.get_process_group_ranks(process_group(group))
    made = dist.new_group(ranks, timeout=timedelta(seconds=timeout), use_local_synchronization=True)
    assert isinstance(made, dist.ProcessGroup), "this process is in the group that it asks for"
    return made


def first_rank(group: dist.ProcessGroup) -> int:
    """Return the group's rank 0 as torch numbers it globally."""
    return dist.get_global_rank(group, 0)


def message_device(group: dist.ProcessGroup) -> torch.device:
    """Return the device of the group's messages: nccl sends from the GPU only."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
