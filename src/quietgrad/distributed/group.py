"""The process group of the ranks."""

from __future__ import annotations

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


def first_rank(group: dist.ProcessGroup) -> int:
    """Return the group's rank 0 as torch numbers it globally."""
    return dist.get_global_rank(group, 0)


def message_device(group: dist.ProcessGroup) -> torch.device:
    """Return the device of the group's messages: nccl sends from the GPU only."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
