"""MiniLM on SST-2, its upper layers trained: LoRA, RGP, BitFit, all their weights; private, or not at all.

The classifier is a linear head on the mean over the tokens at unit length (as MiniLM was trained to be read), without
dropout. It begins as the ridge regression of the labels on MiniLM's features, from two statistics that are released
once, in one plan with the training: no step is spent on finding the head, and the layers get a gradient from the first
step on (above a head of zeros they get none). Learning rates are chosen on whole sentences that are held out of the
training part, never on dev.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from benchmarks.fine_tuning import preconditioner, reuse, whole_sentences
from benchmarks.fine_tuning.activations import Ragged, cached, cached_means
from benchmarks.fine_tuning.classifier import CORE, LAYERS, TOKENS, Classifier, add_cores, turn_cores
from benchmarks.fine_tuning.results import known, percent
from benchmarks.fine_tuning.ridge_head import plain_head, private_head, statistics
from benchmarks.fine_tuning.warm_start import start_of
from quietgrad.integrations.text_folder import FolderTokens
from quietgrad.lab.data import load

DELTA = 1e-5
MICRO_BATCH = 32
HELD_OUT = 1000
LABELS, SECOND = 0.02, 0.7
"""Shares of the head's statistics of the squared budget. 64 draws of 1,024 at ε = 8 have a noise multiplier of 0.485
alone, 0.489 beside these, and 0.75 beside 0.99 in all. Larger draws leave less to a head: 32 of 4,096 have 0.71 beside
these and 0.67 beside 0.02 and 0.2 at ε = 8, 3.02 and 2.07 at ε = 1."""
CLIPS = {
    "lora": 3.0,
    "lora_b": 3.0,
    "lora_public": 12.0,
    "bitfit": 3.0,
    "rgp": 4.0,
    "full": 16.0,
    "core": 12.0,
}
WARM_CLIPS = {"bitfit": 2.0, "rgp": 2.0, "full": 8.0, "core": 8.0}
"""Above nine of ten first gradients of held-out sentences (guesses for RGP), from MiniLM as it comes (`core`: six warm
layers) and for the upper three layers after a warm start. A clip at their median is far worse: the model drifts to the
larger class (docs/results/fine_tuning.md)."""
LONG = 16
"""Tokens. Dev's sentences have more, most of the training part's have fewer."""

RATES = {
    "lora": (3e-3,),
    "lora_b": (1e-2,),
    "lora_public": (2.5e-3,),
    "bitfit": (3e-3, 1e-3, 3e-4),
    "rgp": (3e-4, 1e-4, 3e-5),
    "full": (1e-4, 3e-5, 1e-5),
    "core": (4e-3, 2e-3, 1e-3),
}
"""What `search` tries, the first one alone with `--rates 1`."""
PLAIN_RATES = {"lora_public": (1.5e-3,), "full": (1e-4, 5e-5, 2e-4), "core": (1e-3,)}
"""Without privacy, in steps of 32."""
PLAIN_BATCH = 32
LEADING, POWERS = (10, 100, 1000), (0.125, 0.25, 0.375, 0.5)
"""What `energies` tells of."""
POINTS = 8
"""How often the held-out accuracy is reported during a training."""


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
    train, held_out = whole_sentences.split(ids, HELD_OUT)
    parts = (ids[train], labels[train]), (ids[held_out], labels[held_out]), data.test.tensors
    return Task(*(_by_length(*part) for part in parts))


def _by_length(ids: Int64[Tensor, "n t"], labels: Int64[Tensor, " n"]) -> TensorDataset:
    order = ids.ne(0).sum(1).argsort(stable=True)
    return TensorDataset(ids[order], labels[order])


@cache
def _table(part: str, folder: Path, top: int) -> Ragged:
    return cached(part, folder, LAYERS - top)


class Plan(NamedTuple):
    """How long and with what a training goes."""

    lr: float
    steps: int
    batch: int
    top: int
    seed: int
    encoder: str = "minilm"
    public: Path | None = None
    longer: int = 0
    """Only sentences of more tokens are in the plan: a rule about each record alone. How many they are is taken as
    known, as N is."""
    reuse: int = 1
    """Steps of a draw, along the lines that touch the model there (where few numbers train)."""
    second: float = SECOND
    """The share of the second moments."""
    renew: int = 0
    """Draws after which the directions of `core` are found anew, if at all."""
    even: float = 0.0
    """The power of public energies by which coordinates are made even before the clip (with `reuse`)."""
    rank: int = CORE
    """Of `core`."""


class Private(NamedTuple):
    """What a training may spend, on which draws, and where it is written down."""

    program: qg.Program
    batches: qg.PoissonBatches
    ledger: qg.Ledger


def tune(variant: str, epsilon: float, plan: Plan, folder: Path) -> dict[str, Any]:
    """Train in one of the variants; ε = 0 stands for ordinary training on as many sentences."""
    if plan.even and (plan.reuse == 1 or not epsilon):
        raise SystemExit("--even is for private steps along lines. Pass --reuse 16, or leave it out.")
    torch.manual_seed(plan.seed)
    model = Classifier(variant, plan.top, plan.encoder)
    table, labels = _table("train", folder, plan.top), sentences().train.tensors[1]
    rows = (table.lengths > plan.longer).nonzero()[:, 0]
    data, features, labels = (
        TensorDataset(rows, labels[rows]),
        cached_means("train", folder)[rows],
        labels[rows],
    )
    if epsilon:
        program, batches = _calibrated(data, variant, epsilon, plan)
        released = qg.Statistics(program, batches)
        private_head(model.head, released, features, labels)
        first = _first(model.head, folder)
        _add_cores(model, variant, plan)
        train = _train_reusing if plan.reuse > 1 else _train_privately
        curve = train(model, table, Private(program, batches, released.ledger), plan, folder)
    else:
        plain_head(model.head, features, labels)
        first = _first(model.head, folder)
        _add_cores(model, variant, plan)
        curve = _train(model, table, data, plan, folder)
    return first | {
        "held_out_curve": curve,
        "accuracy": accuracy(model, "dev", plan, folder),
        "held_out": accuracy(model, "held_out", plan, folder),
        "held_out_long": accuracy(model, "held_out", plan, folder, LONG),
        "records": len(data),
        "passes": plan.steps * plan.batch,
        "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
    }


def _add_cores(model: Classifier, variant: str, plan: Plan) -> None:
    if variant == "core":
        add_cores(model, plan.encoder, _public(plan), plan.rank)


def _public(plan: Plan) -> Path:
    assert plan.public is not None, "pass --public"
    return plan.public


def _calibrated(
    data: TensorDataset, variant: str, epsilon: float, plan: Plan
) -> tuple[qg.Program, qg.PoissonBatches]:
    """The head's statistics and the steps, together within (ε, δ)."""
    # Whom a rate counts on follows from all records' number and the held-out sentences, not by the long ones' number.
    share = float((sentences().held_out.tensors[0].ne(0).sum(1) > plan.longer).double().mean())
    rate = plan.batch / (share * len(sentences().train))
    batches = qg.PoissonBatches(data, rate=rate, steps=plan.steps)
    warm = plan.encoder != "minilm" and plan.top < LAYERS
    clip = (WARM_CLIPS if warm else CLIPS)[variant]
    method = qg.methods.rgp(rank=4, clip=clip) if variant == "rgp" else qg.methods.dp_sgd(clip=clip)
    program = qg.Program(training=method, statistics=statistics(LABELS, plan.second))
    return qg.calibrate(program, batches, epsilon=epsilon, delta=DELTA), batches


