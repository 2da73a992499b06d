"""Loops as people write them: those that mix records, and those that keep them apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.independence import data
from tests.independence.models import (
    BATCH_KINDS,
    Attention,
    CausalLeftPadded,
    Fourier,
    LargestWord,
    MeanOfWords,
    OfTheBatch,
    PerSampleExperts,
    Recurrent,
    cnn,
    linear,
    mlp,
)

Losses = Callable[[nn.Module, Any], Tensor]


def entropy(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none")


def plainly(model: nn.Module, batch: Any) -> Tensor:
    """Forward and loss, nothing else."""
    x, y = batch
    return entropy(model(x), y)


@dataclass(frozen=True)
class Pattern:
    """A loop: what it reads, how it collates, and how it computes losses."""

    name: str
    model: Callable[[], nn.Module] = linear
    losses: Losses = plainly
    records: Callable[[], list[Any]] = data.rows
    collate: data.Collate = field(default=data.stack)

    @property
    def pad_to(self) -> Literal["longest"] | None:
        """What has to be stated, so that lengths which follow the draw are not refused."""
        return "longest" if self.collate in (data.pad, data.pad_left, data.shortest) else None

    def __str__(self) -> str:
        return self.name


def outside(change: Callable[[Tensor], Tensor]) -> Losses:
    """A loop that changes the inputs before the model sees them."""
    return lambda model, batch: entropy(model(change(batch[0])), batch[1])


class Seen(NamedTuple):
    """What a loop has after its forward."""

    x: Tensor
    y: Tensor
    losses: Tensor


def rescaled(factor: Callable[[Seen], Any]) -> Losses:
    """A loop that multiplies the losses by a factor."""

    def losses(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        found = entropy(model(x), y)
        return found * factor(Seen(x, y, found))

    return losses


def negatives(product: Callable[[Tensor, Tensor], Tensor]) -> Losses:
    def losses(model: nn.Module, batch: Any) -> Tensor:
        x, _ = batch
        return entropy(product(model(x), model(x.flip(1))), torch.arange(len(x)))

    return losses


def hardest_triplet(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    z = model(x)
    distances = torch.cdist(z, z)
    same = y[:, None] == y[None]
    return F.relu(distances.masked_fill(~same, 0).amax(1) - distances.masked_fill(same, 1e4).amin(1) + 1.0)


def hooked(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    z = model(x)
    z.register_hook(lambda g: g + g.flip(0))
    return entropy(z, y)


def beside(model: nn.Module, batch: Any) -> Tensor:
    x, y, longest = batch
    return entropy(model(x) * longest[:, None] / 40, y)


MIXING = [
    Pattern("padding, mean of embeddings", lambda: MeanOfWords(False), records=data.texts, collate=data.pad),
    Pattern("padding, LSTM", lambda: Recurrent(nn.LSTM, False), records=data.texts, collate=data.pad),
    Pattern("padding, GRU", lambda: Recurrent(nn.GRU, False), records=data.texts, collate=data.pad),
    Pattern(
        "padding, convolution and maximum", lambda: LargestWord(False), records=data.texts, collate=data.pad
    ),
    Pattern(
        "padding, attention without mask", lambda: Attention(False), records=data.texts, collate=data.pad
    ),
    Pattern(
        "padding, attention with dropout", lambda: Attention(False, 0.3), records=data.texts, collate=data.pad
    ),
    Pattern("left padding, positions", CausalLeftPadded, records=data.texts, collate=data.pad_left),
    Pattern("padding, Fourier", Fourier, records=data.texts, collate=data.pad),
    Pattern("cut to the shortest", lambda: MeanOfWords(True), records=data.texts, collate=data.shortest),
    Pattern("longest length beside", lambda: MeanOfWords(True), beside, data.texts, data.with_longest),
    Pattern(
        "words numbered in the batch",
        lambda: MeanOfWords(True),
        records=data.texts,
        collate=data.numbered_words,
    ),
    Pattern("mixup in collate", collate=data.mixed_up),
    Pattern("standardised in collate", collate=data.standardised),
    Pattern("centred outside", losses=outside(lambda x: x - x.mean(0))),
    Pattern("divided by std outside", losses=outside(lambda x: x / (x.std(0) + 0.1))),
    Pattern("divided by maximum outside", losses=outside(lambda x: x / x.abs().max())),
    Pattern("mixup outside", losses=outside(lambda x: 0.5 * x + 0.5 * x.roll(1, 0))),
    Pattern("mean through numpy", losses=outside(lambda x: x - torch.tensor(x.numpy().mean(0)))),
    Pattern("mean through data", losses=outside(lambda x: x - x.data.mean(0))),
    Pattern("mean through lists", losses=outside(lambda x: x - sum(x.flatten().tolist()) / x.numel())),
    Pattern("sorted by the batch", losses=outside(lambda x: x.sort(0).values)),
    Pattern("negatives q @ k.T", losses=negatives(lambda q, k: q @ k.T)),
    Pattern("negatives q @ k.mT", losses=negatives(lambda q, k: q @ k.mT)),
    Pattern("negatives by einsum", losses=negatives(lambda q, k: torch.einsum("id,jd->ij", q, k))),
    Pattern("negatives through numpy", losses=negatives(lambda q, k: q @ torch.tensor(k.detach().numpy().T))),
    Pattern("negatives through data", losses=negatives(lambda q, k: q @ k.data.T)),
    Pattern("hardest triplet", losses=hardest_triplet),
    Pattern("tensor hook outside", losses=hooked),
    Pattern(
        "centred, with an offset of 1e6", losses=lambda m, b: outside(lambda x: x - x.mean(0))(m, b) + 1e6
    ),
    Pattern("divided by the count of a class", losses=rescaled(lambda s: 1 / (s.y > 0).sum())),
    Pattern("divided by len", losses=rescaled(lambda s: 1 / len(s.x))),
    Pattern("divided by shape", losses=rescaled(lambda s: 1 / s.x.shape[0])),
    Pattern(
        "weights of classes in the batch",
        losses=rescaled(lambda s: 1 / torch.bincount(s.y, minlength=4)[s.y]),
    ),
    Pattern("divided by the mean loss", losses=rescaled(lambda s: 1 / s.losses.detach().mean())),
    Pattern("divided by the largest loss", losses=rescaled(lambda s: 1 / s.losses.detach().max())),
    Pattern(
        "only the hardest half", losses=rescaled(lambda s: (s.losses >= s.losses.detach().median()).float())
    ),
    Pattern(
        "divided by the words of the batch",
        lambda: MeanOfWords(True),
        rescaled(lambda s: 1 / (s.x > 0).sum()),
        data.texts,
        data.pad_to_40,
    ),
    *(Pattern(f"model: {kind}", lambda kind=kind: OfTheBatch(kind)) for kind in BATCH_KINDS),  # type: ignore[misc]
]


# ---- records that stay apart ---------------------------------------------------------------------------------


def augmented(change: Callable[[Tensor], Tensor]) -> Losses:
    return outside(change)


def with_numpy_noise(x: Tensor) -> Tensor:
    return x + 0.1 * torch.tensor(np.random.normal(size=tuple(x.shape)), dtype=torch.float32)


def squared(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return (model(x) - F.one_hot(y, data.CLASSES).float()).square().mean(1)


def smoothed(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none", label_smoothing=0.1)


def focal(model: nn.Module, batch: Any) -> Tensor:
    found = entropy(model(batch[0]), batch[1])
    return (1 - torch.exp(-found)) ** 2 * found


def hinge(model: nn.Module, batch: Any) -> Tensor:
    return F.multi_margin_loss(model(batch[0]), batch[1], reduction="none")


def cosine(model: nn.Module, batch: Any) -> Tensor:
    anchors = torch.eye(data.CLASSES)
    return 1 - F.cosine_similarity(model(batch[0]), anchors[batch[1]])


def views(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    both = torch.stack([x, -x], 1).flatten(0, 1)
    return entropy(model(both), y.repeat_interleave(2)).view(-1, 2)


def weighted(model: nn.Module, batch: Any) -> Tensor:
    weights = torch.tensor([1.0, 0.5, 2.0, 0.1])
    return F.cross_entropy(model(batch[0]), batch[1], weight=weights, reduction="none")


def tempered(model: nn.Module, batch: Any) -> Tensor:
    return entropy(model(batch[0]) / 2.0, batch[1]) / 64


def hook_of_each(model: nn.Module, batch: Any) -> Tensor:
    z = model(batch[0])
    z.register_hook(lambda g: g.clamp(-0.1, 0.1))
    return entropy(z, batch[1])


def shifted(model: nn.Module, batch: Any) -> Tensor:
    return plainly(model, batch) + 1e4


def one_by_one(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return torch.stack([entropy(model(x[i : i + 1]), y[i : i + 1])[0] for i in range(len(x))])


def in_the_loop(model: nn.Module, batch: Any) -> Tensor:
    return plainly(model, data.pad_to_40(batch))


def from_dictionary(model: nn.Module, batch: Any) -> Tensor:
    return entropy(model(batch["input_ids"]), batch["labels"])


def reconstructed(model: nn.Module, batch: Any) -> Tensor:
    x, _ = batch
    return (model(x) - x[:, : data.CLASSES]).abs().sum(1)


def ragged_loop(model: nn.Module, batch: Any) -> Tensor:
    return torch.cat([entropy(model(x[None]), torch.tensor([y])) for x, y in batch])


def autocast(model: nn.Module, batch: Any) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch[0])
    return entropy(logits.float(), batch[1])


def text(name: str, model: Callable[[], nn.Module], losses: Losses = plainly) -> list[Pattern]:
    """Padded to the longest text, and to a constant."""
    return [
        Pattern(f"{name}, padded to {how}", model, losses, data.texts, collate)
        for how, collate in (("the longest", data.pad), ("a constant", data.pad_to_40))
    ]


def picture(name: str, model: Callable[[], nn.Module], losses: Losses = plainly) -> Pattern:
    return Pattern(name, model, losses, data.images)


APART = [
    Pattern("linear"),
    Pattern("perceptron", mlp),
    Pattern("layer norm", lambda: mlp(nn.LayerNorm(16), nn.GELU())),
    Pattern("RMS norm", lambda: mlp(nn.RMSNorm(16), nn.SiLU())),
    Pattern("group norm", lambda: mlp(nn.GroupNorm(4, 16), nn.ReLU())),
    Pattern("dropout", lambda: mlp(nn.Dropout(0.5), nn.ReLU())),
    Pattern("alpha dropout", lambda: mlp(nn.SELU(), nn.AlphaDropout(0.2))),
    Pattern("softplus", lambda: mlp(nn.Softplus())),
    Pattern("experts for each record", PerSampleExperts),
    Pattern("squared error", mlp, squared),
    Pattern("label smoothing", mlp, smoothed),
    Pattern("focal loss", mlp, focal),
    Pattern("hinge", mlp, hinge),
    Pattern("cosine to fixed anchors", mlp, cosine),
    Pattern("two views", mlp, views),
    Pattern("weights of classes, constant", mlp, weighted),
    Pattern("divided by a constant", mlp, tempered),
    Pattern("a hook that keeps records apart", mlp, hook_of_each),
    Pattern("an offset of 1e4", mlp, shifted),
    Pattern("one by one", mlp, one_by_one),
    Pattern("reconstruction", lambda: nn.Linear(data.FEATURES, data.CLASSES), reconstructed),
    Pattern("autocast", mlp, autocast),
    Pattern("noise by torch", mlp, augmented(lambda x: x + 0.1 * torch.randn_like(x))),
    Pattern("noise by numpy", mlp, augmented(with_numpy_noise)),
    Pattern("random masks", mlp, augmented(lambda x: x * (torch.rand(x.shape) < 0.9))),
    Pattern("random signs", mlp, augmented(lambda x: x * (2 * torch.randint(2, (len(x), 1)) - 1))),
    Pattern("normalised by constants", mlp, augmented(lambda x: (x - 0.1) / 1.3)),
    Pattern("normalised by themselves", mlp, augmented(lambda x: x / x.norm(dim=1, keepdim=True))),
    Pattern("clamped", mlp, augmented(lambda x: x.clamp(-1, 1))),
    Pattern("sorted within a record", mlp, augmented(lambda x: x.sort(1).values)),
    *text("masked mean", lambda: MeanOfWords(True)),
    *text("masked mean with dropout", lambda: MeanOfWords(True, 0.3)),
    *text("masked maximum of a convolution", lambda: LargestWord(True)),
    *text("LSTM at the last word", lambda: Recurrent(nn.LSTM, True)),
    *text("GRU at the last word", lambda: Recurrent(nn.GRU, True)),
    *text("packed LSTM", lambda: Recurrent(nn.LSTM, True, packed=True)),
    *text("masked attention", lambda: Attention(True)),
    *text("masked attention with dropout", lambda: Attention(True, 0.2)),
    *text("masked mean, smoothed", lambda: MeanOfWords(True), smoothed),
    Pattern(
        "padding to a constant without mask",
        lambda: MeanOfWords(False),
        records=data.texts,
        collate=data.pad_to_40,
    ),
    Pattern(
        "attention over constant padding",
        lambda: Attention(False),
        records=data.texts,
        collate=data.pad_to_40,
    ),
    Pattern("Fourier over constant padding", Fourier, records=data.texts, collate=data.pad_to_40),
    Pattern("collated in the loop", lambda: MeanOfWords(True), in_the_loop, data.texts, data.as_records),
    Pattern("dictionary", lambda: MeanOfWords(True), from_dictionary, data.texts, data.as_dictionary),
    Pattern("ragged, one by one", lambda: MeanOfWords(False), ragged_loop, data.texts, data.as_records),
    picture("convolution", cnn),
    picture("convolution, group norm", lambda: cnn(nn.GroupNorm(4, 8), nn.ReLU())),
    picture("convolution, instance norm", lambda: cnn(nn.InstanceNorm2d(8, affine=True), nn.ReLU())),
    picture("convolution, dropout of channels", lambda: cnn(nn.Dropout2d(0.3), nn.ReLU())),
    picture("convolution, maximum", lambda: cnn(nn.MaxPool2d(2))),
    Pattern("maximum with ties", lambda: cnn(nn.MaxPool2d(2)), records=data.flat_images),
    picture(
        "flipped images",
        cnn,
        augmented(lambda x: torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x, x.flip(3))),
    ),
    picture("shifted images", cnn, augmented(lambda x: F.pad(x, (1, 1, 1, 1))[..., 1:9, :8])),
    picture("erased images", cnn, augmented(lambda x: x * (torch.rand(len(x), 1, 8, 8) < 0.8))),
    picture("bf16 images", cnn, autocast),
]
