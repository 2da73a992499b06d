"""skorch: its own loop knows one loss for a batch; the page replaces that loop by a private one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import quietgrad as qg

Net: Any = pytest.importorskip("skorch").NeuralNetClassifier


class PrivateNet(Net):  # type: ignore[misc]
    """As on the page."""

    def fit_loop(self, X: Any, y: Any = None, epochs: int | None = None, **_: Any) -> PrivateNet:
        loader: Any = DataLoader(self.get_dataset(X, y), batch_size=self.batch_size)
        batches, self.private = qg.make_private(
            self.module_, self.optimizer_, loader, epochs=epochs or self.max_epochs, epsilon=8.0, delta=1e-5
        )
        with self.private:
            for batch in batches:
                for x, labels in batch.split(256):
                    self.private.backward(F.cross_entropy(self.module_(x), labels, reduction="none"))
                self.private.release()
                self.optimizer_.step()
        return self


def test_a_network_of_skorch_learns_privately_and_predicts() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 4)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
    torch.manual_seed(0)
    net = PrivateNet(
        nn.Linear(4, 2), criterion=nn.CrossEntropyLoss, max_epochs=3, batch_size=100, lr=1.0, train_split=None
    )
    net.fit(x, y)
    assert net.private.ledger.count == 60
    assert net.score(x, y) > 0.8
    assert net.private.epsilon(1e-5) <= 8.0
