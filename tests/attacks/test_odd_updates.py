"""Odd updates: one client sends what torch cannot add, and ends the round of all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quietgrad as qg
from quietgrad.federated import FederatedServer

MADE: dict[str, Callable[[Tensor], Any]] = {
    "sparse": lambda block: block.to_sparse(),
    "rows of a sparse matrix": lambda block: block.to_sparse_csr() if block.dim() == 2 else block.to_sparse(),
    "on no device": lambda block: block.to("meta"),
    "float8": lambda block: block.to(torch.float8_e4m3fn),
    "complex": lambda block: block.to(torch.complex64),
    "whole numbers": lambda block: block.to(torch.int64),
    "quantized": lambda block: torch.quantize_per_tensor(block, 0.1, 0, torch.qint8),
    "nested": lambda block: torch.nested.as_nested_tensor([block]),
    "of another class": lambda block: block.as_subclass(type("Odd", (Tensor,), {})),
    "no tensor": lambda _: None,
}


def server() -> FederatedServer:
    torch.manual_seed(0)
    mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    made = FederatedServer(nn.Linear(3, 2), mechanism, clients=4, rate=1.0, rounds=2)
    made.draw()
    return made


def honest() -> list[dict[str, Tensor]]:
    return [{"weight": torch.full((2, 3), 0.1), "bias": torch.full((2,), 0.2)}]


def total(made: FederatedServer) -> dict[str, Tensor]:
    assert made._step is not None
    return dict(made._step.sums[0].blocks)


@pytest.mark.parametrize("kind", MADE)
def test_an_odd_update_is_refused_and_the_round_goes_on(kind: str) -> None:
    """On 0.2: sparse, meta and float8 blocks raised in the middle of the sum."""
    made = server()
    odd = [{name: MADE[kind](block) for name, block in honest()[0].items()}]
    assert not made.receive(0, odd)
    assert made.receive(1, honest())
    made.release()
    assert made.ledger.count == 1


@pytest.mark.parametrize(
    "made_of",
    [
        lambda block: block.double(),
        lambda block: block.half(),
        lambda block: nn.Parameter(block),
        lambda block: block.flatten()[:1].expand(block.numel()).view(block.shape),
    ],
)
def test_numbers_of_other_kinds_are_added(made_of: Callable[[Tensor], Tensor]) -> None:
    made = server()
    assert made.receive(0, [{name: made_of(block) for name, block in honest()[0].items()}])
    made.release()


def test_blocks_in_another_order_are_added_by_their_names() -> None:
    """On 0.2: the round ended."""
    turned, straight = server(), server()
    assert straight.receive(0, honest())
    assert turned.receive(0, [dict(reversed(honest()[0].items()))])
    for one in (turned, straight):
        assert one.receive(1, honest())
    assert list(total(turned)) == list(total(straight))
    assert all(torch.equal(block, total(straight)[name]) for name, block in total(turned).items())
    turned.release()
