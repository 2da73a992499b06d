"""One federated run: the private records split over clients, simulated in one process round by round."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from jaxtyping import Int64
from numpy import ndarray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from quietgrad._kernels.generators import renew_generators
from quietgrad.federated import FederatedServer, encode_update, train_locally
from quietgrad.federated.shared_start import shorten_task
from quietgrad.lab.errors import LabError
from quietgrad.lab.run.checkpoints import Checkpoints, check_any_kept, tell_lost
from quietgrad.lab.run.config import Config
from quietgrad.lab.run.config_sections import FederatedConfig
from quietgrad.lab.run.folder import RunFolder
from quietgrad.lab.run.interrupt import Stopped, StopRequest
from quietgrad.lab.run.methods import build_mechanism
from quietgrad.lab.run.metrics import accuracy, curve_values, measure
from quietgrad.lab.run.setup import set_up
from quietgrad.lab.run.train import evaluation_interval, finish, noise_to_signal
from quietgrad.schedules import steps_of

Progress = Callable[[int, int, float, float], None]
"""(rounds done, rounds planned, ε spent, test accuracy)."""


@dataclass
class FederatedOutcome:
    """What a federated run achieved, and what it sent.

    Args:
        steps: the rounds that the weights have.
        lost: rounds that ε counts and the weights do not have, since the run was broken off after them.
        covered, noise_multiplier, noise_to_signal, releases: as in a run on records.
        megabytes_up, megabytes_down: of the *expected* clients in all rounds. How many were drawn is private.
        up_per_client, down_per_client: bytes that one client sends and gets in the last round.
    """

    method: str
    epsilon: float
    delta: float
    clients: int
    rounds: int
    covered: bool
    noise_multiplier: float
    noise_to_signal: float
    releases: list[dict[str, Any]]
    steps: int = 0
    lost: int = 0
    accuracy: float = math.nan
    metrics: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    megabytes_up: float = 0.0
    megabytes_down: float = 0.0
    up_per_client: int = 0
    down_per_client: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)

    @property
    def last(self) -> tuple[float, float]:
        """ε spent and test accuracy when it was last asked for."""
        return (self.curve[-1]["epsilon"], self.curve[-1]["accuracy"]) if self.curve else (0.0, 0.0)

    def count(self, up: int, down: int, expected: float) -> None:
        """A round: the bytes of one client, and how many clients are expected."""
        self.up_per_client, self.down_per_client = up, down
        self.megabytes_up += expected * up / 1e6
        self.megabytes_down += expected * down / 1e6

    def evaluate(self, server: FederatedServer, test: TensorDataset) -> None:
        """A point of the curve; test data are public."""
        spent = server.epsilon(self.delta, spent=True)
        point = {"step": server.round, "epsilon": spent, "accuracy": accuracy(server.model, test)}
        self.curve.append(point)


def split_records(labels: Tensor, config: FederatedConfig, seed: int) -> list[Int64[ndarray, " m"]]:
    """Return the records of each client: equal parts at random, or two classes a client.

    Raises:
        LabError: there are more clients than records.
    """
    if config.clients > len(labels):
        raise LabError(
            f"federated.clients = {config.clients}, but there are {len(labels)} private records: some clients would "
            f"have none. Take {len(labels)} or fewer."
        )
    rng = np.random.default_rng([seed, config.clients])
    order = rng.permutation(len(labels))
    if config.split == "iid":
        return list(np.array_split(order, config.clients))
    by_class = order[np.argsort(labels.numpy()[order], kind="stable")]
    shards = np.array_split(by_class, min(2 * config.clients, len(labels)))
    turn = rng.permutation(len(shards))
    return [
        np.concatenate([shards[i] for i in turn[client :: config.clients]])
        for client in range(config.clients)
    ]


def _check_draws(config: Config) -> None:
    """Refuse draws that rounds of clients do not have.

    Raises:
        LabError: the config asks for them.
    """
    for name, plain in (("bands", 1), ("at_most", None), ("once_an_epoch", False)):
        if getattr(config.training, name) != plain:
            raise LabError(f"training.{name}: clients are drawn by Poisson draws alone. Leave it out.")


def train_federated(
    config: Config, out: Path, *, resume: bool = False, data_dir: Path | None = None, progress: Progress
) -> FederatedOutcome:
    """Train by the config and keep everything in `out`; `training.batch` is the expected number of clients a round."""
    began = time.perf_counter()
    rate = _checked_rate(config)
    _check_draws(config)
    rounds = steps_of(config.training.epochs, rate)
    setup = set_up(config, data_dir=data_dir)
    plan = FederatedPlan(rate, rounds, config.federated.clients)
    mechanism = build_mechanism(config.method, config.privacy, setup.parts, setup.model, plan)
    clients = Clients(setup.parts.private, copy.deepcopy(setup.model), config)
    folder = RunFolder(out)
    if resume:
        folder.resume(config)
    else:
        # How many records there are would tell how many one client has; how many clients there are is public.
        known = {key: value for key, value in setup.parts.record.items() if key not in ("private", "sizes")}
        folder.start(config, {"clients": config.federated.clients, **known})
    server = FederatedServer(
        setup.model,
        mechanism,
        clients=config.federated.clients,
        rate=rate,
        rounds=rounds,
        lr=config.federated.server_lr,
        ledger=folder.ledger,
    )
    with closing(server):
        outcome = _loop(config, server, clients, setup.parts.test, folder, resume, progress)
        metrics = measure(server.model, setup.parts.test)
        if metrics is not None:
            outcome.accuracy, outcome.metrics = curve_values(metrics)["accuracy"], metrics.as_dict()
    outcome.seconds = time.perf_counter() - began
    finish(folder, asdict(outcome), server.model)
    return outcome


def _checked_rate(config: Config) -> float:
    if config.data.unit is not None:
        raise LabError("A federated run protects clients, with all their records. Leave out data.unit.")
    clients, batch = config.federated.clients, config.training.batch
    if batch > clients:
        raise LabError(f"training.batch = {batch:g} clients a round exceeds the {clients} clients. Lower it.")
    return batch / clients


def _loop(
    config: Config,
    server: FederatedServer,
    clients: Clients,
    test: TensorDataset,
    folder: RunFolder,
    resume: bool,
    progress: Progress,
) -> FederatedOutcome:
    """Run all rounds that the ledger's plan still allows."""
    rounds, delta = server.sampler.steps, config.privacy.delta
    reports = server.releases
    outcome = FederatedOutcome(
        method=config.method.name,
        epsilon=server.epsilon(delta),
        delta=delta,
        clients=config.federated.clients,
        rounds=rounds,
        covered=server.covered,
        noise_multiplier=server.mechanism.multiplier(0),
        noise_to_signal=noise_to_signal(reports, server.sampler.expected_batch),
        releases=[asdict(report) for report in reports],
    )
    saved = folder.load_checkpoint() if resume else None
    if saved is not None:
        server.load_state_dict(saved["server"])
        outcome = FederatedOutcome(**saved["outcome"])
    outcome.lost = server.ledger.count - outcome.steps
    tell_lost(outcome.lost, rounds - server.ledger.count, folder.path)
    renew_generators()  # the config publishes the seed of the initial weights
    checkpoints = Checkpoints(
        lambda: folder.save_checkpoint({"server": server.state_dict(), "outcome": asdict(outcome)}),
        config.training.checkpoint_every,
    )
    every = evaluation_interval(rounds)
    with StopRequest() as stop:
        try:
            while server.ledger.count < rounds and not stop.asked:
                clients.take_part(server, outcome)
                outcome.steps += 1
                if server.round % every == 0:
                    outcome.evaluate(server, test)
                progress(server.round, rounds, *outcome.last)
                checkpoints.stepped(server.round)
        finally:
            checkpoints.save()
    if server.ledger.count < rounds:
        raise Stopped(
            f"Stopped after {server.round} of {rounds} rounds. Go on with --resume --out {folder.path}."
        )
    check_any_kept(outcome.steps, rounds, folder.path)
    return outcome


