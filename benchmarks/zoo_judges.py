"""How one model of the zoo fares: here and with Opacus, against a loop over its samples.

Both are given n = 3 samples in float64 and must return the sums of clipped gradients (no noise), with a clip that
touches nobody and one that touches everybody. Times are of one thread in float32, private over plain: the best of at
least 3 steps, processor time, or by the wall clock where a step is shorter than 20 ms.
"""

from __future__ import annotations

import math
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from benchmarks.zoo_entries.base import Entry, Inputs

N, WARM_UP, MOST = 3, 4, 60
TOLERANCE = 1e-5
"""Of the length of the sum. Where nothing is clipped float64 leaves 1e-12; a clip's weights are good to 1e-6."""
SECONDS = 60
"""For one model and one contender; what takes longer is said to."""

Sums = Callable[[float], Tensor]
"""clip → the flat sum of clipped gradients."""


@dataclass
class Verdict:
    """ "right", "refused", "wrong", "crash" or "slow"; `reason` says why, `ratio` is private over plain."""

    verdict: str = "right"
    reason: str = ""
    error: float = math.nan
    ratio: float = math.nan
    plain_ms: float = math.nan


def looped(entry: Entry, model: nn.Module, inputs: Inputs) -> Tensor:
    """The flat gradients `[n, p]` of each sample alone."""
    rows = []
    for i in range(N):
        loss = entry.losses(model, {name: x[i : i + 1] for name, x in inputs.items()}).sum()
        found = torch.autograd.grad(loss, trained(model), allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([g.flatten() for g in found]))
    return torch.stack(rows)


def judged(sums: Sums, rows: Tensor, margin: float) -> Verdict:
    """Compare sums with those of the loop; a clip to C may scale to (1 − margin)·C."""
    norms = rows.norm(dim=1)
    small = 0.1 * float(norms[norms > 0].min()) if norms.any() else 0.1
    try:
        with limit(SECONDS):
            errors = [
                _error(sums(clip), rows, clip * (1 - margin))
                for clip in (1e6 * float(norms.max() + 1), small)
            ]
    except (ValueError, NotImplementedError) as error:
        return Verdict("refused", str(error))
    except TimeoutError:
        return Verdict("slow", f"not done after {SECONDS} s")
    except Exception as error:
        traceback.print_exc()
        return Verdict("crash", f"{type(error).__name__}: {error}")
    return Verdict("right" if max(errors) < TOLERANCE else "wrong", error=max(errors))


def _error(found: Tensor, rows: Tensor, clip: float) -> float:
    scales = (clip / rows.norm(dim=1).clamp_min(1e-300)).clamp_max(1.0)
    expected = rows.mul(scales[:, None]).sum(0)
    return float((found - expected).norm() / expected.norm().clamp_min(1e-300))


def our_sums(entry: Entry, model: nn.Module, inputs: Inputs) -> Sums:
    """What is released without noise of the second of two equal batches."""

    def sums(clip: float) -> Tensor:
        batches = qg.PoissonBatches.replay(TensorDataset(*inputs.values()), [range(N), range(N)], rate=1.0)
        with qg.Privatizer(model, qg.methods.dp_sgd(clip=clip).with_noise(0.0), batches) as private:
            for batch in batches:
                for rows in batch.split(N):
                    private.backward(entry.losses(model, dict(zip(inputs, rows, strict=True))))
                private.release()
            return torch.cat([_flat(p.grad, p) for p in trained(model)]) * N

    return sums


def opacus_sums(entry: Entry, model: nn.Module, inputs: Inputs) -> Sums:
    """Opacus' per-sample gradients (hooks, the default mode), clipped."""
    from opacus import GradSampleModule
    from opacus.validators import ModuleValidator

    def sums(clip: float) -> Tensor:
        ModuleValidator.validate(model.train(), strict=True)
        capture_only(model)
        wrapped = GradSampleModule(model, loss_reduction="sum")
        try:
            wrapped.zero_grad()
            entry.losses(wrapped, inputs).sum().backward()
            rows = torch.cat([_rows(p) for p in trained(model)], 1)
        finally:
            wrapped.to_standard_module()
            model.zero_grad()
        return rows.mul((clip / rows.norm(dim=1).clamp_min(1e-300)).clamp_max(1.0)[:, None]).sum(0)

    return sums


