"""Ranks that do not fit together: a clear error on every rank, at the first step at the latest."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import quietgrad as qg
import quietgrad._privatizer.facts
import quietgrad.distributed.all_reduce
from quietgrad._gradients.blocks import DenseGrad
from quietgrad._gradients.stages import BlockwiseGrads, PerSampleGrads, Released
from quietgrad._noise.sources import SeededSource
from quietgrad._representations.base import Codec, Public, Representation, State
from quietgrad.distributed import AllReduce, copy_weights
from tests.cases.world import losses_of, records, small_net
from tests.distributed.launch import launch, values

Check = Callable[[int, str], None]
DP_SGD = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)


def first_step(
    *,
    model: nn.Module | None = None,
    mechanism: qg.Mechanism = DP_SGD,
    batches: qg.PoissonBatches | None = None,
    before_forward: Callable[[nn.Module], None] = lambda _: None,
    before_release: Callable[[nn.Module], None] = lambda _: None,
    **options: Any,
) -> None:
    """One step of an ordinary run; each case spoils one thing on rank 1."""
    model = small_net() if model is None else model
    batches = qg.PoissonBatches(records(), rate=0.25, steps=3) if batches is None else batches
    with qg.Privatizer(model, mechanism, batches, **{"reducer": AllReduce(), **options}) as private:
        before_forward(model)
        for x, y in next(iter(batches)).split(64):
            private.backward(losses_of(model, x, y))
        before_release(model)
        private.release()


def noise(rank: int, _: str) -> None:
    first_step(mechanism=qg.methods.dp_sgd(clip=1.0).with_noise(1.0 + 0.1 * rank))


def clip(rank: int, _: str) -> None:
    first_step(mechanism=qg.methods.dp_sgd(clip=1.0 + rank).with_noise(1.0))


def method(rank: int, _: str) -> None:
    first_step(mechanism=[DP_SGD, qg.methods.random_freeze(freeze=0.5, clip=1.0).with_noise(1.0)][rank])


def frozen(rank: int, _: str) -> None:
    model = small_net()
    model.conv.requires_grad_(rank == 0)
    first_step(model=model)


def weights(rank: int, _: str) -> None:
    model = small_net()
    with torch.no_grad():
        model.get_parameter("head.bias").add_(1e-6 * rank)
    first_step(model=model)


def data_size(rank: int, _: str) -> None:
    first_step(batches=qg.PoissonBatches(records(count=40 + rank), rate=0.25, steps=3))


class Listed(Dataset[tuple[Tensor, Tensor]]):
    """Goes through a DataLoader; `change` is what a rank does to a record."""

    def __init__(self, order: list[int], change: Callable[[Tensor], Any] = lambda x: x) -> None:
        self.data, self.order, self.change = records(), order, change

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        x, y = self.data[self.order[index]]
        return self.change(x), y


def order(rank: int) -> list[int]:
    return list(range(40))[:: 1 - 2 * rank]


def record_order(rank: int, _: str) -> None:
    data = TensorDataset(*(t[order(rank)] for t in records().tensors))
    first_step(batches=qg.PoissonBatches(data, rate=0.25, steps=3))


def one_record(rank: int, _: str) -> None:
    x, y = (t.clone() for t in records().tensors)
    x[7] += 1e-6 * rank
    first_step(batches=qg.PoissonBatches(TensorDataset(x, y), rate=0.25, steps=3))


def listed_order(rank: int, _: str) -> None:
    first_step(batches=qg.PoissonBatches(Listed(order(rank)), rate=0.25, steps=3))


def units(rank: int, _: str) -> None:
    unit = [number // 2 for number in order(rank)] if rank else [number % 20 for number in range(40)]
    first_step(batches=qg.PoissonBatches(records(), rate=0.25, steps=3, unit=unit, most_records=2))


def rate(rank: int, _: str) -> None:
    first_step(batches=qg.PoissonBatches(records(), rate=0.25 + 0.01 * rank, steps=3))


def steps(rank: int, _: str) -> None:
    first_step(batches=qg.PoissonBatches(records(), rate=0.25, steps=3 + rank))


def versions(rank: int, _: str) -> None:
    with patched(quietgrad._privatizer.facts, "version", lambda _: f"0.{rank}"):
        first_step()


def one_seeded(rank: int, _: str) -> None:
    first_step(noise_source=SeededSource(3) if rank else "default")


def one_watched(rank: int, _: str) -> None:
    first_step(research=bool(rank))


def other_draws(rank: int, _: str) -> None:
    first_step(batches=qg.PoissonBatches.replay(records(), [[1, 2, 3 + rank]], rate=0.25))


def drifted(rank: int, _: str) -> None:
    def drift(model: nn.Module) -> None:
        with torch.no_grad():
            model.get_parameter("head.bias").add_(0.1 * rank)

    first_step(before_forward=drift)


def public_data(rank: int, _: str) -> None:
    def public_losses(model: nn.Module) -> Tensor:
        x = torch.randn(12, 1, 6, 6, generator=torch.Generator().manual_seed(rank))
        return F.cross_entropy(model(x), torch.zeros(12, dtype=torch.long), reduction="none")

    first_step(mechanism=qg.methods.biased_gep(public_losses, rank=4, clip=1.0).with_noise(1.0))


class Signed(Codec):
    def __init__(self, public: Public) -> None:
        self.space = public.space

    def encode(self, grads: PerSampleGrads) -> PerSampleGrads:
        rows = {name: block.clone() for name, block in grads.dense().items()}
        rows["head.bias"][:, 0] *= SIGNS[0]
        return BlockwiseGrads({name: DenseGrad(block) for name, block in rows.items()}, grads.samples)

    def decode(self, released: Released) -> dict[str, Tensor]:
        return released.blocks


@dataclass(frozen=True)
class OneSign(Representation):
    def refresh(self, public: Public, state: State) -> tuple[Codec, State]:
        return Signed(public), state


SIGNS = [1.0]


def flipped_sign(rank: int, _: str) -> None:
    """The same span, one basis vector the other way round: sums would cancel."""
    SIGNS[0] = 1.0 - 2.0 * rank
    first_step(mechanism=DP_SGD @ OneSign())


def ledger_path(__: int, folder: str) -> None:
    first_step(ledger=Path(folder))


def no_reducer(__: int, _: str) -> None:
    first_step(reducer=None)


def drawn_before(__: int, _: str) -> None:
    data = records()
    sampler = qg.PoissonSampler(len(data), rate=0.25, steps=3)
    next(iter(DataLoader(data, batch_sampler=sampler)))
    qg.Privatizer(small_net(), DP_SGD, sampler, reducer=AllReduce())


def lost_part(rank: int, __: str) -> None:
    """A rank whose part of the noise does not arrive."""

    def counted(_: AllReduce, flat: Tensor) -> Tensor:
        return torch.cat([flat, flat.new_full((1,), 1.0 - rank)])

    with patched(AllReduce, "_counted", counted):
        first_step()


CASES: list[tuple[Check, str]] = [
    (noise, r"mechanism\.noise_multiplier: 1\.0 on rank 0, 1\.1 on rank 1"),
    (clip, r"mechanism\.releases\.0\.clip\.bound: 1\.0 on rank 0, 2\.0 on rank 1"),
    (method, r"mechanism\.name: dp_sgd on rank 0, random_freeze on rank 1"),
    (frozen, r"parameters\.conv\.weight: float32\[4, 1, 3, 3\] on rank 0, nothing on rank 1.*same model"),
    (weights, r"disagree on weights: .*copy_weights"),
    (data_size, r"data\.records: 40 on rank 0, 41 on rank 1.*whole data set"),
    (record_order, r"disagree on records: .*same data set in the same order"),
    (one_record, r"disagree on records"),
    (listed_order, r"disagree on records"),
    (units, r"disagree on records' units: .*same unit="),
    (rate, r"data\.rate: 0\.25 on rank 0, 0\.26 on rank 1"),
    (steps, r"data\.steps: 3 on rank 0, 4 on rank 1"),
    (versions, r"versions\.quietgrad: 0\.0 on rank 0, 0\.1 on rank 1.*same versions"),
    (one_seeded, r"noise\.source: EntropySource on rank 0, SeededSource on rank 1"),
    (one_watched, r"research: False on rank 0, True on rank 1"),
    (other_draws, r"disagree on draw"),
    (drifted, r"weights drifted apart"),
    (public_data, r"representation of release 0 drifted apart. Public data"),
    (flipped_sign, r"representation of release 0 drifted apart"),
    (ledger_path, r"Is ?[aA] ?[dD]irectory"),
    (no_reducer, r"no reducer was given"),
    (drawn_before, r"before 2 ranks began to share the draws"),
    (lost_part, r"RuntimeError: 1 parts were added up where 2 ranks"),
]


def refusal(check: Check, rank: int, folder: str) -> str:
    try:
        check(rank, folder)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "went through"


def all_cases(rank: int, folder: str) -> dict[str, str]:
    """One launch for all: after each refusal the group must still work."""
    messages = {check.__name__: refusal(check, rank, folder) for check, _ in CASES}
    first_step()
    return messages


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return values(launch(2, all_cases, str(tmp_path_factory.mktemp("taken"))))


@pytest.mark.parametrize(("check", "message"), CASES, ids=lambda part: getattr(part, "__name__", ""))
def test_every_rank_refuses(check: Check, message: str, refusals: list[dict[str, str]]) -> None:
    for rank in refusals:
        assert re.search(message, rank[check.__name__]), rank[check.__name__]


def accepted(rank: int) -> list[str]:
    """Warnings of a run on records that are random, without fixed bytes, or not seen here."""
    counter = iter(range(10**6))
    said = []
    changes: list[Callable[[Tensor], Any]] = [
        lambda x: x,
        lambda x: x + torch.rand(()),
        lambda x: x + next(counter) + rank,
        Record,
    ]
    for change in changes:
        batches = qg.PoissonBatches(Listed(order(0), change), rate=0.25, steps=3, collate_fn=collate_records)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            qg.Privatizer(small_net(), DP_SGD, batches, reducer=AllReduce()).close()
        said.append(" ".join(str(one.message) for one in caught))
    sampler = qg.PoissonSampler(40, rate=0.25, steps=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        qg.Privatizer(small_net(), DP_SGD, sampler, reducer=AllReduce()).close()
    return [*said, " ".join(str(one.message) for one in caught)]


@dataclass
class Record:
    """Of a type that has no canonical bytes."""

    x: Tensor


def collate_records(rows: list[Any]) -> Any:
    return rows


def test_records_that_cannot_be_compared_are_said_and_no_reason_to_refuse() -> None:
    for same, augmented, counted, odd, loader in values(launch(2, accepted)):
        assert same == ""
        assert augmented == "", "global generators are put back"
        for said in (counted, odd, loader):
            assert "not compared" in said


def other_seed(rank: int) -> tuple[bool, bool]:
    torch.manual_seed(rank)
    model = nn.Linear(36, 3)
    before = model.weight.clone()
    copy_weights(model)
    qg.Privatizer(
        model, DP_SGD, qg.PoissonBatches(records(), rate=0.25, steps=3), reducer=AllReduce()
    ).close()
    return torch.equal(before, model.weight), model.weight.requires_grad


def test_copy_weights_gives_every_rank_the_first_ones_model() -> None:
    assert values(launch(2, other_seed)) == [(True, True), (False, True)]


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    old = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, old)
