"""A small convolutional network on pictures of digits."""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import quietgrad as qg


class Net(nn.Sequential):
    def __init__(self) -> None:
        first = [nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1)]
        second = [nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten()]
        super().__init__(*first, *second, nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10))


def made_up(records: int) -> TensorDataset:
    """Blurred bars whose place tells the class."""
    y = torch.arange(records) % 10
    x = 0.5 * torch.randn(records, 1, 28, 28)
    for i, digit in enumerate(y.tolist()):
        x[i, 0, 2 * digit : 2 * digit + 6] += 1.0
    return TensorDataset(x, y)


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    x, y = data.tensors
    with torch.no_grad():
        hits: Tensor = model(x).argmax(1) == y
    return float(hits.float().mean())


def main(records: int = 6000, epochs: int = 10) -> float:
    model, data = Net(), made_up(records)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=64, shuffle=True)
    batches, private = qg.make_private(model, optimizer, loader, epsilon=3.0, delta=1e-5, epochs=epochs)
    for batch in batches:
        for x, y in batch.split(256):
            private.backward(F.cross_entropy(model(x), y, reduction="none"))
        private.release()
        optimizer.step()
    print(f"ε = {private.epsilon(1e-5):.2f}")
    return accuracy(model, made_up(1000))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=6000)
    parser.add_argument("--epochs", type=int, default=10)
    print(f"accuracy {main(**vars(parser.parse_args())):.3f}")
