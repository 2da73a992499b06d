"""An LSTM that tells from a name's letters which language it is of."""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import quietgrad as qg

LETTERS, LONGEST, LANGUAGES = 259, 20, 18


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(LETTERS, 64)
        self.lstm = nn.LSTM(64, 128, batch_first=True)
        self.head = nn.Linear(128, LANGUAGES)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x))
        scores: Tensor = self.head(states[:, -1])
        return scores


def made_up(records: int) -> TensorDataset:
    """Names of letters that their language likes."""
    y = torch.arange(records) % LANGUAGES
    letters = (14 * y[:, None] + torch.randint(0, 40, (records, LONGEST))) % (LETTERS - 1)
    return TensorDataset(1 + letters, y)


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    x, y = data.tensors
    with torch.no_grad():
        hits: Tensor = model(x).argmax(1) == y
    return float(hits.float().mean())


def main(records: int = 16_000, epochs: int = 10) -> float:
    model, data = Net(), made_up(records)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    loader = DataLoader(data, batch_size=800, shuffle=True)
    batches, private = qg.make_private(model, optimizer, loader, epsilon=3.0, delta=1e-5, epochs=epochs)
    for batch in batches:
        for x, y in batch.split(800):
            private.backward(F.cross_entropy(model(x), y, reduction="none"))
        private.release()
        optimizer.step()
    print(f"ε = {private.epsilon(1e-5):.2f}")
    return accuracy(model, made_up(1800))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=16_000)
    parser.add_argument("--epochs", type=int, default=10)
    print(f"accuracy {main(**vars(parser.parse_args())):.3f}")
