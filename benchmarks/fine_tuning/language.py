"""SmolLM2-135M with LoRA on SST-2's sentences: perplexity on those of the dev part, before and after."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from benchmarks.memory import high_water
from quietgrad.integrations.pretrained import causal_model
from quietgrad.lab.data.catalogue import READERS, locate
from quietgrad.lab.data.files import read_bytes, require

DELTA = 1e-5
TOKENS = 48
DEV = 150
MICRO_BATCH = 16
RATE = 3e-3
"""Not searched for: one value for private and ordinary training."""


def language(epsilon: float | None, *, steps: int, batch: int) -> dict[str, Any]:
    """Train with ε, without privacy (0), or not at all (None)."""
    import peft

    torch.manual_seed(0)
    plain, tokenizer = causal_model("smollm2")
    adapters = peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    model = peft.get_peft_model(plain, adapters)
    train = _sentences(tokenizer, "train", None)
    if epsilon is not None:
        _train(model, train, epsilon, steps, batch)
    return {
        "records": len(train),
        "passes": 0 if epsilon is None else steps * batch,
        "perplexity": round(perplexity(model, _sentences(tokenizer, "dev", DEV)), 2),
        "megabytes": round(high_water() / 2**20),
    }


def _train(model: nn.Module, data: TensorDataset, epsilon: float, steps: int, batch: int) -> None:
    batches = qg.PoissonBatches(data, rate=batch / len(data), steps=steps)
    method = qg.methods.dp_sgd(clip=1.0)
    # Without noise and with a clip that no gradient reaches it is ordinary training.
    mechanism = (
        qg.calibrate(method, batches, epsilon=epsilon, delta=DELTA)
        if epsilon
        else qg.methods.dp_sgd(clip=1e6).with_noise(0.0)
    )
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=RATE)
    with qg.Privatizer(model, mechanism, batches) as private:
        for drawn in batches:
            for (ids,) in drawn.split(MICRO_BATCH):
                private.backward(token_losses(model, ids))
            private.release()
            optimizer.step()


def token_losses(model: nn.Module, ids: Int64[Tensor, "n t"]) -> Float[Tensor, " n"]:
    """The mean loss of each sentence's next tokens; −1 is padding."""
    ids = ids[:, : max(2, int(ids.ge(0).sum(1).max()))]
    labels = ids[:, 1:]
    outputs = model(input_ids=ids.clamp_min(0), attention_mask=ids.ge(0).long(), use_cache=False)
    logits = outputs.logits[:, :-1].transpose(1, 2)
    each = F.cross_entropy(logits, labels.clamp_min(0), reduction="none") * labels.ge(0)
    return each.sum(1) / labels.ge(0).sum(1).clamp_min(1)


@torch.no_grad()
def perplexity(model: nn.Module, data: TensorDataset) -> float:
    """exp of the mean over sentences of their mean token losses."""
    (ids,) = data.tensors
    return math.exp(float(torch.cat([token_losses(model, few) for few in ids.split(MICRO_BATCH)]).mean()))


def _sentences(tokenizer: Any, part: str, most: int | None) -> TensorDataset:
    """Token numbers by length, so that the micro-batches of a draw need little padding."""
    lines = read_bytes(require(locate(READERS["sst2"], None), f"{part}.tsv")).decode().splitlines()[1:]
    chosen = np.random.default_rng(0).permutation(len(lines))[:most]
    found = tokenizer([lines[row].rpartition("\t")[0] for row in chosen], truncation=True, max_length=TOKENS)
    rows = torch.full((len(chosen), TOKENS), -1)
    for row, ids in enumerate(sorted(found["input_ids"], key=len)):
        rows[row, : len(ids)] = torch.tensor(ids)
    return TensorDataset(rows)
