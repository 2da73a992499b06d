"""Flower's own simulation (Ray) of many clients: accuracy, rounds and megabytes of dense and encoded updates.

    python -m benchmarks.flower_simulation [--clients 200] [--a-round 40] [--epsilon 4] [--seeds 3] [--out FILE]
    python -m benchmarks.flower_simulation --clients 30 --a-round 30 --secure

Needs `pip install "quietgrad[flower]" "ray==2.55.1"` (what Flower 1.36 asks for). The embedded data over clients of
equal size, the 26k tanh CNN; 40 clients a round on average, 20 rounds, every method with the same local training.
Flower's SuperNodes train in one Ray actor, and what is counted is the messages that Flower carries, for the expected
clients. With `--secure` all clients take part in every round, by Flower's SecAgg+, and four fifths of their shares make
the noise.
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
from flwr.server import Grid, LegacyContext, ServerApp, ServerConfig
from flwr.server.workflow import DefaultWorkflow
from flwr.simulation import run_simulation
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.federated import FederatedServer, Shares, train_locally
from quietgrad.integrations.flower import PrivateClient, PrivateStrategy
from quietgrad.integrations.flower_secure import SecureClient, secure_app, secure_workflow
from quietgrad.lab.run.config import Config, parse_config
from quietgrad.lab.run.federated import FederatedPlan, losses, split_records
from quietgrad.lab.run.methods import build_mechanism
from quietgrad.lab.run.metrics import accuracy
from quietgrad.lab.run.setup import Setup, set_up

METHODS: dict[str, dict[str, Any]] = {
    "DP-FedAvg (`dp_sgd`, dense)": {"name": "dp_sgd", "clip": 1.0},
    "Random Freeze 0.9": {"name": "random_freeze", "freeze": 0.9, "clip": 1.0},
    "RGP, rank 4": {"name": "rgp", "rank": 4, "clip": 1.0},
}
ROUNDS = 20


def config_of(method: dict[str, Any], options: argparse.Namespace, seed: int) -> Config:
    return parse_config(
        {
            "privacy": {"epsilon": options.epsilon},
            "method": method,
            "training": {
                "batch": options.a_round,
                "epochs": ROUNDS * options.a_round / options.clients,
                "seed": seed,
            },
            "federated": {"clients": options.clients, "lr": 0.2, "split": options.split},
        }
    )


def rate(config: Config) -> float:
    """The probability of each client in each round."""
    assert config.training.batch is not None
    return config.training.batch / config.federated.clients


@functools.lru_cache(maxsize=1)
def prepared(text: str) -> tuple[Config, Setup, qg.Mechanism]:
    """The same on the server and, once, in the actor that plays all clients."""
    config = parse_config(json.loads(text))
    setup = set_up(config)
    plan = FederatedPlan(rate(config), ROUNDS, config.federated.clients)
    mechanism = build_mechanism(config.method, config.privacy, setup.parts, setup.model, plan)
    return config, setup, mechanism


@functools.lru_cache(maxsize=1)
def splits(text: str) -> list[TensorDataset]:
    """The records of each client."""
    config, setup, _ = prepared(text)
    x, y = setup.parts.private.tensors
    return [TensorDataset(x[mine], y[mine]) for mine in split_records(y, config.federated, config.data.seed)]


def client_of(text: str, shares: Shares | None, context: Context) -> Client:
    """The client of one partition."""
    config, setup, mechanism = prepared(text)
    data, local = splits(text)[int(context.node_config["partition-id"])], config.federated

    def train(model: nn.Module) -> None:
        train_locally(model, data, losses, epochs=local.epochs, batch=local.batch, lr=local.lr)

    model = copy.deepcopy(setup.model)
    if shares is not None:
        return SecureClient(model, mechanism, train, shares)
    return PrivateClient(model, mechanism, train)


def client_app(text: str, shares: Shares | None) -> ClientApp:
    client_fn = functools.partial(client_of, text, shares)
    return ClientApp(client_fn=client_fn) if shares is None else secure_app(client_fn, shares)


def server_app(server: FederatedServer, strategy: PrivateStrategy) -> ServerApp:
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def rounds(grid: Grid, context: Context) -> None:
        legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=ROUNDS), strategy=strategy)
        fit = None if server.shares is None else secure_workflow(server)
        DefaultWorkflow(fit_workflow=fit)(grid, legacy)

    return app


def simulated(config: Config, *, secure: bool) -> dict[str, float]:
    """One run of Flower's simulation."""
    text = json.dumps(config.plain())
    _, setup, mechanism = prepared(text)
    clients = config.federated.clients
    shares = Shares(clients=clients, least=4 * clients // 5) if secure else None
    server = FederatedServer(
        setup.model, mechanism, clients=clients, rate=rate(config), rounds=ROUNDS, shares=shares
    )
    strategy = PrivateStrategy(
        server, evaluate=lambda model: accuracy(model, setup.parts.test), shared_start=not secure
    )
    run_simulation(
        server_app=server_app(server, strategy),
        client_app=client_app(text, shares),
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
    parser.add_argument("--a-round", type=int, default=40, help="Clients, on average.")
    parser.add_argument("--secure", action="store_true", help="By SecAgg+, all clients in every round.")
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--split", choices=("iid", "class"), default="iid")
    parser.add_argument("--out", type=Path, help="Results as JSON, from which a stopped benchmark goes on.")
    options = parser.parse_args()
    if options.secure and options.a_round != options.clients:
        parser.error("--secure asks all clients: --a-round must be --clients.")
    done: dict[str, dict[str, float]] = (
        json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    )
    print("| method | rounds | test accuracy | MB up | MB down | kB up, client and round | kB down |")
    print("|---|---|---|---|---|---|---|")
    for name, method in METHODS.items():
        for seed in range(options.seeds):
            if f"{name}, {seed}" not in done:
                done[f"{name}, {seed}"] = simulated(config_of(method, options, seed), secure=options.secure)
            if options.out:
                options.out.write_text(json.dumps(done, indent=1))
        runs = [done[f"{name}, {seed}"] for seed in range(options.seeds)]
        right = [100 * run["accuracy"] for run in runs]
        spread = statistics.stdev(right) if len(right) > 1 else 0.0
        up, down = (statistics.mean(run[to] for run in runs) for to in ("up", "down"))
        each = 1e3 / (options.a_round * ROUNDS)
        print(
            f"| {name} | {ROUNDS} | {statistics.mean(right):.1f} ± {spread:.1f}% | {up:.1f} | {down:.1f} "
            f"| {up * each:.1f} | {down * each:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    from benchmarks.flower_simulation import main as importable  # by actors, who do not know __main__

    importable()
