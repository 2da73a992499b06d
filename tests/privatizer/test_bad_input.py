"""Every wrong use is refused with the remedy, before any step is counted."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from tests.cases.world import losses_of, privatizer, records, small_net

DP = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)


def test_batchnorm_in_training_mode_names_the_remedy() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    batches = qg.PoissonBatches(records(), rate=0.5, steps=1)
    with pytest.raises(ValueError, match="fix"):
        qg.Privatizer(model, DP, batches)
    qg.Privatizer(qg.fix(model), DP, batches).close()


def test_a_parameter_that_no_adapter_reaches_is_named() -> None:
    inner = nn.Linear(36, 3)
    with privatizer(DP, [[0, 1]], model=nn.Sequential(inner)) as (private, batches, _):
        x, y = next(next(iter(batches)).split(2))
        with pytest.raises(ValueError, match=r"'0\.weight'"):
            private.backward(F.cross_entropy(F.linear(x.flatten(1), inner.weight), y, reduction="none"))
        assert private.ledger.count == 0


@pytest.mark.wrong_types
def test_a_reduced_loss_is_refused() -> None:
    with privatizer(DP, [[0, 1]]) as (private, batches, model):
        x, y = next(next(iter(batches)).split(2))
        with pytest.raises(ValueError, match='reduction="none"'):
            private.backward(F.cross_entropy(model(x), y))
        with pytest.raises(ValueError, match="shape"):
            private.backward(model(x)[:, :, None])
        with pytest.raises(ValueError, match="no_grad"):
            private.backward(losses_of(model, x, y).detach())


def test_a_loss_vector_of_the_wrong_length_is_refused() -> None:
    with privatizer(DP, [[0, 1, 2]]) as (private, batches, model):
        x, y = next(next(iter(batches)).split(3))
        with pytest.raises(ValueError, match="fewer losses than rows"):
            private.backward(losses_of(model, x, y)[:2])


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, float("nan")])
def test_rate_outside_the_unit_interval(rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        qg.PoissonBatches(records(), rate=rate, steps=3)


@pytest.mark.parametrize("clip", [0.0, -1.0, float("nan"), float("inf")])
def test_clip_must_be_positive(clip: float) -> None:
    with pytest.raises(ValueError, match="bound"):
        qg.methods.dp_sgd(clip=clip)
    with pytest.raises(ValueError, match="bounds"):
        qg.PerGroupClip({"": clip})


@pytest.mark.parametrize("noise", [-1.0, float("nan"), float("inf")])
def test_noise_must_not_be_negative(noise: float) -> None:
    with pytest.raises(ValueError, match="noise_multiplier"):
        qg.methods.dp_sgd(clip=1.0).with_noise(noise)


def test_an_uncalibrated_mechanism_is_refused() -> None:
    with pytest.raises(ValueError, match="calibrate"):
        qg.Privatizer(
            small_net(), qg.methods.dp_sgd(clip=1.0), qg.PoissonBatches(records(), rate=0.5, steps=1)
        )


def test_release_without_backward_on_a_non_empty_batch() -> None:
    with privatizer(DP, [[0, 1]]) as (private, batches, _):
        next(iter(batches))
        with pytest.raises(ValueError, match="before all drawn rows were seen"):
            private.release()
        assert private.ledger.count == 0


def test_release_without_a_batch() -> None:
    with privatizer(DP, [[0]]) as (private, _, _), pytest.raises(ValueError, match="No batch was drawn"):
        private.release()


def test_training_beyond_the_plan() -> None:
    with privatizer(DP, [[], []]) as (private, batches, _):
        for _batch in batches:
            private.release()
        with pytest.raises(ValueError, match="All 2 planned steps"):
            next(iter(batches))
        with pytest.raises(ValueError, match="No batch was drawn"):
            private.release()
        assert private.ledger.count == 2


def test_a_micro_batch_passed_twice() -> None:
    with privatizer(DP, [[0, 1, 2, 3]]) as (private, batches, model):
        x, y = next(next(iter(batches)).split(2))
        private.backward(losses_of(model, x, y))
        with pytest.raises(ValueError, match="passed twice"):
            private.backward(losses_of(model, x, y))


def test_a_micro_batch_skipped() -> None:
    with privatizer(DP, [[0, 1, 2, 3]]) as (_, batches, _):
        parts = next(iter(batches)).split(2)
        next(parts)
        with pytest.raises(ValueError, match="has not gone through"):
            next(parts)


def test_the_next_batch_before_the_release() -> None:
    with privatizer(DP, [[0], [1]]) as (private, batches, model):
        drawn = iter(batches)
        x, y = next(next(drawn).split(1))
        private.backward(losses_of(model, x, y))
        with pytest.raises(ValueError, match=r"release\(\) before"):
            next(drawn)


class Counts(nn.Module):
    """Keeps a running sum of its inputs: private data in a buffer, outside ε."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(36, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.detach().sum()
        out: torch.Tensor = self.linear(x.flatten(1))
        return out


def test_a_buffer_that_a_private_forward_changes() -> None:
    with privatizer(DP, [[0, 1]], model=Counts()) as (private, batches, model):
        x, y = next(next(iter(batches)).split(2))
        with pytest.raises(ValueError, match="seen"):
            private.backward(losses_of(model, x, y))
        assert private.ledger.count == 0


def test_observers_need_research_mode() -> None:
    from quietgrad._privatizer.research import Observer

    with privatizer(DP, [[0]]) as (private, _, _), pytest.raises(ValueError, match="research=True"):
        private.watch(Observer())


def test_shares_must_sum_to_one() -> None:
    a = qg.methods.dp_sgd(clip=1.0)
    with pytest.raises(ValueError, match="shares"):
        qg.both(a, a, shares=(0.5, 0.6))
    with pytest.raises(ValueError, match="different noise"):
        qg.both(a, a.with_noise(1.0))


def test_an_empty_data_set() -> None:
    with pytest.raises(ValueError, match="empty"):
        qg.PoissonBatches(TensorDataset(torch.zeros(0, 2)), rate=0.5, steps=1)
