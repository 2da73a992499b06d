"""The run that the noise is subtracted from: a small network, one victim among seven others, every method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from tests.attacks.harness import TRIALS, clipped_sum, coins, releases

INPUTS, WIDTH = 12, 32
OTHERS, ALL = list(range(1, 8)), list(range(8))


class Target(nn.Module):
    """Two linear layers; "mixed" keeps the second one in float64. Gradients stay below a clip of ½."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(INPUTS, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        if dtype == "mixed":
            self.second.double()
        else:
            self.to(getattr(torch, dtype))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x.to(self.first.weight.dtype)))
        out: Tensor = self.second(hidden.to(self.second.weight.dtype)).square().sum(1)
        return 0.02 * out


def records() -> TensorDataset:
    """The victim is record 0."""
    return TensorDataset(torch.randn(8, INPUTS, generator=torch.Generator().manual_seed(2)))


def public_losses(model: nn.Module) -> Tensor:
    """The same public records at every call."""
    losses: Tensor = model(torch.randn(24, INPUTS, generator=torch.Generator().manual_seed(3)))
    return losses


METHODS: dict[str, Callable[[], qg.Mechanism]] = {
    "dp_sgd": lambda: qg.methods.dp_sgd(clip=1.0),
    "gep": lambda: qg.methods.gep(public_losses, rank=8),
    "rgp": lambda: qg.methods.rgp(rank=2, clip=1.0),
    "random_freeze": lambda: qg.methods.random_freeze(freeze=0.5, clip=1.0),
    "pdp_sgd": lambda: qg.methods.pdp_sgd(public_losses, rank=8, clip=1.0),
}

SETTINGS = [
    *[("dp_sgd", dtype, "default") for dtype in ("float32", "float64", "mixed", "bfloat16", "float16")],
    *[("dp_sgd", dtype, "hardened") for dtype in ("float32", "mixed", "bfloat16")],
    *[(method, "float32", "default") for method in METHODS if method != "dp_sgd"],
]
"""(method, dtype, noise source); the rest of the product is in SLOW_SETTINGS."""
SLOW_SETTINGS = [
    *[("dp_sgd", dtype, "hardened") for dtype in ("float64", "float16")],
    *[(method, "float64", "default") for method in METHODS if method != "dp_sgd"],
    *[(method, "float32", "hardened") for method in METHODS if method != "dp_sgd"],
]


@dataclass(frozen=True, eq=False, repr=False)
class Game:
    """What the adversary holds: the releases of many steps and both candidate sums, coordinate by coordinate.

    Args:
        seen: p.grad·qN of each step.
        absent, present: the sum without and with the victim.
        truth: whether the victim took part; only the referee looks.
        shadow: a release of his own, whose sum is `present`.
        std: of the noise, which is public.
        chosen: coordinates that show noise of their own and not a mixture.
    """

    seen: Sequence[Tensor]
    absent: Tensor
    present: Tensor
    truth: Sequence[bool]
    shadow: Tensor
    std: float
    chosen: Tensor

    def shown(self, seen: Tensor) -> Tensor:
        """Where a release has noise of its own; frozen coordinates have none."""
        return self.chosen & (seen != 0)

    def noise(self, seen: Tensor, candidate: Tensor) -> Tensor:
        """What the noise would have been if the candidate were the sum."""
        return (seen - candidate)[self.shown(seen)] / self.std


@cache
def play(method: str, dtype: str, source: str, sigma: float, trials: int = TRIALS) -> Game:
    """Run the target as its owner would, once per trial, and hand over what is public; once for all attacks."""
    truth, model = coins(trials), Target(dtype)
    draws = [ALL if there else OTHERS for there in truth]
    mechanism = METHODS[method]().with_noise(sigma)
    *seen, shadow = releases(model, mechanism, records(), [*draws, ALL], noise_source=source)
    return Game(
        seen=seen,
        absent=clipped_sum(lambda: Target(dtype), records(), OTHERS),
        present=clipped_sum(lambda: Target(dtype), records(), ALL),
        truth=truth,
        shadow=shadow,
        std=sigma,
        chosen=_own_noise(method, model),
    )


def _own_noise(method: str, model: nn.Module) -> Tensor:
    """RGP adds noise to a matrix through its carriers; the last matrix and the biases have none."""
    mixed = {"first.weight"} if method == "rgp" else set()
    return torch.cat([torch.full((p.numel(),), name not in mixed) for name, p in model.named_parameters()])
