"""What a private run needs beside TrainingArguments."""

from __future__ import annotations

from dataclasses import dataclass, field

from quietgrad._mechanism.mechanism import Mechanism


@dataclass
class PrivacyArguments:
    """The privacy budget of a run, beside TrainingArguments.

    HfArgumentParser reads all fields but the method.

    Args:
        epsilon: of the whole training.
        delta: below 1 / records.
        method: any mechanism of `qg.methods`, `dp_sgd(clip=1.0)` if left out; its noise is calibrated.
        ledger: the file that holds every release, `ledger.jsonl` in the output folder if left out.
        memory_budget: bytes that per-example gradients may take at once.

    Example:
        privacy = PrivacyArguments(epsilon=8.0, delta=1e-5, method=qg.methods.rgp(rank=4))
    """

    epsilon: float = field(metadata={"help": "Privacy budget of the whole training."})
    delta: float = field(metadata={"help": "Well below 1 / number of training records."})
    method: Mechanism | None = field(default=None, metadata={"help": "In Python only: a mechanism."})
    ledger: str | None = field(default=None, metadata={"help": "File of the ledger of releases."})
    memory_budget: int | None = field(default=None, metadata={"help": "Bytes for per-example gradients."})
