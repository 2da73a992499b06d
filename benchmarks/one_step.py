"""What each method does to signal, noise and conditioning in one step.

    python -m benchmarks.one_step [--epsilon 1] [--only "GEP" "RGP"] [--figure FILE.png] [--json]

A CNN of 26,000 weights after a few steps of DP-SGD on the embedded images. Each method releases one gradient of 2,000
records without noise, s, and several with the noise of a plan of 300 batches of 500 in 10,000 records, s + n. On 1,000
other images, with gradient g and Gauss-Newton matrix H:

    noise       E‖n‖ / E‖n‖ of DP-SGD
    cosine      ⟨g, s⟩ / (‖g‖·√(‖s‖² + E‖n‖²))
    decrease    max over rates η of E[η⟨g, s + n⟩ − η²/2·(s + n)ᵀH(s + n)] = ⟨g, s⟩² / 2(sᵀHs + E nᵀHn)
    no noise    the same for n = 0

The first two are what most papers compare. The third is what the step is worth.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.utils.data import TensorDataset

import quietgrad as qg
from benchmarks.preconditioned import Images, Setting, images, probe_losses
from quietgrad._gradients.blocks import flatten, unflatten
from quietgrad._representations.preconditioned.layer_scale import LayerScale, MatrixScale
from quietgrad._representations.preconditioned.scaling import PreconditionedCodec, apply_scales
from quietgrad.lab.models import build

RECORDS, JUDGED, WARM, NOISES = 2_000, 1_000, 20, 3


@dataclass(frozen=True, eq=False, kw_only=True)
class OtherDecode(qg.Preconditioned):
    """The same scaling with another way back: what AdaDPS and DP-KFC do ("leave"), or none of it ("undo")."""

    back: str

    def refresh(self, public: qg.Public, state: dict[str, Any]) -> tuple[qg.Codec, dict[str, Any]]:
        codec, state = super().refresh(public, state)
        assert isinstance(codec, PreconditionedCodec)
        return OtherCodec(codec, self.back), state


class OtherCodec(qg.Codec):
    """Encodes with a scaling and decodes with the identity, or with its inverse."""

    def __init__(self, scaled: PreconditionedCodec, back: str) -> None:
        self.scaled, self.space, self.since = scaled, scaled.space, scaled.since
        self.back = {name: _inverse(scale) for name, scale in scaled.scales.items()} if back == "undo" else {}

    def encode(self, grads: qg.PerSampleGrads) -> qg.PerSampleGrads:
        return self.scaled.encode(grads)

    def decode(self, released: qg.Released) -> dict[str, Tensor]:
        return apply_scales(self.back, released.blocks)


def _inverse(scale: LayerScale) -> MatrixScale:
    assert isinstance(scale, MatrixScale)
    p = scale.inputs
    return replace(scale, inputs=replace(p, base=1 / p.base, gains=1 / (p.base + p.gains) - 1 / p.base))


def methods(probes: Any) -> dict[str, qg.Mechanism]:
    """Each method, and each way back from one scaling."""
    dp_sgd = qg.methods.dp_sgd(clip=1.0)
    return {
        "DP-SGD": dp_sgd,
        "scaled, undo": dp_sgd @ OtherDecode(probes=probes, back="undo"),
        "scaled, leave": dp_sgd @ OtherDecode(probes=probes, back="leave"),
        "scaled, apply": qg.methods.preconditioned(probes, clip=1.0),
        "GEP": qg.methods.gep(probes, rank=100, clip=1.0, residual_clip=0.5),
        "B-GEP": qg.methods.biased_gep(probes, rank=100, clip=1.0),
        "PDP-SGD": qg.methods.pdp_sgd(probes, rank=100, clip=1.0),
        "RGP": qg.methods.rgp(rank=4, clip=1.0),
        "Random Freeze": qg.methods.random_freeze(freeze=0.7, clip=1.0),
        "GEP, scaled": qg.methods.gep(probes, rank=100, clip=1.0, residual_clip=0.5)
        @ qg.Preconditioned(probes=probes),
        "B-GEP, scaled": dp_sgd
        @ (qg.Preconditioned(probes=probes) @ qg.Subspace(public_losses=probes, rank=100)),
        "RGP, scaled": qg.methods.rgp(rank=4, clip=1.0) @ qg.Preconditioned(probes=probes),
    }


def started(found: Images) -> nn.Module:
    """Where DP-SGD is after a few steps."""
    torch.manual_seed(0)
    model = build("tanh_cnn", (1, 28, 28), 10)
    batches = qg.PoissonBatches(found.train, rate=0.05, steps=WARM, seed=1)
    mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    with qg.Privatizer(model, mechanism, batches, noise_source=qg.SeededSource(1)) as private:
        for batch in batches:
            for x, y in batch.split(500):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
            optimizer.step()
    return model


def one_release(
    model: nn.Module, mechanism: qg.Mechanism, data: TensorDataset, noise: float, seed: int
) -> Tensor:
    """The gradient that one step releases of all records; the same public randomness each time."""
    batches = qg.PoissonBatches(data, rate=1.0, steps=1)
    source = qg.SeededSource(seed)
    with qg.Privatizer(
        model, mechanism.with_noise(noise), batches, noise_source=source, public_seed=3
    ) as private:
        for batch in batches:
            for x, y in batch.split(500):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
    return flatten({name: p.grad for name, p in model.named_parameters() if p.grad is not None})


def curvature(model: nn.Module, x: Tensor) -> Callable[[Tensor], float]:
    """d ↦ dᵀHd of the cross-entropy's Gauss-Newton matrix."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def along(direction: Tensor) -> float:
        tangent = unflatten(direction, parameters)
        logits, moved = jvp(lambda p: functional_call(model, p, (x,)), (parameters,), (tangent,))[:2]
        chance = logits.softmax(1)
        squares = (chance * moved.square()).sum(1) - (chance * moved).sum(1).square()
        return float(squares.mean())

    return along


