"""Flower's own SecAgg+ over clients that add shares of the noise: exact sums, drop-outs, and who must not take part."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._gradients.blocks import flatten
from quietgrad.federated import FederatedServer, Shares, train_locally
from quietgrad.federated.shares import MODULUS
from tests.cases.world import losses_of, records, small_net

flwr = pytest.importorskip("flwr", reason="Flower is not installed (extra flower)")

SHARES = Shares(clients=5, least=3)
ROUNDS = 2
MECHANISM = qg.methods.random_freeze(freeze=0.5, clip=0.5, redraw="step").with_noise(2.0)
Stages = dict[int, str]
"""In which stage each client that drops out does so."""


def train(client: int) -> Callable[[torch.nn.Module], None]:
    data = TensorDataset(*records()[client * 8 : client * 8 + 8])
    return lambda model: train_locally(model, data, losses_of)


class Clients:
    """Flower's grid over ClientApps of this process: messages, protocol and masks are Flower's."""

    def __init__(self, app: Callable[[int], Any], fails: Stages) -> None:
        from flwr.app import Context, RecordDict

        self.run = SimpleNamespace(run_id=1)
        self._apps = {100 + n: app(n) for n in range(SHARES.clients)}
        self._contexts = {
            nid: Context(run_id=1, node_id=nid, node_config={}, state=RecordDict(), run_config={})
            for nid in self._apps
        }
        self._fails, self.seen, self.errors = {100 + n: stage for n, stage in fails.items()}, [], []  # type: ignore[var-annotated]

    def get_node_ids(self) -> list[int]:
        return list(self._apps)

    def send_and_receive(self, messages: list[Any], timeout: float | None = None) -> list[Any]:
        return [self._answer(copy.deepcopy(message)) for message in messages]  # as if it had been sent

    def _answer(self, message: Any) -> Any:
        from flwr.app import Error, Message

        nid = message.metadata.dst_node_id
        message.metadata._src_node_id = 1
        stage = message.content.config_records["secaggplus_configs"]["stage"] if message.content else ""
        try:
            if self._fails.get(nid) == stage:
                raise ConnectionError("gone")
            reply = self._apps[nid](message, self._contexts[nid])
        except Exception as error:
            self.errors.append(error)
            return Message(Error(code=0, reason=""), reply_to=message)
        self.seen.append(reply)
        reply.metadata._src_node_id = nid
        return reply


def run(
    fails: Stages | None = None,
    *,
    trains: Callable[[int], Any] = train,
    workflow: Any = None,
) -> tuple[FederatedServer, Clients]:
    """All rounds, with clients that are gone from a stage on."""
    from flwr.app import Context, RecordDict
    from flwr.server import LegacyContext, ServerConfig, SimpleClientManager
    from flwr.server.workflow import DefaultWorkflow

    from quietgrad.integrations.flower import PrivateStrategy
    from quietgrad.integrations.flower_secure import SecureClient, secure_app, secure_workflow

    def app(number: int) -> Any:
        client = SecureClient(small_net(), MECHANISM, trains(number), SHARES)
        return secure_app(lambda _: client, SHARES)

    server = FederatedServer(
        small_net(), MECHANISM, clients=SHARES.clients, rate=1.0, rounds=ROUNDS, public_seed=3, shares=SHARES
    )
    grid = Clients(app, fails or {})
    context = LegacyContext(
        context=Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={}),
        config=ServerConfig(num_rounds=ROUNDS),
        strategy=PrivateStrategy(server, patience=5),
        client_manager=SimpleClientManager(),
    )
    DefaultWorkflow(fit_workflow=workflow or secure_workflow(server))(grid, context)
    return server, grid


def weights(server: FederatedServer) -> torch.Tensor:
    return flatten(dict(server.model.named_parameters())).double()


def test_a_round_is_opened_and_counted() -> None:
    server, grid = run()
    assert not grid.errors
    assert (server.round, server.ledger.count, server.in_round) == (ROUNDS, ROUNDS, False)
    assert not torch.equal(weights(server), flatten(dict(small_net().named_parameters())).double())


@pytest.mark.parametrize(
    ("fails", "moves"),
    [
        ({0: "collect_masked_vectors", 1: "collect_masked_vectors"}, True),
        ({0: "unmask", 1: "collect_masked_vectors"}, True),
        ({0: "collect_masked_vectors", 1: "collect_masked_vectors", 2: "collect_masked_vectors"}, False),
        ({0: "setup"}, False),
        ({0: "share_keys"}, False),
    ],
)
def test_a_sum_is_opened_only_if_enough_shares_of_noise_are_in_it(fails: Stages, moves: bool) -> None:
    """Who is gone before keys are shared ends Flower's round: its key cannot be put together."""
    server, _ = run(fails)
    moved = not torch.equal(weights(server), flatten(dict(small_net().named_parameters())).double())
    assert moved is moves
    assert server.ledger.count == ROUNDS


