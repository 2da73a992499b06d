"""Losses over pairs are refused in every spelling, losses of single records against public anchors are not.

Gradient penalties are refused in words that are true, and what the words advise trains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import TensorDataset

import quietgrad as qg

Losses = Callable[[nn.Module, Any], Tensor]
LABELLED = TensorDataset(torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3)


def train(model: nn.Module, losses: Losses, data: Any = LABELLED) -> qg.Privatizer:
    batches = qg.PoissonBatches.replay(data, [range(12)] * 2, rate=1.0)
    with qg.Privatizer(model, qg.methods.dp_sgd().with_noise(1.0), batches) as private:
        for batch in batches:
            for rows in batch.split(12):
                private.backward(losses(model, rows))
            private.release()
    return private


def of_similarities(measure: Callable[[Tensor], Tensor]) -> Losses:
    """Supervised contrastive losses."""

    def losses(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        same = (y[:, None] == y[None]).float()
        return -(measure(F.normalize(model(x), dim=1)).log_softmax(1) * same).sum(1) / same.sum(1)

    return losses


def triplets(model: nn.Module, batch: Any) -> Tensor:
    z = model(batch[0])
    return F.triplet_margin_loss(z, z.roll(1, 0), z.roll(2, 0), reduction="none")


def two_views(model: nn.Module, batch: Any) -> Tensor:
    """NT-Xent of SimCLR."""
    x, _ = batch
    z = torch.cat([model(x), model(x + 0.1)])
    similar = F.cosine_similarity(z[:, None], z[None], dim=2).fill_diagonal_(-9.0)
    return F.cross_entropy(similar, torch.arange(len(z)).roll(len(x)), reduction="none").view(2, -1).mean(0)


def cosine_pairs(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    z = model(x)
    return F.cosine_embedding_loss(z, z.flip(0), torch.where(y == y.flip(0), 1, -1), reduction="none")


def all_distances(model: nn.Module, batch: Any) -> Tensor:
    return F.pdist(model(batch[0])).sum().expand(len(batch[0])) / 12


def centers(model: nn.Module, batch: Any) -> Tensor:
    """Distances to the means of the batch's classes."""
    x, y = batch
    z, hot = model(x), F.one_hot(y, 3).float()
    return (z - (hot.T @ z / hot.sum(0).clamp_min(1)[:, None])[y]).square().sum(1)


PAIRS: dict[str, Losses] = {
    "contrastive": of_similarities(lambda z: z @ z.T),
    "contrastive by einsum": of_similarities(lambda z: torch.einsum("id,jd->ij", z, z)),
    "contrastive by cdist": of_similarities(lambda z: -torch.cdist(z, z)),
    "contrastive, detached keys": of_similarities(lambda z: z @ z.detach().T),
    "triplets": triplets,
    "two views": two_views,
    "cosine of pairs": cosine_pairs,
    "all distances": all_distances,
    "centers of the batch": centers,
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_loss_over_pairs_is_refused(name: str) -> None:
    with pytest.raises(qg.PrivacyError):
        train(nn.Linear(4, 3), PAIRS[name])


def penalised(model: nn.Module, batch: Any) -> Tensor:
    (x,) = batch
    made = torch.randn_like(x)
    between = (x + torch.rand(len(x), 1) * (made - x)).requires_grad_()
    (slope,) = torch.autograd.grad(model(between).sum(), between, create_graph=True)
    return critic(model, batch) + 10 * (slope.norm(dim=1) - 1).square()


def critic(model: nn.Module, batch: Any) -> Tensor:
    (x,) = batch
    return (model(torch.randn_like(x)) - model(x)).squeeze(1)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.LeakyReLU])
def test_a_gradient_penalty_is_refused_with_the_reason_and_the_remedies_work(
    activation: Callable[[], nn.Module],
) -> None:
    real = TensorDataset(torch.randn(12, 4))

    def network(wrap: Callable[[nn.Module], nn.Module] = lambda layer: layer) -> nn.Module:
        return nn.Sequential(wrap(nn.Linear(4, 8)), activation(), wrap(nn.Linear(8, 1)))

    with pytest.raises(qg.PrivacyError, match=r"create_graph=True.*WGAN-GP.*spectral_norm") as caught:
        train(network(), penalised, real)
    assert "clipping its weights after release" in str(caught.value)
    assert train(network(spectral_norm), critic, real).ledger.count == 2
    clipped = network()
    assert train(clipped, critic, real).ledger.count == 2
    with torch.no_grad():
        for parameter in clipped.parameters():
            parameter.clamp_(-0.01, 0.01)
