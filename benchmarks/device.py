"""What a device does with quietgrad: is it right, how often does the host wait, how long does a step take?

    python -m benchmarks.device --device cuda            a table to read
    python -m benchmarks.device --device cuda --json     the same to send back (docs/devices.md says where)

No GPU has run this yet. It checks three laws and takes times and memory:

* D1: the device gets the CPU's gradients, up to rounding; noise is so small that it hides no error.
* D2: no operator mixes devices, else torch raises.
* D3: CUDA counts the synchronisations of a step (`torch.cuda.set_sync_debug_mode`).
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils.data import TensorDataset

import quietgrad as qg
from benchmarks.models import CLASSES, SETTINGS, Setting
from quietgrad._noise.sources import DeviceSource, EntropySource

STEPS = 12
SMALL_NOISE = 1e-3


@dataclass(frozen=True)
class Result:
    """One model on one device.

    Args:
        difference: of the last gradients of device and CPU, in parts of the CPU's (law D1).
        waits: synchronisations of a later step (law D3); None where torch cannot count them.
        plain_ms, private_ms: a step, the median of some.
        peak_mb: memory of the device in the private run; None where torch cannot tell.
    """

    model: str
    parameters: int
    difference: float
    waits: int | None
    plain_ms: float
    private_ms: float
    peak_mb: float | None


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def make_data(setting: Setting, batch: int) -> TensorDataset:
    labels = torch.randint(CLASSES, (batch,), generator=torch.Generator().manual_seed(1))
    return TensorDataset(setting.inputs(batch), labels)


def train_privately(
    setting: Setting, batch: int, device: torch.device, *, noise: float, source: qg.NoiseSource | str
) -> tuple[torch.Tensor, list[float], list[int]]:
    """Return the last gradient, milliseconds and synchronisations of each step."""
    torch.manual_seed(0)
    model = setting.model().to(device)
    batches = qg.PoissonBatches(make_data(setting, batch), rate=1.0, steps=STEPS, device=device)
    mechanism, times, waits = qg.methods.dp_sgd(clip=1.0).with_noise(noise), list[float](), list[int]()
    with qg.Privatizer(
        model, mechanism, batches, noise_source=source, deterministic=True, public_seed=1
    ) as private:
        for drawn in batches:
            synchronize(device)
            start = time.perf_counter()
            with counting_waits(device) as counted:
                for x, y in drawn.split(batch):
                    private.backward(setting.losses(model(x), x, y))
                private.release()
            synchronize(device)
            times.append(1e3 * (time.perf_counter() - start))
            waits.append(len(counted))
    grads = [p.grad.flatten().cpu() for p in model.parameters() if p.grad is not None]
    return torch.cat(grads), times, waits


class counting_waits(warnings.catch_warnings):  # noqa: N801 (a context manager that is used like a function)
    """Collect the warnings that CUDA gives at each synchronisation."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(record=True)
        self._is_cuda = device.type == "cuda"

    def __enter__(self) -> Any:
        found = super().__enter__()
        warnings.simplefilter("always")
        if self._is_cuda:
            torch.cuda.set_sync_debug_mode("warn")
        return found

    def __exit__(self, *error: Any) -> None:
        if self._is_cuda:
            torch.cuda.set_sync_debug_mode("default")
        super().__exit__(*error)


def time_plain(setting: Setting, batch: int, device: torch.device) -> float:
    torch.manual_seed(0)
    model = setting.model().to(device)
    x, y = (tensor.to(device) for tensor in make_data(setting, batch).tensors)
    times = []
    for _ in range(STEPS):
        synchronize(device)
        start = time.perf_counter()
        model.zero_grad()
        setting.losses(model(x), x, y).mean().backward()
        synchronize(device)
        times.append(1e3 * (time.perf_counter() - start))
    return sorted(times)[STEPS // 2]


def measure(setting: Setting, batch: int, device: torch.device) -> Result:
    """Check and time one model."""
    expected, _, _ = train_privately(
        setting, batch, torch.device("cpu"), noise=SMALL_NOISE, source=qg.SeededSource(1)
    )
    found, _, _ = train_privately(setting, batch, device, noise=SMALL_NOISE, source=qg.SeededSource(1))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    # On a GPU as it should be used there; elsewhere this source draws on the host, and more slowly.
    source = "device" if device.type == "cuda" else "default"
    _, times, waits = train_privately(setting, batch, device, noise=1.0, source=source)
    return Result(
        model=setting.name,
        parameters=len(found),
        difference=float((found - expected).norm() / expected.norm()),
        waits=min(waits) if device.type == "cuda" else None,
        plain_ms=time_plain(setting, batch, device),
        private_ms=sorted(times)[STEPS // 2],
        peak_mb=torch.cuda.max_memory_allocated() / 1e6 if device.type == "cuda" else None,
    )


def noise_rate(coordinates: int, source: qg.NoiseSource, device: torch.device) -> float:
    """Return the gigabytes of integers that a source draws in a second on a device."""
    out = torch.empty(coordinates, dtype=torch.int32, device=device)
    source.fill(out)
    synchronize(device)
    start = time.perf_counter()
    source.fill(out)
    synchronize(device)
    return 4e-9 * coordinates / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", nargs="*", default=[setting.name for setting in SETTINGS])
    parser.add_argument("--batch", type=int, help="rows of a step; each model has its own if left out")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    device = torch.device(args.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    results = [
        measure(setting, args.batch or setting.batch, device)
        for setting in SETTINGS
        if setting.name in args.models
    ]
    noise = noise_rate(1 << 22, EntropySource(), torch.device("cpu"))
    own = noise_rate(1 << 22, DeviceSource(), device)
    if args.json:
        facts = {
            "device": name,
            "torch": torch.__version__,
            "noise_gb_per_s": noise,
            "device_noise_gb_per_s": own,
        }
        print(json.dumps({**facts, "models": [asdict(result) for result in results]}, indent=1))
        return
    print(
        f"{name}, torch {torch.__version__}; noise drawn on the host: {noise:.2f} GB/s, on the device: {own:.2f} GB/s"
    )
    print("model            parameters  D1 difference  D3 waits  plain ms  private ms  ratio  peak MB")
    for r in results:
        waits = "-" if r.waits is None else str(r.waits)
        peak = "-" if r.peak_mb is None else f"{r.peak_mb:.0f}"
        print(
            f"{r.model:15}{r.parameters:12,}{r.difference:15.1e}{waits:>10}{r.plain_ms:10.1f}{r.private_ms:12.1f}"
            f"{r.private_ms / r.plain_ms:7.2f}{peak:>9}"
        )


if __name__ == "__main__":
    main()