def test_what_is_opened_is_exactly_the_sum_of_what_clients_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[torch.Tensor] = []
    opened: list[tuple[torch.Tensor, int]] = []
    draw, release = Shares.add_noise, FederatedServer.release_sum

    def sending(*arguments: Any) -> torch.Tensor:
        sent.append(draw(*arguments))
        return sent[-1]

    def releasing(server: FederatedServer, total: torch.Tensor, clients: int) -> None:
        opened.append((total, clients))
        release(server, total, clients)

    monkeypatch.setattr(Shares, "add_noise", sending)
    monkeypatch.setattr(FederatedServer, "release_sum", releasing)
    run({4: "collect_masked_vectors"})
    assert [clients for _, clients in opened] == [4] * ROUNDS
    for turn, (total, _) in enumerate(opened):
        assert torch.equal(total, torch.stack(sent[4 * turn : 4 * turn + 4]).sum(0))


def test_the_server_gets_nothing_but_masked_numbers() -> None:
    """Each message alone looks uniform: its mean is that of the modulus, whatever the client's vector is."""
    _, grid = run()
    modulus = MODULUS << SHARES.clients.bit_length()
    for reply in grid.seen:
        assert not any(len(record) for record in reply.content.array_records.values())
        masked = reply.content.config_records["secaggplus_configs"].get("masked_parameters", [])
        for raw in masked[1:]:
            from flwr.common import bytes_to_ndarray

            values = bytes_to_ndarray(raw) / modulus
            assert values.min() >= 0
            assert values.max() < 1
            assert abs(values.mean() - 0.5) < 6 / math.sqrt(12 * values.size)
            assert abs(values.var() - 1 / 12) < 6 * math.sqrt(1 / 180 / values.size)


def test_a_client_whose_training_fails_takes_part_with_noise_alone() -> None:
    def trains(client: int) -> Any:
        def broken(model: torch.nn.Module) -> None:
            train(client)(model)
            raise ValueError("one of my records is odd")

        return broken if client == 1 else train(client)

    server, grid = run(trains=trains)
    assert not grid.errors
    assert server.round == ROUNDS


def test_a_client_without_masks_sends_nothing() -> None:
    from flwr.common import FitIns, Parameters

    from quietgrad.integrations.flower_secure import SecureClient

    with pytest.raises(RuntimeError, match="secure_app"):
        SecureClient(small_net(), MECHANISM, train(0), SHARES).fit(FitIns(Parameters([b""], ""), {}))


@pytest.mark.parametrize(
    "changed", [{"reconstruction_threshold": 2}, {"clipping_range": 8.0}, {"num_shares": 4}]
)
def test_clients_refuse_an_aggregation_that_would_open_smaller_sums(changed: dict[str, Any]) -> None:
    from flwr.server.workflow import SecAggPlusWorkflow

    from quietgrad.integrations.flower_secure import _numbers

    server, grid = run(workflow=SecAggPlusWorkflow(**{**_numbers(SHARES), **changed}))
    assert len(grid.errors) == ROUNDS * SHARES.clients
    assert not grid.seen
    assert server.ledger.count == ROUNDS


def test_masks_use_the_whole_seed_where_flowers_use_32_bits_of_it() -> None:
    from flwr.common.secure_aggregation import secaggplus_utils

    from quietgrad.integrations.flower_secure import aes_masks

    one, other = bytes(range(32)), bytes([*range(4, 8), *range(4), *range(8, 32)])
    theirs = [secaggplus_utils.pseudo_rand_gen(seed, 1 << 32, [(20,)])[0] for seed in (one, other)]
    ours = [aes_masks(seed, 1 << 32, [(20,)])[0] for seed in (one, other)]
    assert np.array_equal(*theirs)  # the weakness, as long as Flower has it
    assert not (ours[0] == ours[1]).any()


def test_both_sides_mask_with_aes_and_flowers_own_modules_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flwr.client.mod import secaggplus_mod
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
    from flwr.server.workflow import SecAggPlusWorkflow

    from quietgrad.integrations import flower_secure

    def weak(*_: Any) -> Any:
        raise AssertionError("Flower's masks were used")

    for function in (secaggplus_mod, SecAggPlusWorkflow.unmask_stage):
        assert function.__globals__["pseudo_rand_gen"] is pseudo_rand_gen
        monkeypatch.setitem(function.__globals__, "pseudo_rand_gen", weak)
    drawn: list[str] = []
    for name in (flower_secure._SERVER, flower_secure._CLIENT):
        copy = flower_secure._with_aes_masks(name)
        own = copy.pseudo_rand_gen
        assert own is flower_secure.aes_masks
        monkeypatch.setattr(copy, "pseudo_rand_gen", _noted(own, name, drawn))
    server, grid = run({4: "collect_masked_vectors"})
    assert {type(error) for error in grid.errors} == {ConnectionError}
    assert server.round == ROUNDS
    assert set(drawn) == {flower_secure._SERVER, flower_secure._CLIENT}


def _noted(function: Callable[..., Any], name: str, drawn: list[str]) -> Callable[..., Any]:
    def noting(*arguments: Any) -> Any:
        drawn.append(name)
        return function(*arguments)

    return noting


def test_a_flower_whose_masks_cannot_be_replaced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from quietgrad.integrations import flower_secure

    flower_secure._with_aes_masks.cache_clear()
    monkeypatch.setattr(flower_secure, "_GENERATOR", "renamed")
    with pytest.raises(ImportError, match="masks cannot be replaced"):
        flower_secure._with_aes_masks(flower_secure._SERVER)
    flower_secure._with_aes_masks.cache_clear()
