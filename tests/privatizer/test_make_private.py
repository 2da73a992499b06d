"""`make_private`: what a DataLoader said is kept, the budget is met, and what cannot be made private is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

import quietgrad as qg


def data() -> TensorDataset:
    return TensorDataset(torch.randn(60, 4), torch.randint(2, (60,)))


def make(loader: DataLoader[Any], **changes: Any) -> tuple[qg.PoissonBatches, qg.Privatizer, nn.Module]:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-3, "epochs": 3} | changes
    return *qg.make_private(model, optimizer, loader, **settings), model


def test_the_plan_is_the_loaders_and_the_budget_is_met() -> None:
    batches, private, model = make(DataLoader(data(), batch_size=12, shuffle=True))
    with private:
        assert (batches.rate, batches.steps) == (0.2, 15)
        assert 1.99 < private.epsilon(1e-3) <= 2.0
        assert private.mechanism.name == "dp_sgd"
        for batch in batches:
            for x, y in batch.split(8):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
        assert private.steps_left == 0


def test_a_method_and_options_are_passed_on() -> None:
    _, private, _ = make(
        DataLoader(data(), batch_size=60),
        method=qg.methods.random_freeze(freeze=0.5, clip=2.0),
        public_seed=7,
    )
    with private:
        assert private.mechanism.name == "random_freeze"
        assert private.state_dict()["public_seed"] == 7


def test_the_loaders_collate_function_is_taken_over() -> None:
    def named(records: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        return {"x": torch.stack([x for x, _ in records])}

    batches, private, _ = make(DataLoader(data(), batch_size=60, collate_fn=named))
    with private:
        (rows,) = next(iter(batches)).split(60)
        assert rows["x"].shape == (60, 4)


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Any:
        return iter([torch.zeros(4)])


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (DataLoader(Stream(), batch_size=2), "map-style"),
        (DataLoader(data(), batch_size=None), "batch_size="),
        (DataLoader(data(), batch_size=6, sampler=WeightedRandomSampler([1.0] * 60, 60)), "same probability"),
    ],
)
def test_a_loader_that_cannot_be_drawn_from_is_refused(loader: DataLoader[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(loader)


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    model, other = nn.Linear(4, 2), nn.Linear(4, 2)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    with pytest.raises(ValueError, match="not of this model"):
        qg.make_private(model, optimizer, DataLoader(data(), batch_size=6), epsilon=1.0, delta=1e-3, epochs=1)


def test_no_epochs_are_refused() -> None:
    with pytest.raises(ValueError, match="epochs > 0"):
        make(DataLoader(data(), batch_size=6), epochs=0)


def test_a_delta_of_one_record_is_warned_about_and_a_tenth_refused() -> None:
    with pytest.warns(UserWarning, match="1 / records"):
        _, private, _ = make(DataLoader(data(), batch_size=6), delta=0.02)
    with private, pytest.warns(UserWarning, match="1 / records"):
        private.epsilon(0.05)
    with pytest.raises(ValueError, match="delta in"):
        private.epsilon(0.1)
    with pytest.raises(ValueError, match="delta in"):
        make(DataLoader(data(), batch_size=6), delta=0.1)


def test_a_loader_of_unequal_records_is_padded_and_asked() -> None:
    texts = [(torch.ones(1 + i % 9, 1), i % 2) for i in range(60)]
    loader: DataLoader[Any] = DataLoader(texts, batch_size=30)  # type: ignore[arg-type]
    batches, private, model = make(loader, pad_to=4, epochs=1)
    with private:
        for batch in batches:
            for x, y in batch.split(16):
                assert x.shape[1:] == (4, 1)
                private.backward(F.cross_entropy(model(x.flatten(1)), y, reduction="none"))
            private.release()
        assert private.independence.is_checked
        assert "the length 4" in private.explain().padding
