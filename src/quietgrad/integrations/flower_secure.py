"""Flower's SecAgg+ around clients that add their share of the noise.

The server sees a sum only. Needs the extra `flower`.

server = FederatedServer(model, mechanism, clients=N, rate=1.0, rounds=…, shares=Shares(clients=N, least=t))
DefaultWorkflow(fit_workflow=secure_workflow(server))(grid, LegacyContext(…, strategy=PrivateStrategy(server)))

app = secure_app(lambda context: SecureClient(model, mechanism, train, shares).to_client(), shares)

What SecAgg+ does to numbers is undone by sending it numbers that it cannot change: whole ones, of its own range, with
weight one. Both sides use other masks than Flower's: Flower folds a 32-byte seed into 32 bits and expands it by a
Mersenne twister, so that a masked vector can be searched for; here the whole seed is the key of AES-256. They run
copies of Flower's two modules that call `aes_masks`. Flower's own modules stay as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec, module_from_spec
from types import ModuleType

import numpy as np
from flwr.client import Client, ClientApp
from flwr.common import Code, Context, FitIns, FitRes, Message, Status, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.server.workflow import SecAggPlusWorkflow
from numpy.typing import NDArray
from torch import nn

from quietgrad._errors import PrivacyError
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._noise.aes import RandomWords
from quietgrad.federated.client import noised_update
from quietgrad.federated.rounds import Task
from quietgrad.federated.server import FederatedServer
from quietgrad.federated.shares import MODULUS, Shares

__all__ = ["SecureClient", "secure_app", "secure_workflow"]

_MASKED: ContextVar[bool] = ContextVar("masked", default=False)
"""Whether what a client returns now is masked before it leaves."""

_SERVER = "flwr.server.workflow.secure_aggregation.secaggplus_workflow"
_CLIENT = "flwr.client.mod.secure_aggregation.secaggplus_mod"
_GENERATOR = "pseudo_rand_gen"
"""The function that expands a seed into masks, looked up by both modules as a global name."""


def secure_workflow(server: FederatedServer, *, timeout: float | None = None) -> SecAggPlusWorkflow:
    """Return SecAgg+ among all clients, for Flower's `fit_workflow`.

    It opens no sum of fewer than `shares.least` clients.

    Args:
        server: with shares.
        timeout: seconds to wait for clients in each of the four stages; whoever is later has dropped out.

    Raises:
        PrivacyError: the server has no shares.
    """
    shares = server.shares
    if shares is None:
        raise PrivacyError(
            "Secure aggregation needs clients that add the noise. Build FederatedServer(…, shares=Shares(…))."
        )
    workflow: SecAggPlusWorkflow = _with_aes_masks(_SERVER).SecAggPlusWorkflow(
        **_numbers(shares), timeout=timeout
    )
    return workflow


def secure_app(client_fn: Callable[[Context], Client], shares: Shares) -> ClientApp:
    """Return a ClientApp whose clients send only masked answers.

    The masks are those of SecAgg+ as `secure_workflow` sets it up.
    """

    def masking(message: Message, context: Context, answer: Callable[[Message, Context], Message]) -> Message:
        return _answer_masked(message, context, answer, shares)

    return ClientApp(client_fn=client_fn, mods=[masking])


def _answer_masked(
    message: Message, context: Context, answer: Callable[[Message, Context], Message], shares: Shares
) -> Message:
    """Answer a message of the protocol.

    A function of this module, and not of the closure above: a simulation pickles the closure for its workers, and a
    pickled reference to the copied module would become Flower's own module there.
    """
    _check_setup(message, shares)

    def within(inner: Message, own: Context) -> Message:
        with _masked():
            return answer(inner, own)

    reply: Message = _with_aes_masks(_CLIENT).secaggplus_mod(message, context, within)
    return reply


class SecureClient(Client):  # type: ignore[misc]
    """A client that clips its update and adds its share of the noise.

    For `secure_app` only.

    Args:
        model: of the server's architecture.
        mechanism: the server's.
        train: trains the model in place on this client's records. If it fails, the client takes part with a zero.
        shares: the server's.
    """

    def __init__(
        self, model: nn.Module, mechanism: Mechanism, train: Callable[[nn.Module], None], shares: Shares
    ) -> None:
        self._model, self._mechanism, self._train, self._shares = model, mechanism, train, shares

    def fit(self, ins: FitIns) -> FitRes:
        if not _MASKED.get():
            raise RuntimeError(
                "This client's share of the noise does not protect it alone, and nothing would mask its answer. Put "
                "it into secure_app(…)."
            )
        task = Task.unpacked(ins.parameters.tensors[0])
        vector = noised_update(self._model, self._mechanism, task, self._train, self._shares).numpy()
        # SecAgg+ adds clipping_range again: what it masks are the whole numbers from 0 to MODULUS − 1 themselves.
        message = ndarrays_to_parameters([vector.astype(np.float64) - MODULUS // 2])
        return FitRes(Status(Code.OK, ""), message, 1, {})


def summed(mean: NDArray[np.float64], clients: int) -> NDArray[np.int64]:
    """Return the sum of what clients sent, from the mean that Flower makes of it."""
    return np.rint(mean * clients).astype(np.int64) + clients * (MODULUS // 2)


def _numbers(shares: Shares) -> dict[str, int | float]:
    """Return SecAgg+'s settings: all pairs masked, whole numbers kept."""
    return {
        "num_shares": shares.clients,
        "reconstruction_threshold": shares.least,
        "max_weight": 1.0,
        "clipping_range": float(MODULUS // 2),
        "quantization_range": MODULUS,
        "modulus_range": MODULUS << shares.clients.bit_length(),
    }


def _check_setup(message: Message, shares: Shares) -> None:
    """Refuse a protocol that this client's share of the noise does not fit."""
    settings = message.content.config_records.get(RECORD_KEY_CONFIGS, {})
    if settings.get(Key.STAGE) != Stage.SETUP:
        return
    expected = _numbers(shares)
    names = {
        Key.SHARE_NUMBER: "num_shares",
        Key.THRESHOLD: "reconstruction_threshold",
        Key.MAX_WEIGHT: "max_weight",
        Key.CLIPPING_RANGE: "clipping_range",
        Key.TARGET_RANGE: "quantization_range",
        Key.MOD_RANGE: "modulus_range",
    }
    wrong = [name for key, name in names.items() if settings.get(key) != expected[name]]
    if wrong:
        raise PrivacyError(
            f"The server's secure aggregation has another {', '.join(wrong)} than {shares} needs. Start it with "
            "secure_workflow(server) and the same shares."
        )


@contextmanager
def _masked() -> Iterator[None]:
    before = _MASKED.set(True)
    try:
        yield
    finally:
        _MASKED.reset(before)


def aes_masks(seed: bytes, modulus: int, shapes: list[tuple[int, ...]]) -> list[NDArray[np.int64]]:
    """Draw uniform integers below a power of two from AES-256's key stream.

    The key is the hash of the whole seed.
    """
    words = RandomWords(hashlib.sha256(b"quietgrad masks" + seed).digest())
    return [
        (words.take(int(np.prod(shape))) & np.uint64(modulus - 1)).view(np.int64).reshape(shape)
        for shape in shapes
    ]


@cache
def _with_aes_masks(name: str) -> ModuleType:
    """Load a copy of a module of Flower's that calls `aes_masks`.

    Flower's own module does not change.

    Raises:
        ImportError: the module expands its seeds by another name, so the copy would keep Flower's weak masks.
    """
    spec = find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    copy = module_from_spec(spec)  # not entered into sys.modules
    spec.loader.exec_module(copy)
    if not hasattr(copy, _GENERATOR):
        raise ImportError(
            f"{name} has no {_GENERATOR}: its masks cannot be replaced. Install a Flower that was tested: "
            "pip install 'quietgrad[flower]'."
        )
    setattr(copy, _GENERATOR, aes_masks)
    return copy
