"""Masks: how many coordinates, which ones, when they change, and who may know."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch

import quietgrad as qg
from quietgrad._gradients.blocks import flatten
from quietgrad._gradients.space import Space, coordinates
from quietgrad._gradients.stages import Released
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._representations.base import Representation
from quietgrad._representations.masks.coordinates import by_block, is_kept
from quietgrad._representations.masks.mask import MaskCodec, RandomMask
from quietgrad._representations.masks.ranked_mask import RankedMask
from quietgrad.schedules import Cooling, Piecewise, Schedule
from tests.cases.world import grad_of, privatizer, run

SPACE = Space.of_shapes({"a": torch.Size((4, 3)), "b": torch.Size((5,)), "c": torch.Size((2, 2, 2))})


def kept_history(mask: Representation, steps: int, rate: float = 0.25) -> list[torch.Tensor]:
    """The mask of each step of a run."""
    mechanism = Mechanism(name="masked", releases=(qg.Release(representation=mask, clip=qg.FlatClip(1.0)),))
    history = []
    with privatizer(mechanism.with_noise(1.0), [[0, 1]] * steps, rate=rate) as (private, batches, model):
        for batch in batches:
            codec = private.begin_step().codec(0)
            assert isinstance(codec, MaskCodec)
            history.append(is_kept(codec.kept, codec.source))
            run(private, [batch], model, lr=0.1)
    return history


def test_positions_by_block_and_back() -> None:
    positions = torch.tensor([24, 0, 11, 12, 16])
    parts = by_block(positions, SPACE)
    assert {name: part.tolist() for name, part in parts.items()} == {"a": [0, 11], "b": [0, 4], "c": [7]}
    assert is_kept(parts, SPACE).nonzero().flatten().tolist() == [0, 11, 12, 16, 24]
    assert coordinates(SPACE) == 25


def test_decoding_scatters_and_leaves_the_rest_exactly_zero() -> None:
    codec = MaskCodec(SPACE, by_block(torch.tensor([1, 2, 12]), SPACE))
    assert codec.space == {"a": torch.Size((2,)), "b": torch.Size((1,))}
    decoded = codec.decode(
        Released(blocks={"a": torch.tensor([5.0, 6.0]), "b": torch.tensor([7.0])}, std=1.0, sensitivity=1.0)
    )
    assert {name: block.shape for name, block in decoded.items()} == SPACE
    assert flatten(decoded).nonzero().flatten().tolist() == [1, 2, 12]


def test_exactly_the_part_that_is_not_frozen_is_kept_each_epoch_anew() -> None:
    history = kept_history(RandomMask(0.7), steps=12)
    total = len(history[0])
    assert [int(mask.sum()) for mask in history] == [round(0.3 * total)] * 12
    for epoch in range(3):
        assert all(torch.equal(history[4 * epoch], mask) for mask in history[4 * epoch : 4 * epoch + 4])
    assert not torch.equal(history[0], history[4])
    assert not torch.equal(history[4], history[8])


def test_a_mask_per_step_changes_every_step_and_reaches_every_coordinate_equally() -> None:
    masks = torch.stack(kept_history(RandomMask(0.5, redraw="step"), steps=60)).double()
    assert not torch.equal(masks[0], masks[1])
    often = masks.mean(0)
    assert float((often - 0.5).abs().max()) < 5 * 0.5 / 60**0.5
    assert float(often.mean()) == pytest.approx(0.5, abs=0.01)


def test_cooling_freezes_more_epoch_by_epoch() -> None:
    history = kept_history(RandomMask(Cooling(0.6, epochs=3)), steps=16)
    total = len(history[0])
    assert [int(history[4 * epoch].sum()) for epoch in range(4)] == [
        total, round(0.7 * total), round(0.4 * total), round(0.4 * total),
    ]  # fmt: skip


def test_a_ranked_mask_keeps_what_moved_most() -> None:
    """Without noise the ranking is exact; frozen coordinates then count as zero and stay frozen."""
    mechanism = qg.methods.ranked_freeze(freeze=Piecewise((0.0, 0.5), (1,)), clip=1e6).with_noise(0.0)
    with privatizer(mechanism, [[0, 1, 2]] * 8) as (private, batches, model):
        grads = run(private, batches, model, lr=0.1)
    first = torch.stack([flatten(grad) for grad in grads[:4]]).sum(0).abs()
    kept = flatten(grads[4]) != 0
    frozen = ~kept
    assert int(kept.sum()) <= len(first) // 2 + 1
    assert float(first[frozen].max()) <= float(first[kept].min())
    assert bool((torch.stack([flatten(grad) for grad in grads[4:]])[:, frozen] == 0).all())


def test_public_noise_lets_frozen_coordinates_come_back() -> None:
    history = kept_history(RankedMask(Piecewise((0.0, 0.5), (1,))), steps=24)
    frozen_early = ~history[4]
    assert bool((frozen_early & history[20]).any())
    # Dominated by noise, a ranking is nearly a random draw: about half of the frozen half returns.
    returned = float((frozen_early & history[8]).sum() / frozen_early.sum())
    assert 0.3 < returned < 0.7


class CountingSource(qg.SeededSource):
    def __init__(self) -> None:
        super().__init__(0)
        self.asked: list[int] = []

    def fill(self, out: torch.Tensor) -> None:
        self.asked.append(len(out))
        super().fill(out)


def test_a_ranked_run_draws_privacy_noise_once_a_step_and_only_for_what_is_kept() -> None:
    source = CountingSource()
    mechanism = qg.methods.ranked_freeze(freeze=Piecewise((0.0, 0.8), (1,))).with_noise(1.0)
    with privatizer(mechanism, [[0]] * 8, source=source) as (private, batches, model):
        run(private, batches, model)
        total = sum(p.numel() for p in model.parameters())
    assert source.asked == [total] * 4 + [round(0.2 * total)] * 4


def test_ranking_noise_has_the_std_of_an_epochs_releases() -> None:
    """The sum over an epoch of k releases has noise √k·s; public noise for frozen coordinates must match it."""
    mask = RankedMask(Piecewise((0.0, 0.5), (1,)))
    mechanism = Mechanism(name="ranked", releases=(qg.Release(representation=mask, clip=qg.FlatClip(1.0)),))
    with privatizer(mechanism.with_noise(3.0), [[]] * 8) as (private, batches, model):
        run(private, batches, model)
        state = copy.deepcopy(private.state_dict()["representations"]["0"])
        public = private.begin_step().public
    # Steps 4 to 7 were seen with half of the coordinates frozen; the run ended before they were ranked.
    assert state["variance"] == pytest.approx(4 * (3.0 / 10) ** 2, rel=1e-5)
    scores = mask._scores(public, state)
    kept = is_kept(state["kept"], public.space)
    ratio = float(scores[~kept].square().mean() / scores[kept].square().mean())
    assert 0.6 < ratio < 1.6


@pytest.mark.parametrize("freeze", [-0.1, 1.0, 1.5, Cooling(1.0, 3), Cooling(-0.2, 3), float("nan")])
def test_freeze_rates_outside_their_range_are_refused(freeze: float | Schedule) -> None:
    with pytest.raises(ValueError, match="freeze rate in \\[0, 1\\)"):
        RandomMask(freeze)


@pytest.mark.wrong_types
def test_an_unknown_period_is_refused() -> None:
    with pytest.raises(ValueError, match="redraw"):
        RandomMask(0.5, redraw="batch")  # type: ignore[arg-type]


def test_a_ranked_mask_before_any_release_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a release"):
        qg.methods.ranked_freeze(freeze=Cooling(0.5, epochs=1))


@pytest.mark.parametrize("method", [qg.methods.random_freeze, qg.methods.ranked_freeze])
def test_cooling_longer_than_training_is_refused_before_anything_is_counted(method) -> None:  # type: ignore[no-untyped-def]
    mechanism = method(freeze=Cooling(0.5, epochs=4)).with_noise(1.0)
    draws: Sequence[Sequence[int]] = [[0]] * 8
    with privatizer(mechanism, draws) as (private, batches, model):
        with pytest.raises(ValueError, match="training ends with epoch 1"):
            run(private, batches, model)
        assert private.ledger.count == 0


def test_a_resumed_run_goes_on_with_the_same_mask() -> None:
    mechanism = qg.methods.random_freeze(freeze=0.5).with_noise(1.0)
    with privatizer(mechanism, [[0]] * 4) as (private, batches, model):
        batch = next(iter(batches))
        for x, _ in batch.split(8):
            private.backward(model(x).sum(1))
        private.release()
        before = flatten({n: torch.ne(grad_of(p), 0) for n, p in model.named_parameters()})
        saved, ledger = private.state_dict(), private.ledger
    with privatizer(mechanism, [[0]] * 4, ledger=ledger) as (private, batches, model):
        private.load_state_dict(saved)
        after = flatten({n: g != 0 for n, g in run(private, batches, model)[0].items()})
    assert torch.equal(before, after)