@torch.no_grad()
def _first(head: nn.Linear, folder: Path) -> dict[str, Any]:
    """How good the head is before anything is trained."""
    return {
        f"head_{part}": percent(
            head(F.normalize(cached_means(part, folder))), getattr(sentences(), part).tensors[1]
        )
        for part in ("dev", "held_out")
    }


def _train_privately(
    model: Classifier, table: Ragged, private: Private, plan: Plan, folder: Path
) -> list[float]:
    curve = []
    optimizer = torch.optim.AdamW(model.groups(plan.lr), weight_decay=0.0)
    schedule = _decay(optimizer, plan.steps)
    program, batches, ledger = private
    with qg.Privatizer(model, program.training, batches, ledger=ledger) as privatizer:
        for step, drawn in enumerate(batches):
            for rows, labels in drawn.split(MICRO_BATCH):
                privatizer.backward(F.cross_entropy(model(*table.read(rows)), labels, reduction="none"))
            privatizer.release()
            optimizer.step()
            schedule.step()
            if (step + 1) % max(1, plan.steps // POINTS) == 0:
                curve.append(_report(model, plan, folder))
    return curve


def _train_reusing(
    model: Classifier, table: Ragged, private: Private, plan: Plan, folder: Path
) -> list[float]:
    curve = []
    optimizer = torch.optim.AdamW(model.groups(plan.lr), weight_decay=0.0)
    schedule = _decay(optimizer, plan.steps * plan.reuse)
    trained = reuse.trained(model.layers, model.head)
    steps = reuse.Steps(trained, *private, plan.reuse, _preconditioner(model, trained, plan))
    for step, drawn in enumerate(private.batches):
        if step and plan.renew and step % plan.renew == 0:
            turn_cores(model, optimizer, plan.encoder, _public(plan))
            steps.scale = _preconditioner(model, trained, plan)
        steps.take(step, reuse.lines(model, trained, table, drawn), optimizer, schedule)
        if (step + 1) % max(1, plan.steps // POINTS) == 0:
            curve.append(_report(model, plan, folder))
    return curve


def _preconditioner(model: Classifier, trained: reuse.Trained, plan: Plan) -> Float[Tensor, " p"]:
    if not plan.even:
        return torch.ones(len(trained.vector()))
    return preconditioner.preconditioner(_public_phi(model, trained, plan), plan.even)


def _public_phi(model: Classifier, trained: reuse.Trained, plan: Plan) -> Float[Tensor, "n p"]:
    return preconditioner.public_phi(model, trained, plan.encoder, _public(plan), plan.top)


def energies(plan: Plan, folder: Path) -> dict[str, Any]:
    """How even the coordinates of `core` are, and what preconditioning makes of the noise.

    Under a head without noise: a measurement outside ε, as ordinary training is.
    """
    model = Classifier("core", plan.top, plan.encoder)
    plain_head(model.head, cached_means("train", folder), sentences().train.tensors[1])
    _add_cores(model, "core", plan)
    phi = _public_phi(model, reuse.trained(model.layers, model.head), plan)
    energy = phi.square().mean(0).sort(descending=True).values
    return {
        "coordinates": len(energy),
        "share_of_leading": {most: round(float(energy[:most].sum() / energy.sum()), 3) for most in LEADING},
        "noise_energy": {
            q: round(float(preconditioner.preconditioner(phi, q).pow(-2).mean()), 3) for q in POWERS
        },
    }


def _train(model: Classifier, table: Ragged, data: TensorDataset, plan: Plan, folder: Path) -> list[float]:
    curve = []
    steps = plan.steps * plan.batch // PLAIN_BATCH
    optimizer = torch.optim.AdamW(model.groups(plan.lr), weight_decay=0.0)
    schedule = _decay(optimizer, steps)
    for step, (rows, labels) in enumerate(_shuffled(data, steps)):
        optimizer.zero_grad()
        F.cross_entropy(model(*table.read(rows)), labels).backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % max(1, steps // POINTS) == 0:
            curve.append(_report(model, plan, folder))
    return curve


def _report(model: Classifier, plan: Plan, folder: Path) -> float:
    """The held-out accuracy on the way, which a long training is watched by."""
    held_out = accuracy(model, "held_out", plan, folder)
    print(held_out, flush=True)
    return held_out


def _shuffled(data: TensorDataset, steps: int) -> Iterator[tuple[Tensor, ...]]:
    """Epoch after epoch."""
    return itertools.islice(itertools.chain.from_iterable(_epoch(data) for _ in itertools.count()), steps)


def _epoch(data: TensorDataset) -> Iterator[tuple[Tensor, ...]]:
    """Of each 1,024 sentences in a random order those of like length come together, to save padding."""
    for some in torch.randperm(len(data)).split(32 * PLAIN_BATCH):
        few = some.sort().values.split(PLAIN_BATCH)
        for place in torch.randperm(len(few)).tolist():
            yield data[few[place]]


def _decay(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LambdaLR:
    """A tenth of the steps up, then linearly down."""
    up = max(1, steps // 10)
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / up, (steps - step) / (steps - up + 1))
    )


@torch.no_grad()
def accuracy(model: Classifier, part: str, plan: Plan, folder: Path, longer: int = 0) -> float:
    """In percent, of the sentences with more tokens than so many."""
    table, truth = _table(part, folder, plan.top), getattr(sentences(), part).tensors[1]
    rows = (table.lengths > longer).nonzero()[:, 0]
    logits = [model(*table.read(few)) for few in rows.split(MICRO_BATCH)]
    return percent(torch.cat(logits), truth[rows])


def name_of(variant: str, epsilon: float, plan: Plan) -> str:
    """The run's line in the file of figures."""
    kind = f"epsilon {epsilon:g}" if epsilon else "non-private"
    warm = start_of(plan.encoder)
    start = f", {warm}" if warm else ""
    start += f", over {plan.longer} tokens" if plan.longer else ""
    start += f", each draw for {plan.reuse} steps" if plan.reuse > 1 else ""
    start += f", second moments {plan.second:g}" if plan.second != SECOND else ""
    start += f", directions anew every {plan.renew} draws" if plan.renew else ""
    start += f", preconditioned by {plan.even:g}" if plan.even else ""
    start += f", rank {plan.rank}" if plan.rank != CORE else ""
    return (
        f"tune {variant} of {plan.top} layers, {kind}, run {plan.seed}, lr {plan.lr:g}, "
        f"{plan.steps} {'draws' if plan.reuse > 1 else 'steps'} of {plan.batch}{start}, sentences held out"
    )


def best_rate(variant: str, epsilon: float, plan: Plan, most: int) -> float:
    """The learning rate whose first run was best on the held-out sentences."""
    rates = (RATES if epsilon else PLAIN_RATES)[variant][:most]
    done = known()
    keys = {lr: name_of(variant, epsilon, plan._replace(lr=lr, seed=0)) for lr in rates}
    missing = [lr for lr, key in keys.items() if key not in done]
    if missing:
        raise SystemExit(
            f"{variant} at ε = {epsilon:g} was not run with lr {missing[0]:g}. Run `search` first."
        )
    return max(rates, key=lambda lr: done[keys[lr]]["held_out"])
