"""MiniLM on SST-2, trained whole or in part: LoRA, RGP, BitFit, all weights; private, or not at all.

The classifier is a linear head, zero at first, on the mean over the tokens at unit length (as MiniLM was trained to be
read), without dropout. Learning rates are chosen on sentences that are held out of the training part, never on dev.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from benchmarks.fine_tuning.results import known, percent
from quietgrad.integrations.pretrained import model_folder
from quietgrad.integrations.text_folder import FolderTokens
from quietgrad.lab.data import load

DELTA = 1e-5
TOKENS = 48
MICRO_BATCH = 64
HELD_OUT = 1000
HEAD_RATE = 3e-2
"""The head's learning rate, the same for every way; that of the rest is what a search chooses."""

RATES = {
    "lora": (1e-3, 3e-3, 1e-2),
    "bitfit": (1e-3, 3e-3, 1e-2),
    "rgp": (1e-5, 3e-5, 1e-4),
    "full": (1e-5, 3e-5, 1e-4),
}
PLAIN_RATES = {"lora": (3e-3, 1e-2), "full": (1e-4, 3e-4)}
"""Without privacy, in steps of 32."""
PLAIN_BATCH = 32


class Task(NamedTuple):
    """Training sentences by length, those held out of them, and the dev part."""

    train: TensorDataset
    held_out: TensorDataset
    dev: TensorDataset


@cache
def sentences() -> Task:
    """In the order of their lengths: a draw comes in that order, so that micro-batches need little padding.

    Which sentences are drawn has nothing to do with the order they lie in.
    """
    data = load("sst2", words=FolderTokens("minilm", TOKENS))
    ids, labels = data.private.tensors
    shuffled = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
    held_out, train = shuffled[:HELD_OUT], shuffled[HELD_OUT:]
    return Task(_by_length(ids[train], labels[train]), _by_length(ids[held_out], labels[held_out]), data.test)


def _by_length(ids: Int64[Tensor, "n t"], labels: Int64[Tensor, " n"]) -> TensorDataset:
    order = ids.ne(0).sum(1).argsort()
    return TensorDataset(ids[order], labels[order])


class Classifier(nn.Module):
    """A linear head on the direction of the mean of MiniLM's last layer over the real tokens."""

    def __init__(self, way: str) -> None:
        super().__init__()
        import transformers

        encoder = transformers.AutoModel.from_pretrained(
            model_folder("minilm"),
            add_pooling_layer=False,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        self.encoder: Any = _adapted(encoder) if way == "lora" else encoder
        self.head = nn.Linear(encoder.config.hidden_size, 2)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        if way == "bitfit":
            for name, parameter in encoder.named_parameters():
                parameter.requires_grad_("bias" in name)

    def forward(self, ids: Int64[Tensor, "n t"]) -> Float[Tensor, "n 2"]:
        ids = ids[:, : max(2, int(ids.ne(0).sum(1).max()))]
        real = ids.ne(0)
        # Positions with a row for each sample: shared ones would cost a backward for each.
        places = torch.arange(ids.shape[1]).expand_as(ids)
        hidden: Tensor = self.encoder(
            input_ids=ids, attention_mask=real.long(), position_ids=places
        ).last_hidden_state
        weights = real[:, :, None].float()
        # At unit length, as MiniLM's sentences are compared: else the head's gradients would fill the clip.
        logits: Tensor = self.head(F.normalize((hidden * weights).sum(1)))
        return logits

    def groups(self, lr: float) -> list[dict[str, Any]]:
        """For an optimizer: what is trained of the encoder, and the head."""
        inner = [p for p in self.encoder.parameters() if p.requires_grad]
        return [{"params": inner, "lr": lr}, {"params": list(self.head.parameters()), "lr": HEAD_RATE}]


def _adapted(encoder: nn.Module) -> nn.Module:
    import peft

    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["query", "value"])
    adapted: nn.Module = peft.get_peft_model(encoder, config)
    return adapted


def tune(way: str, epsilon: float, *, lr: float, steps: int, batch: int, seed: int) -> dict[str, Any]:
    """Train in one of the ways; ε = 0 stands for ordinary training on as many sentences."""
    torch.manual_seed(seed)
    task, model = sentences(), Classifier(way)
    if epsilon:
        _train_privately(model, task.train, way, epsilon, lr, steps, batch)
    else:
        _train(model, task.train, lr, passes=steps * batch)
    return {
        "accuracy": accuracy(model, task.dev),
        "held_out": accuracy(model, task.held_out),
        "records": len(task.train),
        "passes": steps * batch,
        "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
    }


def _train_privately(
    model: Classifier,
    data: TensorDataset,
    way: str,
    epsilon: float,
    lr: float,
    steps: int,
    batch: int,
) -> None:
    batches = qg.PoissonBatches(data, rate=batch / len(data), steps=steps)
    method = qg.methods.rgp(rank=4, clip=1.0) if way == "rgp" else qg.methods.dp_sgd(clip=1.0)
    mechanism = qg.calibrate(method, batches, epsilon=epsilon, delta=DELTA)
    optimizer = torch.optim.AdamW(model.groups(lr), weight_decay=0.0)
    schedule = _decay(optimizer, steps)
    with qg.Privatizer(model, mechanism, batches) as private:
        for drawn in batches:
            for ids, labels in drawn.split(MICRO_BATCH):
                private.backward(F.cross_entropy(model(ids), labels, reduction="none"))
            private.release()
            optimizer.step()
            schedule.step()


def _train(model: Classifier, data: TensorDataset, lr: float, *, passes: int) -> None:
    steps = passes // PLAIN_BATCH
    optimizer = torch.optim.AdamW(model.groups(lr), weight_decay=0.0)
    schedule = _decay(optimizer, steps)
    for ids, labels in _shuffled(data, steps):
        optimizer.zero_grad()
        F.cross_entropy(model(ids), labels).backward()
        optimizer.step()
        schedule.step()


def _shuffled(data: TensorDataset, steps: int) -> Iterator[tuple[Tensor, ...]]:
    """Each sentence at most once in len(data) // 32 steps."""
    order = torch.randperm(len(data))
    for step in range(steps):
        start = step * PLAIN_BATCH % (len(data) - PLAIN_BATCH)
        yield data[order[start : start + PLAIN_BATCH]]


def _decay(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LambdaLR:
    """A tenth of the steps up, then linearly down."""
    up = max(1, steps // 10)
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / up, (steps - step) / (steps - up + 1))
    )


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """In percent."""
    ids, truth = data.tensors
    order = ids.ne(0).sum(1).argsort()
    logits = [model(few) for few in ids[order].split(MICRO_BATCH)]
    return percent(torch.cat(logits), truth[order])


def name_of(way: str, epsilon: float, *, lr: float, steps: int, batch: int, seed: int) -> str:
    """The run's line in the file of figures."""
    kind = f"epsilon {epsilon:g}" if epsilon else "non-private"
    return f"tune {way}, {kind}, run {seed}, lr {lr:g}, {steps} steps of {batch}"


def best_rate(way: str, epsilon: float, *, steps: int, batch: int) -> float:
    """The learning rate whose first run was best on the held-out sentences."""
    rates = (RATES if epsilon else PLAIN_RATES)[way]
    done = known()
    keys = {lr: name_of(way, epsilon, lr=lr, steps=steps, batch=batch, seed=0) for lr in rates}
    missing = [lr for lr, key in keys.items() if key not in done]
    if missing:
        raise SystemExit(f"{way} at ε = {epsilon:g} was not run with lr {missing[0]:g}. Run `search` first.")
    return max(rates, key=lambda lr: done[keys[lr]]["held_out"])
