"""One ledger file, two writers in one process: each counts its own lines only, and the file's chain breaks.

On 0.1: ten releases under one path, and each Privatizer reported five.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.accounting import Ledger

MECHANISM = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)


def batches() -> qg.PoissonBatches:
    return qg.PoissonBatches(TensorDataset(torch.randn(8, 4)), rate=0.5, steps=5)


@pytest.mark.parametrize("again", ["ledger", "./ledger", "link"])
def test_a_ledger_in_use_is_refused(tmp_path: Path, again: str) -> None:
    path = tmp_path / "ledger"
    with qg.Privatizer(nn.Linear(4, 1), MECHANISM, batches(), ledger=path):
        if again == "link":
            (tmp_path / "link").symlink_to(path)
        with pytest.raises(ValueError, match="another Privatizer or Ledger of this one"):
            qg.Privatizer(nn.Linear(4, 1), MECHANISM, batches(), ledger=f"{tmp_path}/{again}")


def test_a_closed_run_may_be_taken_up_again(tmp_path: Path) -> None:
    """What refuses the second writer may not refuse the next one."""
    for _ in range(2):
        with qg.Privatizer(nn.Linear(4, 1), MECHANISM, batches(), ledger=tmp_path / "ledger") as private:
            assert private.steps_left == 5


def test_one_ledger_object_does_not_serve_two_runs(tmp_path: Path) -> None:
    """Shared by two Privatizers at once, it must count the releases of both, or be refused."""
    ledger = Ledger(tmp_path / "shared")
    models, draws = [nn.Linear(4, 1) for _ in range(2)], [batches() for _ in range(2)]
    try:
        runs = [qg.Privatizer(m, MECHANISM, d, ledger=ledger) for m, d in zip(models, draws, strict=True)]
    except ValueError:
        return
    for model, drawn, private in zip(models, draws, runs, strict=True):
        for batch in drawn:
            for (x,) in batch.split(8):
                private.backward(model(x)[:, 0])
            private.release()
    assert ledger.count == 10
