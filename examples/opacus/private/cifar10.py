"""A convolutional network on small colour pictures."""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import quietgrad as qg


class Net(nn.Sequential):
    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 64), (64, 128)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)]
        layers[-1] = nn.AdaptiveAvgPool2d(1)
        super().__init__(*layers, nn.Flatten(), nn.Linear(128, 10))


def made_up(records: int) -> TensorDataset:
    """Noise over a colour that tells the class."""
    y = torch.arange(records) % 10
    colours = torch.randn(10, 3, 1, 1, generator=torch.Generator().manual_seed(0))
    return TensorDataset(colours[y] + 0.5 * torch.randn(records, 3, 32, 32), y)


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    x, y = data.tensors
    with torch.no_grad():
        hits: Tensor = model(x).argmax(1) == y
    return float(hits.float().mean())


def main(records: int = 10_000, epochs: int = 10) -> float:
    model, data = Net(), made_up(records)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(data, batch_size=2000, shuffle=True)
    batches, private = qg.make_private(model, optimizer, loader, epsilon=3.0, delta=1e-5, epochs=epochs)
    for batch in batches:
        for x, y in batch.split(256):
            private.backward(F.cross_entropy(model(x), y, reduction="none"))
        private.release()
        optimizer.step()
    print(f"ε = {private.epsilon(1e-5):.2f}")
    return accuracy(model, made_up(500))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=10)
    print(f"accuracy {main(**vars(parser.parse_args())):.3f}")
