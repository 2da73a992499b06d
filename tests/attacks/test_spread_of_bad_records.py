"""A record that is not finite spreads: zero times NaN is NaN wherever a forward or backward multiplies records.

Finite records stay apart in all of these loops, so asking finds nothing. On 0.2 the bad record moved the sum of eight
records by 4.6 to 7.0 C, by silencing the others, or the run was refused because of it. The adversary looks at what is
released with and without the bad record.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import quietgrad as qg
from tests.attacks.harness import clipped_sum, read

N, BAD, WIDTH = 8, 5, 4
OTHERS = [i for i in range(N) if i != BAD]


class Routed(nn.Module):
    """Experts that get their records by products with zeros and ones, and have room for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, 2), nn.ModuleList(nn.Linear(WIDTH, 3) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        expert = F.one_hot(self.router(x).argmax(1), 2)
        place = F.one_hot((expert.cumsum(0) * expert).sum(1) - 1, len(x))
        sent = torch.einsum("ne,nc->nec", expert, place).to(x)
        slots = torch.einsum("nec,nd->ecd", sent, x)
        answers = torch.stack([layer(slot) for layer, slot in zip(self.experts, slots, strict=True)])
        return torch.einsum("nec,ecd->nd", sent, answers)


class Shared(nn.Module):
    """A table that all records meet, in an operation of the user's choice."""

    def __init__(self, meet: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.table, self.head, self.meet = nn.Embedding(1, WIDTH), nn.Linear(WIDTH, 3), meet

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.meet(self.table(torch.zeros(1, dtype=torch.long)), x).tanh())


def product(table: Tensor, x: Tensor) -> Tensor:
    return table * x


def permuted(model: nn.Module, x: Tensor) -> Tensor:
    """Bring records to other places and back by products outside of the model, of which the graph shows nothing."""
    order = torch.eye(len(x), dtype=x.dtype).roll(1, 0)
    return model(order.T @ (order @ x)).square().sum(1)


def squared(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum(1)


LOOPS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor]]] = {
    "one-hot routing": (Routed, squared),
    "a permutation outside": (lambda: nn.Linear(WIDTH, 3), permuted),
    "shared base": (lambda: Shared(lambda table, x: table.exp() ** x), squared),
    "shared exponent": (lambda: Shared(lambda table, x: (x.abs() + 1) ** table), squared),
    "shared angle": (lambda: Shared(torch.atan2), squared),
    "shared hypotenuse": (lambda: Shared(torch.hypot), squared),
    "checkpointed product": (
        lambda: Shared(lambda table, x: checkpoint(product, table, x, use_reentrant=False)),
        squared,
    ),
    "kept apart": (lambda: nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, 3)), squared),
}


def build(name: str) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        torch.manual_seed(1)
        return LOOPS[name][0]().double()

    return made


def records(value: float, bad: tuple[int, ...] = (BAD,)) -> TensorDataset:
    x = torch.randn(N, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[list(bad)] = value
    return TensorDataset(x)


def total(name: str, data: TensorDataset, rows: list[int], **how: Any) -> Tensor:
    return clipped_sum(build(name), data, rows, LOOPS[name][1], **how)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, math.nan) for name in LOOPS),
        *(("shared base", value) for value in (math.inf, -math.inf, 1e308)),
        ("one-hot routing", math.inf),
        ("one-hot routing", 1e308),
        ("shared exponent", math.inf),
    ],
)
def test_a_release_is_that_without_the_bad_record(name: str, value: float) -> None:
    """An infinite or huge record may have a finite gradient: it adds its own row then, and changes nobody else's."""
    data = records(value)
    with_it, without = total(name, data, list(range(N))), total(name, data, OTHERS)
    if math.isnan(value):
        torch.testing.assert_close(with_it, without, rtol=1e-10, atol=1e-10)
    assert float((with_it - without).norm()) <= 1.0


@pytest.mark.parametrize("name", ["one-hot routing", "shared base"])
@pytest.mark.parametrize("bad", [(0, 1, 2, 6), tuple(range(N)), tuple(range(1, N))])
def test_any_number_of_bad_records_is_found(name: str, bad: tuple[int, ...]) -> None:
    data, good = records(math.nan, bad), [i for i in range(N) if i not in bad]
    found = total(name, data, list(range(N)), micro=N)
    torch.testing.assert_close(found, total(name, data, good), rtol=1e-10, atol=1e-10)


def test_rows_of_others_are_the_same_bits() -> None:
    """In the place of the bad record stands another one, so nothing is computed in another shape."""
    finite = records(0.0)
    rows = list(range(N))
    own = total("one-hot routing", TensorDataset(finite.tensors[0][[BAD]]), [0])
    with_good = total("one-hot routing", finite, rows) - own
    torch.testing.assert_close(
        total("one-hot routing", records(math.nan), rows), with_good, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize(("name", "micro"), [("one-hot routing", 8), ("shared base", 2)])
def test_users_and_views_are_kept_apart_too(name: str, micro: int) -> None:
    """A user whose rows are cut between micro-batches counts once, whatever is handed out again."""
    users = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])

    def released(data: TensorDataset, drawn: list[int], *, views: bool) -> Tensor:
        batches = qg.PoissonBatches.replay(data, [drawn], rate=1.0, unit=users, most_records=3)
        model = build(name)()
        mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(0.0)
        with qg.Privatizer(model, mechanism, batches) as private:
            for batch in batches:
                for (x,) in batch.split(micro):
                    losses = squared(model, x)
                    private.backward(torch.stack([losses, 2 * losses], 1) if views else losses)
                private.release()
        return read(model)

    for views in (False, True):
        bad = released(records(math.nan), [0, 1, 2], views=views)
        torch.testing.assert_close(
            bad, released(records(math.nan), [0, 1], views=views), rtol=1e-10, atol=1e-10
        )


def test_a_loop_that_is_left_adds_what_it_has() -> None:
    """Nothing can be handed out again to a loop that takes no more micro-batches."""
    data, model = records(math.nan), build("kept apart")()
    batches = qg.PoissonBatches.replay(data, [list(range(N))], rate=1.0)
    mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(0.0)
    with qg.Privatizer(model, mechanism, batches) as private:
        for batch in batches:
            (x,) = next(iter(batch.split(N)))
            private.backward(squared(model, x))
            private.release()
    torch.testing.assert_close(read(model) * N, total("kept apart", data, OTHERS), rtol=1e-10, atol=1e-10)


def test_explain_says_that_such_records_add_zero() -> None:
    batches = qg.PoissonBatches(records(math.nan), rate=0.5, steps=1)
    mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    with qg.Privatizer(build("kept apart")(), mechanism, batches) as private:
        assert "NaN or infinite adds zero" in str(private.explain())
