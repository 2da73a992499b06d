"""List the files of the package that one private step runs through, after a first step has warmed everything up.

    python -m scripts.walks

What it prints is the table in CONTRIBUTING.md; a test says whether it is current.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg

ROOT = Path(qg.__file__).parent
OBSERVED = 2  # the step that is watched: layouts are proved and ways are measured in the first


def public_losses(model: nn.Module) -> Tensor:
    """Losses of 24 made-up public records."""
    x = torch.randn(24, 8, generator=torch.Generator().manual_seed(3))
    return F.cross_entropy(model(x), torch.randint(3, (24,)), reduction="none")


def walk(mechanism: qg.Mechanism) -> list[str]:
    """The files in which a function is entered between `backward` and the end of `release`."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    data = TensorDataset(torch.randn(200, 8), torch.randint(3, (200,)))
    batches = qg.PoissonBatches(data, rate=0.1, steps=OBSERVED + 1)
    files: set[str] = set()

    def entered(frame: FrameType, _: str, __: object) -> None:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(ROOT):
            files.add(str(file.relative_to(ROOT)))

    with qg.Privatizer(model, mechanism.with_noise(1.0), batches) as private:
        for step, batch in enumerate(batches):
            parts = list(batch.split(64))
            sys.setprofile(entered if step == OBSERVED else None)
            for x, y in parts:
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
            sys.setprofile(None)
    return sorted(files)


def of_dp_sgd() -> list[str]:
    return walk(qg.methods.dp_sgd())


def of_gep() -> list[str]:
    return walk(qg.methods.gep(public_losses, rank=8, clip=1.0, residual_clip=1.0))


def table(plain: list[str], gep: list[str]) -> str:
    """The files of both, by rooms."""
    first, more = by_room(plain), by_room(sorted(set(gep) - set(plain)))
    rows = [
        f"| {room} | {first.get(room, '–')} | {more.get(room, '–')} |" for room in sorted({*first, *more})
    ]
    return "\n".join(["| room | a DP-SGD step | a GEP step adds |", "|---|---|---|", *rows])


def by_room(files: list[str]) -> dict[str, str]:
    rooms: dict[str, list[str]] = {}
    for file in files:
        room, _, name = file.rpartition("/")
        rooms.setdefault(room or "(top)", []).append(name.removesuffix(".py"))
    return {room: ", ".join(names) for room, names in rooms.items()}


def main() -> None:
    plain, gep = of_dp_sgd(), of_gep()
    print(f"DP-SGD: {len(plain)} files, GEP: {len(gep)} files\n")
    print(table(plain, gep))


if __name__ == "__main__":
    main()
