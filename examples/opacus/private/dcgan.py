"""A generator of pictures and the discriminator that sees the real ones."""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import quietgrad as qg

NOISE, BATCH = 100, 64


class Generator(nn.Sequential):
    def __init__(self, width: int) -> None:
        layers: list[nn.Module] = []
        sizes = (NOISE, 8 * width, 4 * width, 2 * width, width)
        for i in range(4):
            stride, padding = (2, 1) if i else (1, 0)
            layers += [nn.ConvTranspose2d(sizes[i], sizes[i + 1], 4, stride, padding, bias=False)]
            layers += [nn.GroupNorm(8, sizes[i + 1]), nn.ReLU(True)]
        super().__init__(*layers, nn.ConvTranspose2d(width, 1, 4, 2, 1, bias=False), nn.Tanh())


class Discriminator(nn.Sequential):
    def __init__(self, width: int) -> None:
        layers: list[nn.Module] = [nn.Conv2d(1, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
        for before, after in ((width, 2 * width), (2 * width, 4 * width), (4 * width, 8 * width)):
            layers += [nn.Conv2d(before, after, 4, 2, 1, bias=False)]
            layers += [nn.BatchNorm2d(after), nn.LeakyReLU(0.2, inplace=True)]
        super().__init__(*layers, nn.Conv2d(8 * width, 1, 4, bias=False), nn.Flatten(0))


def made_up(records: int) -> TensorDataset:
    """Bright squares somewhere on a dark ground."""
    x = torch.full((records, 1, 64, 64), -1.0)
    for i, (a, b) in enumerate(torch.randint(0, 40, (records, 2)).tolist()):
        x[i, 0, a : a + 24, b : b + 24] = 1.0
    return TensorDataset(x)


def discriminator_losses(discriminator: nn.Module, generator: nn.Module, real: Tensor) -> Tensor:
    """For each real picture: is it taken for one, and one made for it not?"""
    with torch.no_grad():
        fake = generator(torch.randn(len(real), NOISE, 1, 1))
    return F.softplus(-discriminator(real)) + F.softplus(discriminator(fake))


def train_generator(generator: nn.Module, discriminator: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """It sees no real picture: only the discriminator, and noise of its own."""
    fake = generator(torch.randn(BATCH, NOISE, 1, 1))
    optimizer.zero_grad()
    F.softplus(-discriminator(fake)).mean().backward(inputs=list(generator.parameters()))
    optimizer.step()


def main(records: int = 1000, epochs: int = 5, width: int = 128) -> float:
    generator, discriminator, data = Generator(width), qg.fix(Discriminator(width)), made_up(records)
    of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    batches, private = qg.make_private(discriminator, optimizer, loader, epsilon=8, delta=1e-4, epochs=epochs)
    for batch in batches:
        for (real,) in batch.split(16):
            private.backward(discriminator_losses(discriminator, generator, real))
        private.release()
        optimizer.step()
        train_generator(generator, discriminator, of_generator)
    print(f"ε = {private.epsilon(1e-4):.2f}")
    with torch.no_grad():
        return float(generator(torch.randn(BATCH, NOISE, 1, 1)).mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--width", type=int, default=128)
    print(f"mean brightness of what is made {main(**vars(parser.parse_args())):.3f}")
