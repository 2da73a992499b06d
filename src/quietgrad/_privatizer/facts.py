"""What a run is: what its ledger describes, what its ranks compare at the start and at every step, its checkpoint."""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from quietgrad._collective import Facts, Fingerprint
from quietgrad._errors import PrivacyError
from quietgrad._gradients.blocks import DenseGrad, flatten, unflatten
from quietgrad._gradients.space import Space, coordinates
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._noise.sources import NoiseSource
from quietgrad._privatizer.step import RunState, Step
from quietgrad._representations.base import Public
from quietgrad._sampling.poisson import PoissonSampler
from quietgrad.accounting.events import Phase
from quietgrad.accounting.ledger import Ledger


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
    """The ledger that is given, or one in that file (in memory without), for this plan, mechanism and data."""
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
    for index in () if sharded else range(len(step.mechanism.releases)):
        encoded = step.codec(index).encode(_probe(public.parameters))
        marks = encoded.weighted_sum(torch.ones(1, dtype=torch.float64, device=_device(public)))
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


def checkpoint(
    state: RunState, mechanism: Mechanism, sampler: PoissonSampler, ledger: Ledger
) -> dict[str, Any]:
    """How far the run has come, of which mechanism, what it protects, and where its ledger was."""
    return {
        **state.state_dict(),
        "ledger_head": ledger.head,
        "ledger_count": ledger.count,
        "mechanism": mechanism.describe(),
        "protected": sampler.describe(),
    }


def check_checkpoint(
    saved: Mapping[str, Any], mechanism: Mechanism, sampler: PoissonSampler, ledger: Ledger
) -> None:
    """Refuse one that this run cannot go on from.

    Raises:
        ValueError: it was made with another mechanism or unit, or the ledger holds less than it saw.
    """
    if saved.get("protected", sampler.describe()) != sampler.describe():
        raise PrivacyError(
            f"The checkpoint protects {saved['protected']}, these batches {sampler.describe()}. Go on with "
            "the same unit, most_records and data, or start a new run."
        )
    if saved["mechanism"] != mechanism.describe():
        raise PrivacyError(
            "The checkpoint was made with another mechanism. Build the same one, or start a new run."
        )
    ledger.verify_against(saved["ledger_head"], saved["ledger_count"])


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
    """Σ_j x_j·cos(0.7·j) and ‖x‖: another sign, order or choice of coordinates shows, rounding does not."""
    flat = flatten(blocks)
    value = flat @ _pattern(len(flat), flat.dtype, flat.device)
    return Fingerprint(value=float(value), scale=float(flat.norm()))


def _probe(parameters: Mapping[str, Tensor]) -> BlockwiseGrads:
    """A made-up gradient of one sample, the same on every rank: it shows what a codec does."""
    first = next(iter(parameters.values()))
    one = _pattern(coordinates(Space.of(parameters)), first.dtype, first.device)
    blocks = unflatten(one, parameters)
    return BlockwiseGrads({name: DenseGrad(block[None]) for name, block in blocks.items()}, 1)


@functools.lru_cache(maxsize=8)
def _pattern(count: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, " count"]:
    return torch.arange(count, dtype=torch.float64).mul(0.7).cos().to(device, dtype)


def _device(public: Public) -> torch.device:
    return next(iter(public.parameters.values())).device
