"""Flower's own simulation (Ray) of many clients: accuracy, rounds and megabytes of dense and encoded updates.

    python -m benchmarks.flower_simulation [--clients 200] [--epsilon 4] [--seeds 3] [--out FILE]

Needs `pip install "quietgrad[flower]" "ray==2.55.1"` (what Flower 1.36 asks for). The embedded data over clients of
equal size, the 26k tanh CNN; 40 clients a round on average, 20 rounds, every method with the same local training.
Flower's SuperNodes train in one Ray actor, and what is counted is the messages that Flower carries, for the expected
clients.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import statistics
from pathlib import Path
from typing import Any

from flwr.client import Client, ClientApp
from flwr.common import Context
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.simulation import run_simulation
from torch import nn
from torch.utils.data import TensorDataset

from quietgrad.federated import FederatedServer, train_locally
from quietgrad.integrations.flower import PrivateClient, PrivateStrategy
from quietgrad.lab.run.config import Config, parse_config
from quietgrad.lab.run.federated import Plan, losses, split_records
from quietgrad.lab.run.methods import build_mechanism
from quietgrad.lab.run.setup import Setup, set_up
from quietgrad.lab.run.train import accuracy
from quietgrad.mechanism.mechanism import Mechanism

METHODS: dict[str, dict[str, Any]] = {
    "DP-FedAvg (`dp_sgd`, dense)": {"name": "dp_sgd", "clip": 1.0},
    "Random Freeze 0.9": {"name": "random_freeze", "freeze": 0.9, "clip": 1.0},
    "RGP, rank 4": {"name": "rgp", "rank": 4, "clip": 1.0},
}
A_ROUND, ROUNDS = 40, 20


def config_of(method: dict[str, Any], options: argparse.Namespace, seed: int) -> Config:
    return parse_config(
        {
            "privacy": {"epsilon": options.epsilon},
            "method": method,
            "training": {"batch": A_ROUND, "epochs": ROUNDS * A_ROUND / options.clients, "seed": seed},
            "federated": {"clients": options.clients, "lr": 0.2, "split": options.split},
        }
    )


@functools.lru_cache(maxsize=1)
def prepared(text: str) -> tuple[Config, Setup, Mechanism]:
    """The same on the server and, once, in the actor that plays all clients."""
    config = parse_config(json.loads(text))
    setup = set_up(config)
    plan = Plan(A_ROUND / config.federated.clients, ROUNDS, config.federated.clients)
    mechanism = build_mechanism(config.method, config.privacy, setup.parts, setup.model, plan)  # type: ignore[arg-type]
    return config, setup, mechanism


@functools.lru_cache(maxsize=1)
def splits(text: str) -> list[TensorDataset]:
    """The records of each client."""
    config, setup, _ = prepared(text)
    x, y = setup.parts.private.tensors
    return [TensorDataset(x[mine], y[mine]) for mine in split_records(y, config.federated, config.data.seed)]


def client_of(text: str, context: Context) -> Client:
    """The client of one partition."""
    config, setup, mechanism = prepared(text)
    data, local = splits(text)[int(context.node_config["partition-id"])], config.federated

    def train(model: nn.Module) -> None:
        train_locally(model, data, losses, epochs=local.epochs, batch=local.batch, lr=local.lr)

    return PrivateClient(copy.deepcopy(setup.model), mechanism, train)


def simulated(config: Config) -> dict[str, float]:
    """One run of Flower's simulation."""
    text = json.dumps(config.plain())
    _, setup, mechanism = prepared(text)
    clients = config.federated.clients
    server = FederatedServer(setup.model, mechanism, clients=clients, rate=A_ROUND / clients, rounds=ROUNDS)
    strategy = PrivateStrategy(
        server, evaluate=lambda model: accuracy(model, setup.parts.test), shared_start=True
    )
    parts = ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS))
    run_simulation(
        server_app=ServerApp(server_fn=lambda _: parts),
        client_app=ClientApp(client_fn=functools.partial(client_of, text)),
        num_supernodes=clients,
        backend_config={
            "client_resources": {"num_cpus": 1},
            "init_args": {"num_cpus": 1, "log_to_driver": False, "include_dashboard": False},
        },
    )
    prepared.cache_clear()
    assert server.ledger.count == ROUNDS
    return {
        "accuracy": accuracy(server.model, setup.parts.test),
        "epsilon": server.epsilon(config.privacy.delta),
        "up": strategy.bytes_up / 1e6,
        "down": strategy.bytes_down / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--split", choices=("iid", "class"), default="iid")
    parser.add_argument("--out", type=Path, help="Results as JSON, from which a stopped benchmark goes on.")
    options = parser.parse_args()
    done: dict[str, dict[str, float]] = (
        json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    )
    print("| method | rounds | test accuracy | MB up | MB down | kB up, client and round | kB down |")
    print("|---|---|---|---|---|---|---|")
    for name, method in METHODS.items():
        for seed in range(options.seeds):
            if f"{name}, {seed}" not in done:
                done[f"{name}, {seed}"] = simulated(config_of(method, options, seed))
            if options.out:
                options.out.write_text(json.dumps(done, indent=1))
        runs = [done[f"{name}, {seed}"] for seed in range(options.seeds)]
        right = [100 * run["accuracy"] for run in runs]
        spread = statistics.stdev(right) if len(right) > 1 else 0.0
        up, down = (statistics.mean(run[way] for run in runs) for way in ("up", "down"))
        each = 1e3 / (A_ROUND * ROUNDS)
        print(
            f"| {name} | {ROUNDS} | {statistics.mean(right):.1f} ± {spread:.1f}% | {up:.1f} | {down:.1f} "
            f"| {up * each:.1f} | {down * each:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    from benchmarks.flower_simulation import main as importable  # by actors, who do not know __main__

    importable()