def measure(epsilon: float, records: int = RECORDS, only: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """One row a method, as they come; of DP-SGD and those that are named, or of all."""
    found = images("embedded", 10_000, None)
    probes = probe_losses(Setting(method="", epsilon=1.0, rate=1.0, clip=1.0, data="embedded"), found)
    model = started(found)
    plan = qg.PoissonSampler(10_000, rate=0.05, steps=300)
    sigma = qg.calibrate(qg.methods.dp_sgd(), plan, epsilon=epsilon, delta=1e-5).noise_multiplier
    assert sigma is not None
    data = TensorDataset(*(part[:records] for part in found.train.tensors))
    x, y = (part[:JUDGED] for part in found.others.tensors)
    g = flatten(
        dict(
            zip(
                dict(model.named_parameters()),
                torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters())),
                strict=True,
            )
        )
    )
    bent = curvature(model, x[:400])
    first = 0.0
    for name, mechanism in methods(probes).items():
        if only and name not in ("DP-SGD", *only):
            continue
        signal = one_release(model, mechanism, data, 0.0, 0)
        # Noise of a batch of 500, on a sum that is divided by all records.
        noisy = sigma * records / 500
        noises = [one_release(model, mechanism, data, noisy, seed) - signal for seed in range(NOISES)]
        energy = sum(float(noise @ noise) for noise in noises) / NOISES
        along, bend = float(g @ signal), bent(signal)
        price = sum(map(bent, noises)) / NOISES
        first = first or energy**0.5  # of DP-SGD, which comes first
        yield {
            "method": name,
            "noise": energy**0.5 / first,
            "cosine": along / (float(g.norm()) * (float(signal @ signal) + energy) ** 0.5),
            "decrease": along**2 / 2 / (bend + price),
            "no_noise": along**2 / 2 / bend,
        }


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Bars of each method."""
    import matplotlib.pyplot as plt

    titles = {
        "noise": "length of the noise",
        "cosine": "cosine with the gradient",
        "decrease": "decrease of the loss",
    }
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True)
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        colours = ["tab:blue" if row["method"] == "scaled, apply" else "0.6" for row in rows]
        axis.barh([row["method"] for row in rows], [row[key] for row in rows], color=colours)
        axis.axvline(rows[0][key], color="k", linewidth=0.8, linestyle=":")
        axis.set_title(title, fontsize=10)
    axes[0].invert_yaxis()
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--only", nargs="*", default=[], help="methods beside DP-SGD; all if left out")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    if not args.json:
        print(f"{'method':16}{'noise':>8}{'cosine':>8}{'decrease':>10}{'no noise':>10}")
    for row in measure(args.epsilon, args.records, args.only):
        rows.append(row)
        if not args.json:
            figures = f"{row['noise']:8.2f}{row['cosine']:8.3f}{row['decrease']:10.4f}{row['no_noise']:10.4f}"
            print(f"{row['method']:16}{figures}", flush=True)
    if args.json:
        print(json.dumps(rows, indent=2))
    if args.figure is not None:
        draw(rows, args.figure)


if __name__ == "__main__":
    main()
