"""Flower's own server and clients: in one process, and as processes on loopback of which one is killed."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.accounting.ledger import Ledger
from quietgrad.federated import FederatedServer, train_locally
from tests.cases.world import losses_of, records, small_net
from tests.pages import elsewhere

flwr = pytest.importorskip("flwr", reason="Flower is not installed (extra flower)")

ROUNDS, CLIENTS = 4, 3
MECHANISM = qg.methods.random_freeze(freeze=0.5, clip=0.5, redraw="step").with_noise(2.0)


def train(client: int) -> Any:
    data = TensorDataset(*records()[client * 8 : client * 8 + 8])
    return lambda model: train_locally(model, data, losses_of)


def in_one_process(
    draws: list[list[int]] | None = None, *, shared_start: bool = False, **changes: Any
) -> tuple[Any, FederatedServer, Any]:
    """Flower's server loop over client proxies of this process; `changes[cid]` replaces a client's fit.

    Args:
        draws: instead of the server's own; everybody in every round if left out.
    """
    from flwr.common import DisconnectRes
    from flwr.server import Server, ServerConfig, SimpleClientManager
    from flwr.server.client_proxy import ClientProxy
    from flwr.server.server import run_fl

    from quietgrad.integrations.flower import PrivateClient, PrivateStrategy

    class Here(ClientProxy):  # type: ignore[misc]
        def __init__(self, cid: str) -> None:
            super().__init__(cid)
            self.fits = changes.get(cid) or PrivateClient(small_net(), MECHANISM, train(int(cid[1:]))).fit

        def fit(self, ins: Any, timeout: Any, group_id: Any) -> Any:
            return self.fits(ins)

        def get_properties(self, ins: Any, timeout: Any, group_id: Any) -> Any: ...
        def get_parameters(self, ins: Any, timeout: Any, group_id: Any) -> Any: ...
        def evaluate(self, ins: Any, timeout: Any, group_id: Any) -> Any: ...
        def reconnect(self, ins: Any, timeout: Any, group_id: Any) -> Any:
            return DisconnectRes(reason="")

    manager = SimpleClientManager()
    for client in range(CLIENTS):
        manager.register(Here(f"c{client}"))
    server = FederatedServer(small_net(), MECHANISM, clients=CLIENTS, rate=1.0, rounds=ROUNDS, public_seed=3)
    if draws is not None:
        server.sampler.draw = iter(draws).__next__  # type: ignore[method-assign]
    strategy = PrivateStrategy(server, patience=5, evaluate=lambda _: 0.5, shared_start=shared_start)
    history = run_fl(Server(client_manager=manager, strategy=strategy), ServerConfig(num_rounds=ROUNDS))
    return strategy, server, history


def test_flowers_rounds_train_and_count() -> None:
    before = small_net().head.weight
    strategy, server, _ = in_one_process()
    assert (server.round, server.ledger.count) == (ROUNDS, ROUNDS)
    assert not torch.equal(server.model.get_parameter("head.weight"), before)
    assert 0 < strategy.bytes_up < strategy.bytes_down


def test_clients_that_have_the_first_weights_are_sent_less() -> None:
    whole, _, _ = in_one_process()
    shared, server, _ = in_one_process(shared_start=True)
    assert not server.refused
    assert shared.bytes_down < 0.5 * whole.bytes_down


def test_the_examples_of_the_reference_run() -> None:
    page = Path(__file__).parents[2] / "docs" / "api" / "integrations.md"
    names = {"qg": qg, "model": small_net(), "train_set": records(), "losses": losses_of}
    for example in elsewhere(page):
        exec(example, names)
    assert names["client"]
    assert names["client_app"]


def test_clients_that_fail_or_send_nonsense_do_not_stop_a_round() -> None:
    from flwr.common import Code, FitRes, Parameters, Status

    def nonsense(_: Any) -> Any:
        return FitRes(Status(Code.OK, ""), Parameters([b"x"], ""), 1, {})

    _, server, _ = in_one_process(c0=fails, c1=nonsense)
    assert server.ledger.count == ROUNDS
    assert len(server.refused) == 1


def fails(_: Any) -> Any:
    raise RuntimeError("no network")


def test_nothing_that_flower_writes_depends_on_who_was_drawn_or_answered(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    sent = []
    plans: list[tuple[list[list[int]], dict[str, Any]]] = [
        ([[0, 1, 2], [0], [1, 2], [0, 1]], {}),
        ([[], [], [], []], {}),
        ([[0, 1, 2], [0], [1, 2], [0, 1]], {"c1": fails}),
    ]
    for draws, changes in plans:
        caplog.clear()
        with caplog.at_level(logging.DEBUG, logger="flwr"):
            logging.getLogger("flwr").propagate = True
            strategy, server, history = in_one_process(draws, **changes)
            withheld = list(strategy.withheld)
        sent.append(
            {
                "log": [record.getMessage() for record in caplog.records],
                "screen": capfd.readouterr(),
                "history": str(history) + str(vars(history)),
                "bytes": (strategy.bytes_up, strategy.bytes_down),
                "ledger": (server.ledger.count, server.ledger.phases),
            }
        )
        del strategy
        gc.collect()
    assert sent[0] == sent[1] == sent[2]
    assert "[ROUND 4]" in sent[0]["log"]
    assert "aggregate_fit: received 2 results and 1 failures" in withheld


SERVER = """
import sys
from flwr.server import ServerConfig, start_server
from quietgrad.federated import FederatedServer
from quietgrad.integrations.flower import PrivateStrategy
from tests.integrations.test_flower import CLIENTS, MECHANISM, ROUNDS, small_net
server = FederatedServer(small_net(), MECHANISM, clients=CLIENTS, rate=1.0, rounds=ROUNDS, ledger=sys.argv[2])
start_server(server_address=sys.argv[1], strategy=PrivateStrategy(server), config=ServerConfig(num_rounds=ROUNDS))
print("rounds", server.round)
"""
CLIENT = """
import os, sys
from flwr.client import start_client
from quietgrad.integrations.flower import PrivateClient
from tests.integrations.test_flower import MECHANISM, small_net, train
number = int(sys.argv[2])
def fit(model):
    if number == 2:
        os.kill(os.getpid(), 9)  # in the middle of its first round
    train(number)(model)
start_client(server_address=sys.argv[1], client=PrivateClient(small_net(), MECHANISM, fit), max_retries=8)
"""


def test_a_server_and_three_clients_on_loopback_one_of_them_killed(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    ledger = tmp_path / "ledger.jsonl"
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    run: dict[str, Any] = {
        "env": env,
        "cwd": tmp_path,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    server = subprocess.Popen([sys.executable, "-c", SERVER, address, str(ledger)], **run)
    time.sleep(1)
    clients = [
        subprocess.Popen([sys.executable, "-c", CLIENT, address, str(n)], **run) for n in range(CLIENTS)
    ]
    try:
        said, errors = server.communicate(timeout=600)
        assert f"rounds {ROUNDS}" in said, errors[-2000:]
        assert clients[2].wait(timeout=20) == -signal.SIGKILL
        assert not re.search("sampled|received|failure|disconnect", said + errors)
    finally:
        for process in (server, *clients):
            process.kill()
            process.wait()
    assert Ledger.read(ledger).count == ROUNDS