def capture_only(model: nn.Module) -> None:
    """Opacus records what is in training mode: what has parameters; dropout stays off, as in the loop."""
    for module in model.modules():
        module.training = next(module.parameters(recurse=False), None) is not None


def _rows(parameter: Any) -> Tensor:
    found = getattr(parameter, "grad_sample", None)
    if found is None:
        return torch.zeros(N, parameter.numel(), dtype=parameter.dtype)
    stacked: Tensor = torch.stack(found).sum(0) if isinstance(found, list) else found
    return stacked.reshape(N, -1)


def plain_step(entry: Entry, model: nn.Module, inputs: Inputs) -> Callable[[], None]:
    optimizer = torch.optim.SGD(trained(model), lr=0.0)

    def step() -> None:
        optimizer.zero_grad()
        entry.losses(model, inputs).mean().backward()
        optimizer.step()

    return step


@contextmanager
def our_step(entry: Entry, model: nn.Module, inputs: Inputs) -> Iterator[Callable[[], None]]:
    """A private step as a user makes it: the draw, the runtime checks, noise and ledger included."""
    size = len(next(iter(inputs.values())))
    data = TensorDataset(*inputs.values())
    batches = qg.PoissonBatches.replay(data, [range(size)] * MOST, rate=1.0)
    optimizer, draws = torch.optim.SGD(trained(model), lr=0.0), iter(batches)
    with qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches) as private:

        def step() -> None:
            for rows in next(draws).split(size):
                private.backward(entry.losses(model, dict(zip(inputs, rows, strict=True))))
            private.release()
            optimizer.step()

        yield step


@contextmanager
def opacus_step(entry: Entry, model: nn.Module, inputs: Inputs) -> Iterator[Callable[[], None]]:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    size = len(next(iter(inputs.values())))
    optimizer = DPOptimizer(torch.optim.SGD(trained(model), lr=0.0), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=size)  # fmt: skip  # noqa: E501
    capture_only(model)
    wrapped = GradSampleModule(model)

    def step() -> None:
        optimizer.zero_grad()
        entry.losses(wrapped, inputs).mean().backward()
        optimizer.step()

    yield step
    wrapped.to_standard_module()


def timed(entry: Entry, contender: Callable[..., Any], verdict: Verdict) -> None:
    """Note a plain step's time, and that of a contender's step over it."""
    inputs = cast(entry.inputs(entry.batch, torch.Generator().manual_seed(2)), torch.float32)
    model = entry.model()
    plain = _best(plain_step(entry, model, inputs))
    verdict.plain_ms = 1e3 * plain
    try:
        with limit(SECONDS), contender(entry, model, inputs) as step:
            verdict.ratio = _best(step) / plain
    except TimeoutError:
        verdict.ratio = math.inf
    except ValueError as error:  # Opacus' optimizer refuses parameters that got no gradient
        verdict.reason = f"its optimizer: {error}"


def _best(step: Callable[[], None]) -> float:
    """Seconds of the fastest step; the first ones choose algorithms and are left out."""
    for _ in range(WARM_UP):
        step()
    walls: list[float] = []
    processor: list[float] = []
    while len(walls) < 3 or (sum(walls) < 0.3 and len(walls) < MOST - WARM_UP):
        wall, used = time.perf_counter(), time.process_time()
        step()
        walls.append(time.perf_counter() - wall)
        processor.append(time.process_time() - used)
    return min(walls) if min(walls) < 0.02 else min(processor)


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in inputs.items()}


def _flat(grad: Tensor | None, parameter: Tensor) -> Tensor:
    return torch.zeros(parameter.numel(), dtype=parameter.dtype) if grad is None else grad.flatten()


@contextmanager
def limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError after some seconds of processor time."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
