"""Random chains of operations: graph analysis never claims a layout that brute force contradicts."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from benchmarks.rule_fuzz import Chain, Tally, check_chain, fuzz
from benchmarks.rule_fuzz_operations import OPERATIONS
from torch import Tensor

from quietgrad._capture.layout import BatchAxis, BatchLayout
from quietgrad._capture.node_rules import lookup
from quietgrad._capture.node_rules.visit import Rule, Visit

N = 4


def test_no_layout_of_random_chains_is_wrong() -> None:
    tally = fuzz(10**9, most_chains=1000)
    assert tally.wrong == []
    assert tally.layouts > 3500
    claimed = [name for name, counts in tally.operations.items() if counts["claimed"]]
    assert len(OPERATIONS) >= 100
    assert len(claimed) >= 80


def believed(visit: Visit) -> list[BatchLayout]:
    """A wrong rule: samples stay where they are, whatever the operation does."""
    return visit.all_inputs(visit.layout)


def first_dim_only(visit: Visit) -> list[BatchLayout]:
    """A wrong rule of 0.2: patches leave their first dimension alone."""
    return visit.all_inputs(visit.layout if visit.dim == 0 else BatchAxis.UNKNOWN)


PLANTED: dict[str, Rule] = {
    "Flip": believed,
    "Im2Col": first_dim_only,
    "Slice": believed,
    "Transpose": believed,
    "Softmax": believed,
}


@pytest.mark.parametrize("kind", PLANTED)
def test_planted_wrong_rules_are_found(kind: str) -> None:
    # Rules are cached by name: without the cache the planted one is found.
    uncached = patch.object(lookup, "_rule_named", lookup._rule_named.__wrapped__)
    with patch.dict(lookup.RULES, {kind: PLANTED[kind]}), uncached:
        tally = fuzz(10**9, most_chains=1500, most_wrong=1)
    assert tally.wrong != []


# ---- what fuzzing or an attack has found ----------------------------------------------------------------------


def filled(z: Tensor) -> Tensor:
    """The number that is written belongs to no sample, though the tensor has them along dimension 0."""
    return z.index_fill(1, torch.tensor([0]), numbers().requires_grad_())


def weighted_bag(z: Tensor) -> Tensor:
    """Weights of what is read from a table belong to samples; the table does not."""
    ids = torch.zeros(z.shape, dtype=torch.long)
    return F.embedding_bag(ids, numbers(3, 2).requires_grad_(), mode="sum", per_sample_weights=z)


def first_rows(z: Tensor) -> Tensor:
    """Of six rows four are asked for: the other two must not be cut into four parts."""
    more = torch.cat([z, z[:2]]).sin()
    return more[torch.arange(N), torch.zeros(N, dtype=torch.long)][:, None]


FOUND: dict[str, Callable[[Tensor], Tensor]] = {
    "unfold without batch": lambda z: F.unfold(z[None, :, :], (N, 1)).view(N, -1),
    "windows as samples": lambda z: F.unfold(z.reshape(N, N, -1), (N, 1)).view(N, N, -1).sum(0),
    "fold without batch": lambda z: F.fold(z.reshape(N * 4, -1), (2, 3), 2).flatten(1),
    "channels in five dimensions": lambda z: F.channel_shuffle(z.view(1, N, 1, 1, -1), 2).view(N, -1),
    "index_fill": filled,
    "embedding_bag": weighted_bag,
    "more rows than samples": first_rows,
}


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("name", FOUND)
def test_rules_that_were_wrong(name: str) -> None:
    leaf = numbers(N, 8).requires_grad_()
    out = FOUND[name](leaf * 1.0)
    losses = (out * out.detach().cos()).flatten(1).sum(1)
    edge = torch.autograd.graph.get_gradient_edge(out)
    tally = Tally()
    check_chain(Chain(N, [name], losses, [(name, edge, edge)]), tally)
    assert tally.chains == 1
    assert tally.wrong == []
