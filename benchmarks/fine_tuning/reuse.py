"""A draw used for several steps: its records' gradients along a straight line, all within what one release costs.

What private training of a small draw pays for is noise, and a larger draw costs processor time. For two classes a
record's gradient with respect to θ is (σ(z) - y)·φ, where φ is that of the difference z of its logits. One pass over a
draw gives every z and φ; then J steps follow the line that touches the model where it was, each with a release

    g_j = Σ_i clip((σ(z_i + φ_iᵀ(θ_j - θ_0)) - y_i)·φ_i) + N(0, J·σ²C²·I),   j = 1 … J.

All are functions of the same Poisson draw: J Gaussians of multiplier σ√J, one after the other, cost what one of σ
costs, and that one is subsampled and goes into the ledger, once a draw, before the first of them is made.

A preconditioner a of the coordinates shares out the noise: a∘φ is clipped and gets it, and the sum is divided by a.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

import quietgrad as qg
from benchmarks.fine_tuning.activations import Ragged
from quietgrad._collective import default_reducer
from quietgrad._noise.sources import as_source
from quietgrad._release.noise_states import NoiseStates
from quietgrad._release.releaser import AccountedDraw, Releaser
from quietgrad._sampling.batch import Batch

ROWS = 64
"""Sentences that are passed at a time."""


class Lines(NamedTuple):
    """Where the records of a draw touch the model."""

    z: Float[Tensor, " n"]
    phi: Float[Tensor, "n p"]
    """With respect to the layers, then to the difference of the head's weights and of its biases."""
    truth: Float[Tensor, " n"]


class Trained(NamedTuple):
    """What trains: one parameter of each layer, a matrix or a bias, and a head of two classes."""

    layers: list[nn.Module]
    head: nn.Linear

    def parameters(self) -> list[nn.Parameter]:
        """The layers'."""
        return [_own(layer)[1] for layer in self.layers]

    def vector(self) -> Float[Tensor, " p"]:
        """θ."""
        weight, bias = self.head.weight[1] - self.head.weight[0], self.head.bias[1] - self.head.bias[0]
        parts = [*(parameter.flatten() for parameter in self.parameters()), weight, bias[None]]
        return torch.cat(parts).detach()

    def set_gradients(self, gradient: Float[Tensor, " p"]) -> None:
        """The head's two rows go apart."""
        sizes = [parameter.numel() for parameter in self.parameters()]
        *parts, weight, bias = gradient.split([*sizes, self.head.in_features, 1])
        for parameter, part in zip(self.parameters(), parts, strict=True):
            parameter.grad = part.view_as(parameter)
        self.head.weight.grad, self.head.bias.grad = torch.stack([-weight, weight]), torch.cat([-bias, bias])


def trained(layers: nn.Module, head: nn.Linear) -> Trained:
    """What of these layers is not frozen."""
    found = [m for m in layers.modules() if any(p.requires_grad for p in m.parameters(recurse=False))]
    return Trained(found, head)


def _own(layer: nn.Module) -> tuple[str, nn.Parameter]:
    own = [(name, p) for name, p in layer.named_parameters(recurse=False) if p.requires_grad]
    if len(own) != 1 or own[0][0] not in ("weight", "bias"):
        raise ValueError(
            f"{layer} has not just a matrix or just a bias to train. Freeze the others, or pass --reuse 1."
        )
    return own[0]


class Steps:
    """The J steps of every draw.

    Args:
        trained: what they change.
        program: calibrated for one release a draw.
        batches: the draws.
        ledger: of the program.
        often: J.
        scale: a; ones give all coordinates the same noise.
    """

    def __init__(
        self,
        trained: Trained,
        program: qg.Program,
        batches: qg.PoissonBatches,
        ledger: qg.Ledger,
        often: int,
        scale: Float[Tensor, " p"],
    ) -> None:
        self.trained, self.program, self.batches = trained, program, batches
        self.ledger, self.often, self.scale = ledger, often, scale
        self.releaser = Releaser(
            ledger=ledger,
            states=NoiseStates(program.training.noise),
            source=as_source("default"),
            reducer=default_reducer(),
            divisor=batches.rate * batches.units,
        )

    def take(self, step: int, lines: Lines, optimizer: Any, schedule: Any) -> None:
        """Record a draw in the ledger and take all of its steps."""
        begin, scaled = self.trained.vector(), lines.phi * self.scale
        charge = self.batches.charge(self.program.event(step), step)
        with self.releaser.record(charge, step=step) as draw:
            for _ in range(self.often):
                z = lines.z + scaled @ ((self.trained.vector() - begin) / self.scale)
                released = self.release(draw, torch.sigmoid(z) - lines.truth, scaled)
                self.trained.set_gradients(released / self.scale)
                optimizer.step()
                schedule.step()

    def release(
        self, draw: AccountedDraw, slopes: Float[Tensor, " n"], phi: Float[Tensor, "n p"]
    ) -> Float[Tensor, " p"]:
        """Release g_j over the expected size of a draw: one J-th of what the draw may release."""
        block = qg.FactoredGrad(phi[:, None, :], slopes[:, None, None], algorithm="outer")
        clip = self.program.training.releases[0].clip
        total = clip(qg.BlockwiseGrads({"line": block}, block.samples), draw.step)
        released = draw.release(total, std=draw.std(total.sensitivity, share=1 / self.often))
        return released.blocks["line"][0]


def lines(model: nn.Module, trained: Trained, table: Ragged, drawn: Batch) -> Lines:
    """Pass a draw through the model; an empty one has no lines, and its steps are noise."""
    if not len(drawn):
        return Lines(torch.zeros(0), torch.zeros(0, len(trained.vector())), torch.zeros(0))
    parts = [_touching(model, trained, table, *few) for few in drawn.split(ROWS)]
    return Lines(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _touching(model: nn.Module, trained: Trained, table: Ragged, rows: Tensor, labels: Tensor) -> Lines:
    calls: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def record(layer: nn.Module, inputs: tuple[Tensor], outputs: Tensor) -> None:
        calls[layer] = inputs[0].detach(), outputs

    handles = [layer.register_forward_hook(record) for layer in (*trained.layers, trained.head)]
    logits = model(*table.read(rows))
    for handle in handles:
        handle.remove()
    z = logits[:, 1] - logits[:, 0]
    gradients = torch.autograd.grad(z.sum(), [calls[layer][1] for layer in trained.layers])
    phi = [
        _tangent(layer, calls[layer][0], gradient)
        for layer, gradient in zip(trained.layers, gradients, strict=True)
    ]
    return Lines(
        z.detach(), torch.cat([*phi, calls[trained.head][0], torch.ones(len(z), 1)], 1), labels.float()
    )


def _tangent(
    layer: nn.Module, inputs: Float[Tensor, "n t i"], gradient: Float[Tensor, "n t o"]
) -> Float[Tensor, "n q"]:
    """Of z with respect to the layer's parameter; a matrix is that of a linear layer."""
    if _own(layer)[0] == "bias":
        return gradient.sum(1)
    assert isinstance(layer, nn.Linear)
    return (gradient.mT @ inputs).flatten(1)