class Clients:
    """All clients, in this process.

    Args:
        data: the private records, split among them.
        model: what each trains in turn.
    """

    def __init__(self, data: TensorDataset, model: nn.Module, config: Config) -> None:
        self._x, self._y = data.tensors
        self._parts = split_records(self._y, config.federated, config.data.seed)
        self._model, self._config = model, config.federated

    def take_part(self, server: FederatedServer, outcome: FederatedOutcome) -> None:
        """One round: draw, train every drawn client on a copy of the model, and release."""
        drawn, task = server.draw(), server.task()
        # All clients can build the first weights from the config's seed.
        sent = len(shorten_task(task, server.start))
        outcome.count(server.update_bytes, sent, server.sampler.expected_batch)
        for client in drawn:
            update = encode_update(self._model, server.mechanism, task, self._training(client))
            server.receive(client, update)
        server.release()

    def _training(self, client: int) -> Callable[[nn.Module], None]:
        mine, config = self._parts[client], self._config
        data = TensorDataset(self._x[mine], self._y[mine])
        return lambda model: train_locally(
            model, data, losses, epochs=config.epochs, batch=config.batch, lr=config.lr
        )


@dataclass(frozen=True)
class FederatedPlan:
    """What calibration reads of batches."""

    rate: float
    steps: int
    units: int


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")
