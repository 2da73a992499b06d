"""An image classifier trained privately in Lightning, with the optimizer and the loop of Lightning.

python examples/lightning_image.py     # the images that come with quietgrad
"""

import argparse

import lightning
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from quietgrad.integrations.lightning import PrivateModule
from quietgrad.lab.data import load


class Classifier(PrivateModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Conv2d(1, 16, 8, stride=2, padding=3), torch.nn.Tanh(), torch.nn.MaxPool2d(2, 1),
            torch.nn.Conv2d(16, 32, 4, stride=2), torch.nn.Tanh(), torch.nn.MaxPool2d(2, 1),
            torch.nn.Flatten(), torch.nn.Linear(512, 10),
        )  # fmt: skip

    def losses(self, batch):
        x, y = batch
        return F.cross_entropy(self.net(x), y, reduction="none")

    def validation_step(self, batch, _):
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


parser = argparse.ArgumentParser()
parser.add_argument("--records", type=int, default=12_000)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--out", default="runs/lightning_image")
options = parser.parse_args()

data = load("embedded", private=options.records)
module = Classifier()
loader = module.make_private(data.private, batch=256, epochs=options.epochs, epsilon=2.0, delta=1e-5)
trainer = lightning.Trainer(
    max_epochs=options.epochs, default_root_dir=options.out, accelerator="cpu", logger=False
)
trainer.fit(module, loader, DataLoader(data.test, batch_size=500))
print(trainer.callback_metrics)
print(f"epsilon = {module.private.epsilon(1e-5):.2f} at delta = 1e-5")
