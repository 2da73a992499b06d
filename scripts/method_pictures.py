"""Draw what each method releases of one weight matrix: the pictures of the pages under docs/methods.

    python -m scripts.method_pictures

A perceptron on the embedded images (pooled to 7×7), the same batches and weights for all methods, the same noise
multiplier. Left the mean of the clipped gradients, in the middle what the method makes of it without noise, on the
right what it releases. The number is the cosine with the left picture over the whole gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.lab.data import load

OUT = Path(__file__).parents[1] / "docs" / "methods"
STEPS, NOISE, SHOWN = 24, 1.0, "0.weight"

Gradient = dict[str, Tensor]


@functools.cache
def data() -> tuple[TensorDataset, Tensor]:
    """2,000 private images with labels, and 200 public ones without, pooled to 7×7."""
    parts = load("embedded")
    x, y = parts.private[:2000]
    public = parts.public[:200][0]
    return TensorDataset(F.avg_pool2d(x, 4).flatten(1), y), F.avg_pool2d(public, 4).flatten(1)


def methods() -> dict[str, qg.Mechanism]:
    """One mechanism a page, at settings that suit a small matrix."""
    public = qg.public_losses.random_label_losses(data()[1], classes=10)
    batches = qg.PoissonBatches(data()[0], rate=0.1, steps=STEPS)
    return {
        "dp_sgd": qg.methods.dp_sgd(),
        "gep": qg.methods.gep(public, rank=40, clip=1.0, residual_clip=0.3),
        "pdp_sgd": qg.methods.pdp_sgd(public, rank=40),
        "rgp": qg.methods.rgp(rank=4, matrices=["0.weight"]),
        "freeze": qg.methods.random_freeze(freeze=0.7),
        "gip": qg.methods.gip(model(), batches, theta=0.05, keep=0.3, group_size=49),
        "top_groups": qg.methods.top_groups(freeze=0.7),
        "datalens": qg.methods.datalens(keep=0.3, sign=False),
    }


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(49, 24), nn.Tanh(), nn.Linear(24, 10))


def last_release(mechanism: qg.Mechanism, noise: float, update: Callable[[nn.Module], None]) -> Gradient:
    """The gradient of the last of `STEPS` steps; between steps the weights go the same way for every method."""
    network = model()
    batches = qg.PoissonBatches(data()[0], rate=0.1, steps=STEPS, seed=1)
    source = qg.SeededSource(2)
    with qg.Privatizer(
        network, mechanism.with_noise(noise), batches, noise_source=source, public_seed=3
    ) as private:
        for batch in batches:
            for x, y in batch.split(512):
                private.backward(F.cross_entropy(network(x), y, reduction="none"))
            private.release()
            found = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
            update(network)
    return found


def non_private(network: nn.Module) -> None:
    """A step of plain gradient descent on all records: history for the methods that look back."""
    x, y = data()[0].tensors
    grads = torch.autograd.grad(F.cross_entropy(network(x), y), list(network.parameters()))
    with torch.no_grad():
        for p, gradient in zip(network.parameters(), grads, strict=True):
            p.sub_(0.3 * gradient)


def cosine(a: Gradient, b: Gradient) -> float:
    first, second = (torch.cat([block.flatten() for block in each.values()]) for each in (a, b))
    return float(F.cosine_similarity(first, second, dim=0))


def draw(name: str, mechanism: qg.Mechanism, mean: Gradient) -> float:
    quiet, noisy = (last_release(mechanism, noise, non_private) for noise in (0.0, NOISE))
    panels = {
        "mean of the clipped gradients": mean,
        f"{mechanism.name} without noise: {cosine(quiet, mean):.2f}": quiet,
        f"released: {cosine(noisy, mean):.2f}": noisy,
    }
    limit = 4 * float(mean[SHOWN].std())
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 2.1), layout="constrained")
    for axis, (title, gradient) in zip(axes, panels.items(), strict=True):
        axis.imshow(
            gradient[SHOWN], cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest"
        )
        axis.set_title(title, fontsize=9.5)
        axis.set(xticks=[], yticks=[])
    figure.savefig(OUT / f"{name}.png", dpi=110)
    plt.close(figure)
    return cosine(noisy, mean)


def main() -> None:
    mean = last_release(qg.methods.dp_sgd(), 0.0, non_private)
    for name, mechanism in methods().items():
        print(f"{name:12} {draw(name, mechanism, mean):.3f}")


if __name__ == "__main__":
    main()
