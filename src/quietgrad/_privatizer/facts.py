"""What a run is: what its ledger describes, and what its ranks compare at the start and at every step."""

from __future__ import annotations

import functools
import hashlib
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from quietgrad._collective import Facts, Fingerprint
from quietgrad._gradients.blocks import DenseGrad
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._noise.sources import NoiseSource
from quietgrad._privatizer.step import Step
from quietgrad._representations.base import Identity, Public
from quietgrad._sampling.poisson import PoissonSampler
from quietgrad.accounting.events import Phase
from quietgrad.accounting.ledger import Ledger

PIECE = 1 << 20
"""Numbers of a block that are compared at a time."""


def run_facts(
    model: nn.Module,
    parameters: Mapping[str, Tensor],
    mechanism: Mechanism,
    sampler: PoissonSampler,
    source: NoiseSource,
    *,
    research: bool,
) -> Facts:
    """Config, model, data and versions."""
    return Facts(
        equal={
            "versions": _versions(),
            "mechanism": mechanism.describe(),
            "data": {**sampler.describe(), "rate": sampler.rate, "steps": sampler.steps},
            "parameters": {name: f"{str(p.dtype)[6:]}{list(p.shape)}" for name, p in parameters.items()},
            "weights": _hash(model),
            "noise": {"source": type(source).__name__, "private": source.private},
            "private draws": sampler.private,
            "research": research,
        },
    )


def open_ledger(
    ledger: Ledger | str | Path | None,
    plan: Sequence[Phase],
    mechanism: Mechanism,
    sampler: PoissonSampler,
    source: NoiseSource,
) -> Ledger:
    """Return the ledger that is given, or one in that file (in memory without), for this plan, mechanism and data."""
    if isinstance(ledger, Ledger):
        return ledger
    description = {"mechanism": mechanism.describe(), **sampler.describe(), **source.describe()}
    return Ledger(ledger, plan=plan, description=description)


def step_facts(step: Step, sampler: PoissonSampler, ledger: Ledger) -> Facts:
    """That all ranks are at the same step of the same run, with the same draw, ledger, weights and codecs."""
    public = step.public
    # Of a sharded model there is one copy of the weights, and its masks follow from the public seed.
    sharded = public.space.is_sharded
    close = {} if sharded else {"weights": _fingerprint(public.parameters)}
    for index, release in enumerate(step.mechanism.releases):
        codec = step.codec(index)
        if sharded:
            # A made-up gradient would be as large as the whole model. What the codec was made of serves as well.
            marks = _floats(public.codecs.state(release.representation, public))
        elif type(release.representation) is Identity:
            continue
        else:
            encoded = codec.encode(_probe(public.parameters))
            marks = encoded.weighted_sum(torch.ones(1, dtype=torch.float64, device=_device(public)))
        if marks:
            close[f"representation of release {index}"] = _fingerprint(marks)
    return Facts(
        equal={
            "step": public.step,
            "public seed": public.seed,
            "draw": sampler.draw_hash(public.step),
            "ledger": {"count": ledger.count, "head": ledger.head},
        },
        close=close,
    )


def _versions() -> dict[str, str]:
    return {
        "quietgrad": version("quietgrad"),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
    }


def _hash(model: nn.Module) -> str:
    """Of every parameter and buffer, bit by bit. Shards are left out: each rank has its own."""
    digest = hashlib.sha256()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if type(tensor).__name__ == "DTensor":
            continue
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _fingerprint(blocks: Mapping[str, Tensor]) -> Fingerprint:
    """Σ_j x_j·c_j and ‖x‖: another sign, order or choice of coordinates shows, rounding does not."""
    value = squared = torch.zeros((), dtype=torch.float64, device=next(iter(blocks.values())).device)
    for number, piece in enumerate(_pieces(blocks)):
        pattern = _pattern(piece.dtype, piece.device)[: len(piece)]
        value = value + math.cos(1.3 * number) * (piece @ pattern).double()
        squared = squared + piece.norm().double().square()
    return Fingerprint(value=float(value), scale=math.sqrt(float(squared)))


def _pieces(blocks: Mapping[str, Tensor]) -> Iterator[Float[Tensor, " k"]]:
    """Cut blocks into pieces: a copy of all of them would be as large as the model."""
    for block in blocks.values():
        for piece in block.detach().reshape(-1).split(PIECE):
            yield piece.to(torch.promote_types(piece.dtype, torch.float32))


def _floats(value: Any, path: str = "state") -> dict[str, Tensor]:
    """Return the numbers in what a representation remembers."""
    if isinstance(value, Mapping):
        entries = [_floats(item, f"{path}.{key}") for key, item in value.items()]
    elif isinstance(value, list | tuple):
        entries = [_floats(item, f"{path}.{place}") for place, item in enumerate(value)]
    elif isinstance(value, float):
        return {path: torch.tensor([value], dtype=torch.float64)}
    elif isinstance(value, Tensor) and value.is_floating_point():
        return {path: value.detach().double().cpu()}
    else:
        return {}
    return {name: tensor for entry in entries for name, tensor in entry.items()}


def _probe(parameters: Mapping[str, Tensor]) -> BlockwiseGrads:
    """Return a made-up gradient of one sample, the same on every rank: it shows what a codec does."""
    rows = {}
    for number, (name, p) in enumerate(parameters.items()):
        pattern = _pattern(p.dtype, p.device).repeat(-(-p.numel() // PIECE))[: p.numel()]
        rows[name] = DenseGrad((math.cos(1.3 * number) * pattern).view(1, *p.shape))
    return BlockwiseGrads(rows, 1)


@functools.lru_cache(maxsize=8)
def _pattern(dtype: torch.dtype, device: torch.device) -> Float[Tensor, " piece"]:
    return torch.arange(PIECE, dtype=torch.float64).mul(0.7).cos().to(device, dtype)


def _device(public: Public) -> torch.device:
    return next(iter(public.parameters.values())).device
