"""A step of a 135M-parameter language model: time and memory, by what trains, rank, length and batch.

The architecture is SmolLM2-135M's, the weights are random (a step costs the same). Each row is measured in a process of
its own, whose peak is then that row's alone:

    python -m benchmarks.fine_tuning.scale lora --rank 4 --length 32 --batch 8
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import torch
from torch import nn

import quietgrad as qg
from benchmarks import contenders
from benchmarks.memory import high_water, resident
from benchmarks.models import Setting, words
from benchmarks.more_models import Logits, next_word
from quietgrad._independence.in_loop import FIRST

VOCABULARY = 49_152
VARIANTS = ("plain_lora", "lora", "opacus_lora", "rgp", "plain_full", "full", "opacus_full", "lora_bf16")
LARGER = ((16, 32, 4), (4, 96, 4), (4, 32, 12))
ROWS = (
    *((variant, 4, 32, 4) for variant in VARIANTS[:-1]),
    *((variant, *larger) for larger in LARGER for variant in ("lora", "opacus_lora", "rgp")),
    ("lora_bf16", 4, 32, 4),
)
"""(variant, rank, tokens, sentences): from the first, one of them larger at a time. Some processors have no bf16."""
STEPS = 5
"""Those that are timed: they follow the first ones, which are checked more."""


def smollm2(rank: int | None, dtype: torch.dtype = torch.float32) -> nn.Module:
    """SmolLM2-135M, whole or frozen with LoRA adapters; its output matrix is the table of its words."""
    import peft
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(dtype)
    if rank is None:
        return Logits(model)
    adapters = peft.LoraConfig(r=rank, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    return Logits(peft.get_peft_model(model, adapters))


def setting(variant: str, rank: int, length: int, batch: int) -> Setting:
    """The model of a variant and its batch."""
    adapted = rank if "lora" in variant else None
    dtype = torch.bfloat16 if variant.endswith("bf16") else torch.float32
    return Setting(variant, lambda: smollm2(adapted, dtype), batch, words(VOCABULARY, length), next_word)


def step_of(variant: str, rank: int, chosen: Setting) -> contenders.Step:
    """One step, private unless the variant is a plain one."""
    if variant.startswith("plain"):
        return contenders.plain(chosen)
    if variant.startswith("opacus"):
        return contenders.opacus(chosen, "hooks")
    return contenders.quietgrad(chosen, method=qg.methods.rgp(rank=rank) if variant == "rgp" else None)


def measured(variant: str, rank: int, length: int, batch: int) -> dict[str, Any]:
    """Processor seconds of the first step and of the fastest later one, megabytes of the peak above an empty process.

    quietgrad asks about the first micro-batches (`FIRST`), later about one in 256.
    """
    torch.manual_seed(0)
    before = resident()
    step = step_of(variant, rank, setting(variant, rank, length, batch))
    first, *others = [_seconds(step) for _ in range(FIRST + STEPS)]
    return {
        "first_seconds": round(first, 2),
        "step_seconds": round(min(others[-STEPS:]), 2),
        "megabytes": round((high_water() - before) / 2**20),
    }


def _seconds(step: contenders.Step) -> float:
    begun = time.process_time()
    step()
    return time.process_time() - begun


def alone(variant: str, rank: int, length: int, batch: int) -> dict[str, Any]:
    """`measured` in a process of its own; what it died of if it did."""
    numbers = ("--rank", str(rank), "--length", str(length), "--batch", str(batch))
    command = [sys.executable, "-m", "benchmarks.fine_tuning.scale", variant, *numbers]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["killed"])[-1][:200]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("variant", choices=VARIANTS)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--batch", type=int, default=4)
    given = parser.parse_args()
    print(json.dumps(measured(given.variant, given.rank, given.length, given.batch)))


if __name__ == "__main__":
    main()
