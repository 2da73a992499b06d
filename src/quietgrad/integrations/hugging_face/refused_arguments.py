"""Refuse Trainer arguments under which ε would not hold.

Each is refused by its name, with the reason and the remedy.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from transformers import DataCollatorWithFlattening, TrainingArguments

from quietgrad._errors import PrivacyError


class Rule(NamedTuple):
    """Describe a setting that is refused; `broken` says whether the arguments have it."""

    name: str
    broken: Callable[[TrainingArguments], bool]
    reason: str


RULES = (
    Rule(
        "train_sampling_strategy='group_by_length'",
        lambda a: a.train_sampling_strategy in ("group_by_length", "batch_rebalance"),
        "ε counts on every record being drawn on its own with the same probability. Leave it out.",
    ),
    Rule(
        "train_sampling_strategy='sequential'",
        lambda a: a.train_sampling_strategy == "sequential",
        "ε counts on random draws of which nobody knows the outcome. Leave it out.",
    ),
    Rule(
        "dataloader_drop_last",
        lambda a: a.dataloader_drop_last,
        "Poisson draws have no last batch, and dropping drawn records breaks their probability. Leave it out.",
    ),
    Rule(
        "auto_find_batch_size",
        lambda a: a.auto_find_batch_size,
        "the budget is planned for one batch size, and when memory runs out depends on the drawn records. Lower "
        "per_device_train_batch_size (the micro-batch) and raise gradient_accumulation_steps.",
    ),
    Rule(
        "fp16",
        lambda a: a.fp16,
        "its GradScaler scales losses, which moves the clip. Use bf16=True.",
    ),
    Rule(
        "optim",
        lambda a: str(getattr(a.optim, "value", a.optim)).endswith(("lomo", "layerwise")),
        "this optimizer steps inside the backward, before there is any noise. Use adamw_torch or another one that "
        "steps afterwards.",
    ),
    Rule(
        "include_num_input_tokens_seen",
        lambda a: a.include_num_input_tokens_seen not in ("no", False),
        "the number of drawn tokens is private. Leave it out.",
    ),
    Rule(
        "neftune_noise_alpha",
        lambda a: a.neftune_noise_alpha is not None,
        "its scale depends on the longest record of the batch, which mixes records. Leave it out.",
    ),
    Rule(
        "torch_compile",
        lambda a: a.torch_compile,
        "per-example gradients are captured by hooks, which a compiled model does not call. Leave it out.",
    ),
    Rule(
        "use_liger_kernel",
        lambda a: a.use_liger_kernel,
        "fused kernels hide activations from the capture of per-example gradients. Leave it out.",
    ),
    Rule(
        "debug='underflow_overflow'",
        lambda a: bool(a.debug),
        "it prints activations of private records. Leave it out.",
    ),
    Rule(
        "deepspeed",
        lambda a: a.deepspeed is not None,
        "it reduces gradients of the batch before they are private. Launch without it.",
    ),
    Rule(
        "fsdp",
        lambda a: bool(a.fsdp),
        "Trainer would shard the model before it is private. Train with LoRA or RGP, or use fully_shard and "
        "qg.Privatizer(reducer=qg.distributed.Sharded()) in a loop of your own.",
    ),
)


def refuse_arguments(args: TrainingArguments) -> None:
    """Refuse them before anything is set up.

    Raises:
        PrivacyError: an argument breaks the guarantee.
    """
    for rule in RULES:
        if rule.broken(args):
            raise PrivacyError(f"TrainingArguments({rule.name}) is refused: {rule.reason}")
    _refuse_devices(args)


def refuse_collator(collator: Any) -> None:
    """Refuse a collator that makes one row of several records: no record is left by itself."""
    if isinstance(collator, DataCollatorWithFlattening):
        raise PrivacyError(
            "DataCollatorWithFlattening joins records to one row, so that no gradient of one record exists. Use a "
            "collator that pads."
        )


def refuse_records(dataset: Any) -> None:
    """Refuse records without numbers, which Poisson draws need."""
    if dataset is None or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ValueError(
            "train_dataset has to be map-style (__len__ and __getitem__): records are drawn at random by their number. "
            "Load a streamed data set into memory or files first."
        )


def _refuse_devices(args: TrainingArguments) -> None:
    if args.n_gpu > 1:
        raise PrivacyError(
            f"{args.n_gpu} GPUs are visible to one process, where Trainer takes torch.nn.DataParallel, which splits "
            "every call of the model. Start one process for each: accelerate launch --num_processes "
            f"{args.n_gpu} script.py, or set CUDA_VISIBLE_DEVICES=0."
        )


def refuse_plugins(kind: str, processes: int) -> None:
    """Refuse what accelerate was configured to do with the model.

    Args:
        kind: the accelerator's `distributed_type`.
        processes: that the accelerator knows of.

    Raises:
        PrivacyError: it shards the model, moves gradients before they are private, or misses processes.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != processes:
        raise PrivacyError(
            f"accelerate or torchrun launched {launched} processes, but the Trainer knows of {processes}: each would "
            "train a model of its own. On a machine without GPUs set ACCELERATE_USE_CPU=true."
        )
    if kind not in ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU"):
        raise PrivacyError(
            f"accelerate was configured with {kind}, and PrivateTrainer trains in one process or with plain data "
            "parallelism. Launch without the plugin; for a sharded model use fully_shard and "
            "qg.Privatizer(reducer=qg.distributed.Sharded()) in a loop of your own."
        )
