"""The client's side of a round: train on its own records, and encode how far the weights moved."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from quietgrad._capture.recorder import Recorder
from quietgrad._gradients.blocks import Blocks, DenseGrad
from quietgrad._gradients.row_arithmetic import at_least_single
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._noise.sources import NoiseSource, as_source
from quietgrad._privatizer.run_state import RunState
from quietgrad._sampling.poisson import PoissonSampler
from quietgrad.federated.rounds import Task, Update
from quietgrad.federated.shares import Shares

logger = logging.getLogger(__name__)

Losses = Callable[[nn.Module, Tensor, Tensor], Tensor]


def train_locally(
    model: nn.Module,
    data: TensorDataset,
    losses: Losses,
    *,
    epochs: int = 1,
    batch: int = 32,
    lr: float = 0.1,
) -> None:
    """Plain SGD on one client's records, in place: nothing of it leaves the client but the encoded update.

    A client without records moves nothing: whether a round goes on must not depend on one client.
    """
    if len(data) == 0:
        return
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=lr)
    for _ in range(epochs):
        for x, y in DataLoader(data, batch_size=batch, shuffle=True):
            optimizer.zero_grad()
            losses(model, x, y).mean().backward()
            optimizer.step()
    optimizer.zero_grad()


def encode_update(
    model: nn.Module, mechanism: Mechanism, task: Task, train: Callable[[nn.Module], None]
) -> Update:
    """Load the task's weights, train, and encode start − end for each release of the mechanism.

    The codecs are made as the server makes them, of the task's public knowledge, before any training. So a client sends
    as many numbers as the encoded space has, not as the model has.

    Args:
        model: of the server's architecture; it ends with the locally trained weights.
        train: trains the model in place on this client's records.

    Returns:
        what the client sends back, for `FederatedServer.receive`.

    Raises:
        ValueError: the task is for another model.
    """
    start = load_weights(model, task.weights)
    recorder = Recorder(model)
    sampler = PoissonSampler(1, rate=task.rate, steps=task.rounds)
    state = RunState(recorder, mechanism, sampler, seed=task.seed)
    saved = {"step": task.round, "public_seed": task.seed, "representations": task.state, "post": []}
    state.load_state_dict(saved)
    with attached(recorder):
        public = state.public()
        codecs = [public.codec(release.representation) for release in mechanism.releases]
    train(model)
    moved = {
        name: DenseGrad((start[name] - at_least_single(p.detach()))[None])
        for name, p in recorder.parameters.items()
    }
    grads = BlockwiseGrads(moved, 1)
    return [{name: rows[0] for name, rows in codec.encode(grads).dense().items()} for codec in codecs]


def noised_update(
    model: nn.Module,
    mechanism: Mechanism,
    task: Task,
    train: Callable[[nn.Module], None],
    shares: Shares,
    *,
    noise_source: str | NoiseSource = "default",
) -> Int64[Tensor, " p"]:
    """Make a client's part of a secure sum: its update encoded, clipped and with its share of the noise.

    Whoever sees it alone learns more than ε says: mask it before it leaves. A training that fails counts as one that
    went nowhere, since whether a client takes part must not depend on its records.

    Args:
        model, mechanism, task, train: as for `encode_update`.
        shares: the server's.
        noise_source: "default", "device" or "hardened", or a NoiseSource.

    Returns:
        a vector of integers modulo 2³¹.

    Raises:
        ValueError: the task is for another model.
        PrivacyError: the mechanism's noise cannot be shared.

    Example:
        shares = qg.federated.Shares(clients=100, least=80)
        vector = qg.federated.noised_update(model, mechanism, task, train, shares)
    """
    shares.check(mechanism)
    update = encode_update(model, mechanism, task, _without_failures(train))
    return shares.add_noise(mechanism, update, task.round, as_source(noise_source))


def _without_failures(train: Callable[[nn.Module], None]) -> Callable[[nn.Module], None]:
    """Return a training that moves no weights where the given one raises."""

    def attempt(model: nn.Module) -> None:
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        try:
            train(model)
        except Exception:
            logger.exception("Training failed; this client's update is zero.")
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.copy_(before[name])

    return attempt


@contextlib.contextmanager
def attached(recorder: Recorder) -> Iterator[None]:
    """Attach the engine's hooks, for gradients of public losses only."""
    recorder.attach()
    try:
        yield
    finally:
        recorder.detach()


def load_weights(model: nn.Module, weights: Blocks) -> Blocks:
    """Copy the weights into the model and return them: the update is measured from there.

    Raises:
        ValueError: the model has other parameters.
    """
    own = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if {n: p.shape for n, p in own.items()} != {n: w.shape for n, w in weights.items()}:
        raise ValueError(
            "The server trains another model: names or shapes of parameters differ. Build the same model on both "
            "sides."
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])
    return {name: at_least_single(weight).clone() for name, weight in weights.items()}
