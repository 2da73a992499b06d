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
        pad_to: the number of tokens to which every record is padded or cut. If left out, the collator's `max_length`,
            or the most that tokenizer and model take, up to 512. "longest" pads to the longest record of each
            micro-batch, which is data; `trainer.private.explain()` then says so.

    Example:
        privacy = PrivacyArguments(epsilon=8.0, delta=1e-5, method=qg.methods.rgp(rank=4))
    """

    epsilon: float = field(metadata={"help": "Privacy budget of the whole training."})
    delta: float = field(metadata={"help": "Well below 1 / number of training records."})
    method: Mechanism | None = field(default=None, metadata={"help": "In Python only: a mechanism."})
    ledger: str | None = field(default=None, metadata={"help": "File of the ledger of releases."})
    memory_budget: int | None = field(default=None, metadata={"help": "Bytes for per-example gradients."})
    pad_to: int | str | None = field(
        default=None, metadata={"help": "Tokens that every record is padded or cut to, or 'longest'."}
    )

    def __post_init__(self) -> None:
        if self.pad_to is None or self.pad_to == "longest":
            return
        if not str(self.pad_to).isdigit() or int(self.pad_to) < 1:
            raise ValueError(f"Expected pad_to to be a length >= 1 or 'longest', got {self.pad_to!r}.")
        self.pad_to = int(self.pad_to)
