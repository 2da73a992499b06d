"""Real models and modules: right, or refused for a true reason.

    python -m benchmarks.zoo                         a table of all; families whose package is missing are said to be
    python -m benchmarks.zoo --only transformers     one family, or entries whose name contains the word
    python -m benchmarks.zoo --json FILE             the figures, one object a line

Every entry is compared in float64 with a loop over single samples: the sums of clipped gradients (no noise) of n = 3
samples, with a clip that touches nobody and one that touches everybody. Times are processor time of one thread, the
best of three steps in float32, private over plain.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from benchmarks.zoo_entries import diffusion, hugging_face, peft_adapters, timm_models, torch_modules
from benchmarks.zoo_entries.base import Entry, Inputs

N = 3
TOLERANCE = 1e-5
"""Of the length of the sum; float64 leaves 1e-12 and more, the engine's own margin of the clip 1e-4 of it."""
PACKAGES = {"transformers": "transformers", "peft": "peft", "diffusers": "diffusers", "timm": "torchvision"}


@dataclass
class Verdict:
    """How one entry fared: "right", "refused", "wrong" or "crash"; `reason` says why."""

    family: str
    name: str
    parameters: int
    verdict: str
    reason: str = ""
    error: float = math.nan
    ratio: float = math.nan


def all_entries() -> Iterator[Entry]:
    for module in (torch_modules, hugging_face, peft_adapters, diffusion, timm_models):
        yield from module.entries()


def judged(entry: Entry, *, timed: bool) -> Verdict:
    """Compare one entry with the loop."""
    model = entry.model().double()
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    verdict = Verdict(entry.family, entry.name, parameters, "right")
    inputs = _cast(entry.inputs(N, torch.Generator().manual_seed(1)), torch.float64)
    rows = looped(entry, model, inputs)
    try:
        norms = torch.stack([row.norm() for row in rows])
        errors = []
        for clip in (1e6 * float(norms.max() + 1), 0.1 * float(norms.min()) or 0.1):
            scales = (clip / norms.clamp_min(1e-300)).clamp_max(1.0)
            expected = torch.stack(rows).mul(scales[:, None]).sum(0)
            found = private_sum(entry, model, inputs, clip)
            errors.append(float((found - expected).norm() / expected.norm().clamp_min(1e-300)))
        verdict.error = max(errors[0], errors[1] - 1e-4)  # the clip leaves a margin of 1e-4 to rounding
        verdict.verdict = "right" if verdict.error < TOLERANCE * 10 else "wrong"
        if timed and verdict.verdict == "right":
            verdict.ratio = cost(entry)
    except ValueError as error:
        verdict.verdict, verdict.reason = "refused", str(error)
    except Exception as error:
        verdict.verdict, verdict.reason = "crash", f"{type(error).__name__}: {error}"
        traceback.print_exc()
    return verdict


def looped(entry: Entry, model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """The flat gradient of each sample alone."""
    trained = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for i in range(N):
        loss = entry.losses(model, {name: x[i : i + 1] for name, x in inputs.items()}).sum()
        found = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([g.flatten() for g in found]))
    return rows


def private_sum(entry: Entry, model: nn.Module, inputs: Inputs, clip: float) -> Tensor:
    """Σ clip(g_i), as released without noise, of the second of two equal batches."""
    data = TensorDataset(*inputs.values())
    batches = qg.PoissonBatches.replay(data, [range(N), range(N)], rate=1.0)
    with qg.Privatizer(model, qg.methods.dp_sgd(clip=clip).with_noise(0.0), batches) as private:
        for batch in batches:
            for rows in batch.split(N):
                private.backward(entry.losses(model, dict(zip(inputs, rows, strict=True))))
            private.release()
        trained = [p for p in model.parameters() if p.requires_grad]
        return torch.cat([p.grad.flatten() for p in trained if p.grad is not None]) * N


def cost(entry: Entry, batch: int = 8, steps: int = 3) -> float:
    """Processor time of a private step over that of a plain one, in float32."""
    model = entry.model()
    inputs = _cast(entry.inputs(batch, torch.Generator().manual_seed(2)), torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def plain() -> None:
        optimizer.zero_grad()
        entry.losses(model, inputs).mean().backward()
        optimizer.step()

    before = min(_seconds(plain) for _ in range(steps + 2))
    batches = qg.PoissonBatches.replay(
        TensorDataset(*inputs.values()), [range(batch)] * (steps + 5), rate=1.0
    )
    draws = iter(batches)
    with qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches) as private:

        def step() -> None:
            for rows in next(draws).split(batch):
                private.backward(entry.losses(model, dict(zip(inputs, rows, strict=True))))
            private.release()
            optimizer.step()

        times = [_seconds(step) for _ in range(steps + 5)]
    return min(times[3:]) / before


def _seconds(step: Callable[[], None]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def _cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in inputs.items()}


def table(verdicts: list[Verdict]) -> str:
    """Counts for each family, then all entries."""
    kinds = ("right", "refused", "wrong", "crash")
    lines = [
        "| family | entries | " + " | ".join(kinds) + " | median ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for family in dict.fromkeys(v.family for v in verdicts):
        mine = [v for v in verdicts if v.family == family]
        ratios = sorted(v.ratio for v in mine if not math.isnan(v.ratio))
        middle = f"×{ratios[len(ratios) // 2]:.2f}" if ratios else "–"
        counts = " | ".join(str(sum(v.verdict == kind for v in mine)) for kind in kinds)
        lines.append(f"| {family} | {len(mine)} | {counts} | {middle} |")
    lines += ["", "| model | parameters | verdict | ratio |", "|---|---|---|---|"]
    for v in verdicts:
        ratio = "–" if math.isnan(v.ratio) else f"×{v.ratio:.2f}"
        said = (
            v.verdict
            if v.verdict == "right"
            else f"{v.verdict}: {v.reason.splitlines()[0][:160] if v.reason else v.error}"
        )
        lines.append(f"| {v.family} {v.name} | {v.parameters:,} | {said} | {ratio} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compares real models with a loop over samples.")
    parser.add_argument("--only", default="", help="entries whose family or name contains this")
    parser.add_argument("--json", type=Path, help="append each verdict to this file")
    parser.add_argument("--no-times", action="store_true", help="leave the ratio to the plain step out")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    verdicts = []
    for entry in all_entries():
        package = PACKAGES.get(entry.family, "torch")
        if options.only.lower() not in f"{entry.family} {entry.name}".lower() or find_spec(package) is None:
            continue
        try:
            verdict = judged(entry, timed=not options.no_times)
        except Exception as error:  # the model itself does not run in this version of its package
            print(f"{entry.family} {entry.name}: not built: {error}"[:200])
            continue
        verdicts.append(verdict)
        figures = f"{verdict.verdict} {verdict.error:.1e} ×{verdict.ratio:.2f} {verdict.reason[:150]}"
        print(f"{entry.family} {entry.name}: {figures}", flush=True)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(asdict(verdict)) + "\n")
    print(table(verdicts))


if __name__ == "__main__":
    main()
