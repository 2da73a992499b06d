"""Flower's server and clients around a `FederatedServer` (extra `flower`).

strategy = PrivateStrategy(server)
flwr.server.start_server(server_address=…, strategy=strategy, config=ServerConfig(num_rounds=…))

flwr.client.start_client(server_address=…, client=PrivateClient(model, mechanism, train))
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from quietgrad._mechanism.mechanism import Mechanism
from quietgrad.federated.client import encode_update
from quietgrad.federated.rounds import pack, unpack
from quietgrad.federated.server import FederatedServer
from quietgrad.federated.shared_start import restore_task, shorten_task
from quietgrad.integrations.flower_log import withhold

try:
    from flwr.client import Client
    from flwr.common import (
        Code,
        EvaluateIns,
        EvaluateRes,
        FitIns,
        FitRes,
        Parameters,
        Scalar,
        Status,
        parameters_to_ndarrays,
    )
    from flwr.server.client_manager import ClientManager
    from flwr.server.client_proxy import ClientProxy
    from flwr.server.strategy import Strategy
except ImportError as error:
    raise ImportError("quietgrad.integrations.flower needs Flower: pip install quietgrad[flower].") from error

__all__ = ["PrivateClient", "PrivateStrategy"]

KIND = "quietgrad"
"""The type of our messages for Flower: bytes that it passes on."""


class PrivateStrategy(Strategy):  # type: ignore[misc]
    """Client-level differential privacy in Flower's rounds.

    A server with shares runs it under `secure_workflow`.

    Flower's own sampling is not used: each client that has registered is drawn with the server's rate, by its coins.
    Whoever fails, times out or sends what cannot be used adds nothing; the round is released and counted all the same.
    From the first draw on Flower's log says only what would be the same whoever was drawn.

    Args:
        server: makes the draws and the releases.
        evaluate: test accuracy of a model, on data that are public.
        patience: seconds to wait for all clients before the first round.
        shared_start: clients build the model with the server's first weights (from a public seed), and
            receive only what has moved since.

    Attributes:
        bytes_up, bytes_down: of the *expected* clients in all rounds so far. How many were drawn is private.
        withheld: what Flower would have logged about who was drawn, answered or failed. Private.
    """

    def __init__(
        self,
        server: FederatedServer,
        *,
        evaluate: Callable[[nn.Module], float] | None = None,
        patience: int = 60,
        shared_start: bool = False,
    ) -> None:
        self.server, self._evaluate, self._patience = server, evaluate, patience
        self._shared_start = shared_start
        self._numbers: dict[str, int] = {}
        self.bytes_up, self.bytes_down = 0.0, 0.0
        self._log = withhold(self)
        self.withheld = self._log.withheld

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        client_manager.wait_for(self.server.sampler.units, self._patience)
        return self._message(b"")

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        if self.server.in_round:
            self.server.abandon()  # secure aggregation ends a round without a word if too few are left
        proxies = client_manager.all()
        self._register(proxies)
        self._log.closed = True
        drawn = set(self.server.draw())
        task = FitIns(self._message(self._task_bytes()), {})
        chosen = [(proxy, task) for cid, proxy in sorted(proxies.items()) if self._numbers.get(cid) in drawn]
        expected = self.server.sampler.expected_batch
        self.bytes_up += expected * self.server.update_bytes
        self.bytes_down += expected * len(task.parameters.tensors[0])
        if not chosen and self.server.shares is None:
            self.server.release()  # Flower ends a round without clients here; it counts
        return chosen

    def aggregate_fit(
        self, server_round: int, results: list[tuple[ClientProxy, FitRes]], failures: list[object]
    ) -> tuple[Parameters, dict[str, Scalar]]:
        if self.server.shares is not None:
            self._open(results)
            return self._message(b""), {}
        for proxy, result in results:
            try:
                update = unpack(b"".join(result.parameters.tensors[:1]))
            except ValueError as error:
                self.server.refused.append(f"client {proxy.cid}: {error}")
                continue
            self.server.receive(self._numbers[proxy.cid], update)
        self.server.release()
        return self._message(b""), {}

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        return []  # what clients measure on their own records is private

    def aggregate_evaluate(
        self, server_round: int, results: list[tuple[ClientProxy, EvaluateRes]], failures: list[object]
    ) -> tuple[float | None, dict[str, Scalar]]:
        return None, {}

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, dict[str, Scalar]] | None:
        if self._evaluate is None:
            return None
        accuracy = self._evaluate(self.server.model)
        return 1.0 - accuracy, {"accuracy": accuracy}

    def _open(self, results: list[tuple[ClientProxy, FitRes]]) -> None:
        """Each result is the mean that SecAgg+ opened; there are as many as clients in it."""
        from quietgrad.integrations.flower_secure import summed

        (mean,) = parameters_to_ndarrays(results[0][1].parameters)
        self.server.release_sum(torch.from_numpy(summed(mean, len(results))), len(results))

    def _register(self, proxies: dict[str, ClientProxy]) -> None:
        """Give every client a number, for good; those beyond the planned N never take part."""
        for cid in sorted(proxies):
            if cid not in self._numbers and len(self._numbers) < self.server.sampler.units:
                self._numbers[cid] = len(self._numbers)

    def _task_bytes(self) -> bytes:
        task = self.server.task()
        return shorten_task(task, self.server.start) if self._shared_start else task.packed()

    def _message(self, content: bytes) -> Parameters:
        return Parameters(tensors=[content], tensor_type=KIND)


class PrivateClient(Client):  # type: ignore[misc]
    """A client that trains on its own records and sends only encoded updates.

    Args:
        model: of the server's architecture; with its first weights, if the strategy counts on that.
        mechanism: the server's; only its representations are used here.
        train: trains the model in place on this client's records.
    """

    def __init__(self, model: nn.Module, mechanism: Mechanism, train: Callable[[nn.Module], None]) -> None:
        self._model, self._mechanism, self._train = model, mechanism, train
        self._start = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}

    def fit(self, ins: FitIns) -> FitRes:
        task = restore_task(ins.parameters.tensors[0], self._start)
        update = encode_update(self._model, self._mechanism, task, self._train)
        message = Parameters(tensors=[pack(update)], tensor_type=KIND)
        # Flower wants a number of examples: it is private, so every client says 1.
        return FitRes(Status(Code.OK, ""), message, 1, {})
