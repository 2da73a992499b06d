"""What a rank can learn of another rank's records, for both settings of trust.

The attacker is rank 0. It follows the protocol, keeps every message that any rank sends, and knows all records but the
target, which is on rank 1 or is not.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._collective import SingleProcess
from quietgrad._noise.base import NoiseDraw
from quietgrad._noise.gaussian import Widened, on_grid, widen_noise
from quietgrad._privatizer import same_records
from quietgrad.accounting.events import GaussianEvent
from quietgrad.distributed.noise_shares import PairwiseMasks
from tests.distributed.launch import launch, values

Ranks = list[list[dict[str, Any]]]

WORLD, RECORDS, SIGMA, CLIP = 3, 6, 0.8, 1.0
SETTINGS: list[dict[str, Any]] = [{}, {"honest": 1}, {"honest": 2}]
MECHANISM = qg.methods.dp_sgd(clip=CLIP).with_noise(SIGMA)
Z = 4.9
"""Standard errors that a measured number may be off: once in a million tests."""


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(400, 50, bias=False)


def records(rank: int) -> TensorDataset:
    rng = torch.Generator().manual_seed(rank)
    return TensorDataset(
        torch.randn(RECORDS, 400, generator=rng), torch.randint(50, (RECORDS,), generator=rng)
    )


def step(reducer: qg.distributed.Reducer, rank: int, mechanism: qg.Mechanism = MECHANISM) -> dict[str, Any]:
    """One step in which every record takes part."""
    model, batches = build(), qg.PoissonBatches(records(rank), rate=1.0, steps=1)
    with qg.Privatizer(model, mechanism, batches, reducer=reducer) as private:
        for batch in batches:
            for x, y in batch.split(64):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
        (gradient,) = [p.grad for p in model.parameters()]
        assert gradient is not None
        return {
            "release": gradient.double().reshape(-1) * private.sampler.expected_batch,
            "expected batch": private.sampler.expected_batch,
            "event": private.ledger.phases[0].event,
            "covered": private.covered,
        }


def spied_rank(rank: int) -> list[dict[str, Any]]:
    """Every setting, with what this rank puts into the all-reduce: the most that another rank may get to see.

    And with the hashes that it receives, tried on the records that rank 1 may hold.
    """
    all_reduce, add_masks, found = dist.all_reduce, PairwiseMasks.add, []
    gather, random_key = dist.all_gather_object, dist.broadcast_object_list
    sent: list[Tensor] = []
    gathered: list[Any] = []
    keys: list[bytes] = []
    bare: list[Tensor] = []

    def spy(tensor: Tensor, **options: Any) -> Any:
        sent.append(tensor.clone())
        return all_reduce(tensor, **options)

    def spy_before_masks(masks: PairwiseMasks, message: Tensor) -> None:
        bare.append(message.clone())
        add_masks(masks, message)

    def spy_on_objects(everybody: list[Any], mine: Any, **options: Any) -> None:
        gather(everybody, mine, **options)
        gathered.extend(everybody)

    def spy_on_keys(message: list[Any], *args: Any, **options: Any) -> None:
        random_key(message, *args, **options)
        keys.extend(key for key in message if isinstance(key, bytes))

    vars(dist)["all_gather_object"], vars(dist)["broadcast_object_list"] = spy_on_objects, spy_on_keys
    vars(dist)["all_reduce"] = spy
    PairwiseMasks.add = spy_before_masks  # type: ignore[method-assign, assignment]
    for setting in SETTINGS:
        for one in (sent, bare, gathered, keys):
            one.clear()
        done = step(qg.distributed.AllReduce(records="local", **setting), rank)
        (message,) = sent
        guess = qg.PoissonBatches(records(1), rate=1.0, steps=1)
        tried = [same_records._records(guess, key) for key in keys]
        recognized = any(one in gathered for one in tried)
        found.append({**done, "sent": message[:-1], "own": (bare or sent)[0][:-1], "recognized": recognized})
    return found


@pytest.fixture(scope="module")
def ranks() -> Ranks:
    return values(launch(WORLD, spied_rank))


@pytest.fixture(scope="module")
def parts() -> list[Tensor]:
    """The clipped sum of each rank, without noise."""
    plain = MECHANISM.with_noise(0.0)
    return [step(qg.distributed.SingleProcess(), rank, plain)["release"] for rank in range(WORLD)]


def grid(honest: int, size: int) -> Widened:
    steps = math.sqrt(honest) * (1 << 26)
    return widen_noise(std=SIGMA * CLIP, sensitivity=CLIP, coordinates=size, steps=steps)


def assert_std(noise: Tensor, std: float) -> None:
    assert abs(noise.std().item() / std - 1) < Z / math.sqrt(2 * len(noise))
    assert abs(noise.mean().item()) < Z * std / math.sqrt(len(noise))


def right_guesses(noise: Tensor) -> float:
    """How often the attacker is right about a target whose gradient is one coordinate, tried on every coordinate.

    It has subtracted all that it knows, guesses that the target took part where more than half of the clip is left,
    and is asked with and without the target.
    """
    return float(((noise + CLIP > CLIP / 2).double().mean() + (noise <= CLIP / 2).double().mean()) / 2)


BEST = statistics.NormalDist().cdf(1 / (2 * SIGMA))
"""The most that the accounted noise allows."""


def test_ranks_that_trust_each_other_show_their_sums(ranks: Ranks, parts: list[Tensor]) -> None:
    # Disclosed in docs/distributed.md: whoever runs rank 0 reads the others' sums.
    message = ranks[1][0]["sent"]
    wide = grid(1, len(message))
    assert right_guesses(wide.grid.values(message) - parts[1]) == 1.0
    assert_std(ranks[0][0]["release"] - sum(parts), wide.std)
    assert ranks[0][0]["recognized"], "the attacker can try records on a hash"


@pytest.mark.parametrize("honest", [1, 2])
def test_shares_hide_each_rank_behind_the_accounted_noise(
    ranks: Ranks, parts: list[Tensor], honest: int
) -> None:
    found = [rank[honest] for rank in ranks]
    size = len(parts[0])
    wide = grid(honest, size)
    if honest == 1:
        # The attacker and the third rank work together, so a single message is all that they have.
        noise = wide.grid.values(found[1]["sent"]) - parts[1]
    else:
        # Single messages are uniform numbers of 64 bits; the attacker gets the sum of the two others.
        for message in (one["sent"] for one in found):
            ones = torch.stack([(message >> bit) & 1 for bit in range(64)]).double()
            assert abs(ones.mean().item() - 0.5) < Z * 0.5 / math.sqrt(64 * size)
            assert (ones.mean(1) - 0.5).abs().max() < (Z + 1) * 0.5 / math.sqrt(size)
        noise = found[0]["release"] - wide.grid.values(found[0]["own"]) - parts[1] - parts[2]
    assert_std(noise, wide.std)
    assert right_guesses(noise) < BEST + Z * 0.5 / math.sqrt(size)
    # Whoever sees releases only sees more noise than the ledger counts.
    assert_std(found[0]["release"] - sum(parts), wide.std * math.sqrt(WORLD / honest))
    for one in found:
        assert torch.equal(one["release"], found[0]["release"])
        assert one["event"] == GaussianEvent(noise_multiplier=SIGMA)
        assert one["covered"]
        assert one["expected batch"] == WORLD * RECORDS
        # On the first version ranks with shares compared a keyed hash of their records too.
        assert not one["recognized"]


class OneOfTwo(SingleProcess):
    """Stands for a rank whose shares make the noise together with those of another one."""

    honest = 2


def test_micro_batches_are_rounded_to_the_grid_of_the_shares() -> None:
    """On the first version they were on a coarser grid, and rounding to the finer one was paid for once only."""
    model, batches = build(), qg.PoissonBatches(records(0), rate=1.0, steps=1)
    with qg.Privatizer(model, MECHANISM, batches, reducer=OneOfTwo()) as private:
        for x, y in next(iter(batches)).split(3):
            private.backward(F.cross_entropy(model(x), y, reduction="none"))
        (total,) = private.begin_step().sums
        draw = NoiseDraw(std=SIGMA * CLIP, divisor=1.0, source=private._source, reducer=OneOfTwo(), step=0)
        assert total.grid == on_grid(total, draw).grid == grid(2, total.coordinates).grid


class Unreadable(TensorDataset):
    """Says in its error what is in a record."""

    def __getitem__(self, _: Any) -> Any:
        raise OSError("cannot read /patients/17")


def quoting_rank(rank: int, honest: int | None) -> str:
    dataset = Unreadable(*records(rank).tensors) if rank == 1 else records(rank)
    reducer = qg.distributed.AllReduce(records="local", honest=honest)
    batches, model = qg.PoissonBatches(dataset, rate=1.0, steps=1), build()
    private = qg.Privatizer(model, MECHANISM, batches, reducer=reducer)
    try:
        # As a loop that hands its error on to the others.
        reducer.make_together(lambda: next(iter(next(iter(batches)).split(64))))
    except (OSError, ValueError) as error:
        return str(error)
    finally:
        private.close()
    return ""


@pytest.mark.parametrize("honest", [None, 1])
def test_an_error_of_one_rank_quotes_its_records_to_ranks_that_it_trusts_only(honest: int | None) -> None:
    other, own = values(launch(2, quoting_rank, honest))
    assert own == "cannot read /patients/17"
    assert "Rank 1 cannot go on. OSError" in other
    assert ("patients" in other) == (honest is None)
