"""Logs get what was released; what private records would tell is refused by its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.integrations.logs import Hook, ReleasedLog, mlflow, tensorboard, wandb


def trained(hook: Hook, *, steps: int = 3, **further: Any) -> nn.Module:
    model = nn.Linear(4, 2)
    batches = qg.PoissonBatches(
        TensorDataset(torch.randn(20, 4), torch.randint(2, (20,))), rate=0.5, steps=steps
    )
    with qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches) as private:
        log = ReleasedLog(private, hook, delta=1e-3, every=2)
        for batch in batches:
            for x, y in batch.split(20):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
            log.step(**further)
    return model


def test_each_step_logs_the_released_gradient_and_now_and_then_epsilon() -> None:
    seen: list[tuple[Mapping[str, float], int]] = []
    model = trained(lambda values, step: seen.append((dict(values), step)), test_accuracy=0.5, lr=0.1)
    assert [step for _, step in seen] == [1, 2, 3]
    assert all(values["test_accuracy"] == 0.5 and values["lr"] == 0.1 for values, _ in seen)
    assert ["epsilon" in values for values, _ in seen] == [False, True, True]
    assert 0 < seen[1][0]["epsilon"] < seen[2][0]["epsilon"]
    released = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert seen[2][0]["released_gradient_norm"] == pytest.approx(float(released.norm()), rel=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "loss",
        "train_loss",
        "training_accuracy",
        "accuracy",
        "batch_size",
        "grad_norm",
        "clipped",
        "something",
    ],
)
def test_private_quantities_are_refused_by_name(name: str) -> None:
    with pytest.raises(qg.PrivacyError, match=f"'{name}' is refused"):
        trained(lambda *_: None, **{name: 1.0})  # type: ignore[arg-type]


@pytest.mark.wrong_types
def test_a_tensor_that_records_gradients_is_refused() -> None:
    with pytest.raises(qg.PrivacyError, match="records gradients"):
        trained(lambda *_: None, test_loss=torch.ones((), requires_grad=True))


class Tool:
    """Records the numbers that the three tools are given."""

    def __init__(self) -> None:
        self.logged: dict[str, float] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.logged[tag] = scalar_value

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.logged |= metrics

    def log(self, data: dict[str, float], step: int) -> None:
        self.logged |= data


@pytest.mark.parametrize("hook", [tensorboard, mlflow, wandb])
def test_every_tool_is_called_by_its_own_method(hook: Any) -> None:
    tool = Tool()
    trained(hook(tool), steps=2, val_accuracy=0.25)
    assert set(tool.logged) == {"released_gradient_norm", "epsilon", "val_accuracy"}


def test_a_real_summary_writer_keeps_the_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        trained(tensorboard(writer), steps=2, val_accuracy=0.25)
    kept = EventAccumulator(str(tmp_path))
    kept.Reload()
    assert set(kept.Tags()["scalars"]) == {"released_gradient_norm", "epsilon", "val_accuracy"}
    assert [event.step for event in kept.Scalars("released_gradient_norm")] == [1, 2]
