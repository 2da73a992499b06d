"""Which tensors count as private: slices and views of the records, never what lies beside them or was copied."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

import quietgrad as qg
from quietgrad._guards.private_inputs import share_memory, tensors_in


def test_memory_is_compared_byte_by_byte() -> None:
    x = torch.randn(10, 4)
    assert share_memory(x, x[3:5])
    assert share_memory(x[::2], x[2])
    assert share_memory(x[:, 1], x)
    assert not share_memory(x[:5], x[5:])
    assert not share_memory(x[::2], x[1::2])
    assert not share_memory(x[:, :2], x[:, 2:])
    assert not share_memory(x, x.clone())
    assert not share_memory(x[:0], x)
    assert share_memory(x.bfloat16().view(torch.int16)[:1], x) is False


class Images(Dataset[Tensor]):
    """Keeps its records in an array, as torchvision's do in tensors."""

    def __init__(self, data: np.ndarray) -> None:
        self.data, self.names = data, ["a", "b"]

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(self.data[index])


def test_the_records_of_any_data_set_are_found() -> None:
    x = torch.randn(10, 4)
    data = TensorDataset(x)
    assert [t.shape for t in tensors_in(Subset(data, [4, 2, 7]))] == [(6, 4)]
    assert len(list(tensors_in(ConcatDataset([data, TensorDataset(x, x)])))) == 3
    array = np.zeros((5, 2), np.float32)
    (found,) = tensors_in(Images(array))
    assert share_memory(found, torch.from_numpy(array)[2:])


def test_a_list_of_records_is_a_data_set_too() -> None:
    records = [{"x": torch.randn(4), "text": "a"} for _ in range(3)]
    assert [id(t) for t in tensors_in(records)] == [id(r["x"]) for r in records]
    (found,) = tensors_in(Subset(records, [1]))  # type: ignore[arg-type]
    assert found is records[1]["x"]


def train(data: Dataset[tuple[Tensor, ...]], public: Tensor) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    batches = qg.PoissonBatches(data, rate=1.0, steps=1)
    mechanism = qg.methods.gep(lambda m: m(public)[:, 0], rank=2).with_noise(1.0)
    with qg.Privatizer(model, mechanism, batches) as private:
        for batch in batches:
            for (x,) in batch.split(8):
                private.backward(model(x)[:, 0])
            private.release()


def test_public_rows_beside_the_private_ones_are_accepted() -> None:
    """One tensor, split into a public head and a private rest."""
    x = torch.randn(20, 4)
    train(TensorDataset(x[8:]), x[:8])
    train(TensorDataset(x[1::2]), x[::2])
    train(Subset(TensorDataset(x), range(8, 20)), x[:8])


def test_public_rows_among_the_private_ones_are_refused() -> None:
    x = torch.randn(20, 4)
    for data in (TensorDataset(x[8:]), Subset(TensorDataset(x), range(8, 20))):
        with pytest.raises(ValueError, match="private data set"):
            train(data, x[:9])


def two_models(x: Tensor, second: Tensor, *, close_first: bool = False) -> None:
    """A step on x under one Privatizer, then one on `second` under another."""
    models = nn.Linear(4, 1), nn.Linear(4, 1)
    mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    samplers = [qg.PoissonSampler(len(rows), rate=1.0, steps=1) for rows in (x, second)]
    first = qg.Privatizer(models[0], mechanism, samplers[0])
    next(iter(samplers[0]))
    first.backward(models[0](x)[:, 0])
    first.release()
    if close_first:
        first.close()
    with qg.Privatizer(models[1], mechanism, samplers[1]) as private:
        next(iter(samplers[1]))
        with torch.no_grad():
            models[1](x)  # looking at a batch is no training on it
        private.backward(models[1](second)[:, 0])
        private.release()
    first.close()


def test_two_models_may_train_on_disjoint_slices_or_one_after_the_other() -> None:
    x = torch.randn(8, 4)
    two_models(x[:4], x[4:])
    two_models(x, x.clone())
    two_models(x, x, close_first=True)
    with pytest.raises(ValueError, match="another Privatizer"):
        two_models(x[:5], x[4:])


def test_shared_constants_are_not_taken_for_a_batch() -> None:
    """A table of positions that both models are given has not as many rows as there are losses."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(4, 1)

        def forward(self, x: Tensor, shift: Tensor) -> Tensor:
            out: Tensor = self.line(x + shift)
            return out

    shift, mechanism = torch.randn(1, 4), qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    privatizers = []
    for _ in range(2):
        model, sampler = Shifted(), qg.PoissonSampler(8, rate=1.0, steps=1)
        privatizers.append(qg.Privatizer(model, mechanism, sampler))
        for (x,) in DataLoader(TensorDataset(torch.randn(8, 4)), batch_sampler=sampler):
            privatizers[-1].backward(model(x, shift)[:, 0])
            privatizers[-1].release()
    assert [private.step for private in privatizers] == [1, 1]


def test_a_list_of_records_is_a_data_set() -> None:
    records = [(torch.randn(3), 0), (torch.randn(3), 1)]
    found = list(tensors_in(records))
    assert [tensor is record[0] for tensor, record in zip(found, records, strict=True)] == [True, True]
