"""The mean of word embeddings on reviews of different lengths."""

import argparse
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

WORDS, LONGEST = 28_996, 256
Record = tuple[Tensor, int]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        self.head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.embedding(x).mean(1))
        return scores


def made_up(records: int) -> list[Record]:
    """Words of the lower half speak for one class, those of the upper half for the other."""
    data = []
    for i in range(records):
        length = int(torch.randint(20, LONGEST + 1, ()))
        liked = torch.rand(length) < 0.3 + 0.4 * (i % 2)
        data.append((1 + torch.randint(WORDS // 2 - 1, (length,)) + liked * (WORDS // 2), i % 2))
    return data


def padded(records: list[Record]) -> tuple[Tensor, Tensor]:
    x = pad_sequence([words for words, _ in records], batch_first=True)
    return F.pad(x, (0, LONGEST - x.shape[1])), torch.tensor([label for _, label in records])


def accuracy(model: nn.Module, data: list[Record]) -> float:
    x, y = padded(data)
    with torch.no_grad():
        hits: Tensor = model(x).argmax(1) == y
    return float(hits.float().mean())


def main(records: int = 5000, epochs: int = 10) -> float:
    model, data = Net(), made_up(records)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    loader: Any = DataLoader(data, batch_size=64, shuffle=True, collate_fn=padded)  # type: ignore[arg-type]
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return accuracy(model, made_up(500))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=5000)
    parser.add_argument("--epochs", type=int, default=10)
    print(f"accuracy {main(**vars(parser.parse_args())):.3f}")
