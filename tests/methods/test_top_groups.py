"""Top groups: energies without their noise, choices within budget, paid norms of the right sensitivity."""

from __future__ import annotations

import math

import pytest
import torch

import quietgrad as qg
from quietgrad._gradients.blocks import DenseGrad, flatten
from quietgrad._gradients.space import Space
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._mechanism.clipping import MARGIN
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._representations.masks.coordinate_groups import group_coordinates
from quietgrad._representations.masks.coordinates import is_kept
from quietgrad._representations.masks.group_norms import GROUP_NORMS, GroupNormsCodec
from quietgrad._representations.masks.top_groups import (
    WHOLE_BLOCKS,
    TopGroups,
    choose_groups,
    energies,
    shrunk,
)
from quietgrad.schedules import Cooling
from tests.cases.world import privatizer, run

SPACE = Space.of_shapes({"conv": torch.Size((3, 2, 2)), "bias": torch.Size((3,)), "head": torch.Size((2, 5))})


def test_groups_are_channels_or_runs_of_a_size_and_never_cross_blocks() -> None:
    channels = group_coordinates(SPACE, "channel")
    assert channels.sizes.tolist() == [4, 4, 4, 3, 5, 5]
    runs = group_coordinates(SPACE, 5)
    assert runs.sizes.tolist() == [5, 5, 2, 3, 5, 5]
    assert group_coordinates(SPACE, 100).sizes.tolist() == [12, 3, 10]
    assert channels.sum(torch.ones(25)).tolist() == channels.sizes.tolist()
    assert channels.members(torch.tensor([1, 3])).tolist() == [4, 5, 6, 7, 12, 13, 14]


def chosen(energy: list[float], budget: int, explore: float = 0.0, seed: int = 0) -> set[int]:
    generator = torch.Generator().manual_seed(seed)
    return set(
        choose_groups(
            torch.tensor(energy, dtype=torch.float32),
            group_coordinates(SPACE, "channel"),
            budget,
            explore,
            generator,
        ).tolist()
    )


def test_the_most_energetic_groups_that_fit_are_chosen() -> None:
    assert chosen([0, 9, 1, 8, 7, 2], budget=12) == {1, 3, 4}
    assert chosen([0, 9, 1, 8, 7, 2], budget=8) == {1, 3}
    assert chosen([0, 9, 1, 8, 7, 2], budget=11) == {1, 2, 3}  # the channel of 5 no longer fits
    assert chosen([0, 9, 1, 8, 7, 2], budget=25) == {0, 1, 2, 3, 4, 5}
    assert chosen([0, 9, 1, 8, 7, 2], budget=1) == {1}  # never nothing


def test_exploration_takes_its_part_and_reaches_every_group() -> None:
    seen: set[int] = set()
    for seed in range(40):
        picked = chosen([0, 9, 1, 8, 7, 2], budget=12, explore=0.5, seed=seed)
        assert 1 in picked
        assert int(group_coordinates(SPACE, "channel").sizes[list(picked)].sum()) <= 12
        seen |= picked
    assert seen == {0, 1, 2, 3, 4, 5}


def test_ties_are_broken_at_random() -> None:
    assert len({frozenset(chosen([0.0] * 6, budget=8, seed=seed)) for seed in range(20)}) > 3


def state_after(mechanism: Mechanism, steps: int):  # type: ignore[no-untyped-def]
    with privatizer(mechanism, [[]] * steps) as (private, batches, model):
        run(private, batches, model)
        mask = mechanism.releases[0].representation
        public = private.begin_step().public
        public.codec(mask)
        return private.state_dict()["representations"]["0"], public


def test_pure_noise_has_no_energy_on_average_and_is_drawn_together() -> None:
    """Empty batches: without the subtraction every energy would be about the noise variance."""
    mechanism = qg.methods.top_groups(freeze=0.0, group_by=1, memory=0.9).with_noise(2.0)
    state, public = state_after(mechanism, 30)
    groups, blocks = group_coordinates(public.space, 1), group_coordinates(public.space, WHOLE_BLOCKS)
    raw = state["free"]["mean"] / state["free"]["weight"]
    variance = state["free"]["variance"] / state["free"]["weight"].square()
    steps = sum(0.1**2 * 0.9 ** (2 * k) for k in range(30)) / (1 - 0.9**30) ** 2
    assert torch.allclose(variance, torch.tensor(2 * 0.2**4 * steps), rtol=1e-4)
    assert float(raw.mean()) == pytest.approx(0.0, abs=5 * math.sqrt(float(variance[0]) / len(groups)))
    assert float(raw.square().mean()) == pytest.approx(float(variance[0]), rel=0.4)
    energy = energies(state, groups, blocks)
    assert float(energy.std()) < 0.5 * float(raw.std())


def test_shrinking_keeps_true_differences_and_drops_noise() -> None:
    space = {"a": torch.Size((2000,)), "b": torch.Size((2000,))}
    groups, blocks = group_coordinates(space, 1), group_coordinates(space, WHOLE_BLOCKS)
    rng = torch.Generator().manual_seed(0)
    true = torch.cat([torch.full((2000,), 1.0), 3.0 * torch.rand(2000, generator=rng)])
    seen = true + 0.5 * torch.randn(4000, generator=rng)
    got = shrunk(seen, torch.full((4000,), 0.25), groups, blocks)
    assert float((got[:2000] - 1.0).abs().max()) < 0.2  # no differences: everything goes to the mean
    assert float((got - true)[2000:].square().mean()) < 0.85 * 0.25
    assert torch.allclose(shrunk(seen, torch.zeros(4000), groups, blocks), seen, atol=1e-5)


def test_paid_norms_are_averaged_with_their_known_noise() -> None:
    mechanism = qg.methods.top_groups(freeze=0.0, memory=0.9, paid_share=0.2).with_noise(2.0)
    state, public = state_after(mechanism, 30)
    groups = group_coordinates(public.space, "channel")
    paid = {name: value / (1 - 0.9**30) for name, value in state["paid"].items()}
    variance = (2.0 / math.sqrt(0.2) / 10) ** 2 * sum(0.1**2 * 0.9 ** (2 * k) for k in range(30))
    assert torch.allclose(paid["weight"], torch.tensor(1.0))
    assert torch.allclose(state["paid"]["variance"], torch.tensor(variance), rtol=1e-4)
    expected = (paid["mean"].clamp_min(0).square() - variance / (1 - 0.9**30) ** 2) / groups.sizes
    assert torch.allclose(
        energies(state, groups, group_coordinates(public.space, WHOLE_BLOCKS)), expected, rtol=1e-3
    )


def test_what_is_not_seen_keeps_its_energy() -> None:
    mechanism = qg.methods.top_groups(freeze=0.5, group_by=10, explore=0.0).with_noise(1.0)
    with privatizer(mechanism, [[0, 1]] * 4) as (private, batches, model):
        run(private, batches, model)
        state = private.state_dict()["representations"]["0"]
        space = {name: p.shape for name, p in private.parameters.items()}
    seen = is_kept(state["kept"], space)
    of = group_coordinates(space, 10).of
    energy, weights = state["free"]["mean"][of], state["free"]["weight"][of]
    assert bool((energy[~seen] == 0).all())
    assert bool((energy[seen] != 0).all())
    assert bool((weights[~seen] == 0).all())
    assert torch.allclose(weights[seen], torch.tensor(1 - 0.99**4))


def test_a_strong_group_is_found_and_kept() -> None:
    """Without noise the second epoch keeps the channels whose gradients were largest in the first."""
    mechanism = qg.methods.top_groups(freeze=Cooling(0.8, epochs=2), explore=0.0, clip=1e6, memory=0.5)
    with privatizer(mechanism.with_noise(0.0), [[0, 1, 2, 3]] * 8) as (private, batches, model):
        grads = [flatten(grad) for grad in run(private, batches, model)]
        groups = group_coordinates({name: p.shape for name, p in private.parameters.items()}, "channel")
    energy = torch.zeros_like(grads[0])
    for grad in grads[:4]:
        energy = 0.5 * energy + 0.5 * grad.square()
    density = groups.sum(energy) / groups.sizes
    kept = groups.sum((grads[4] != 0).float()) > 0
    assert bool(kept.any())
    assert bool(kept[density.argmax()])
    assert float(density[kept].mean()) > 2 * float(density[~kept].mean())
    # A fifth of the coordinates holds twice its part of the energy.
    assert float(energy[grads[4] != 0].sum() / energy.sum()) > 0.4


def adversarial_rows() -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(12, 25, generator=rng) * 10.0 ** torch.linspace(-10, 10, 12)[:, None]
    rows[3] = torch.nn.functional.one_hot(torch.tensor(7), 25)
    return rows


@pytest.mark.parametrize("by", ["channel", 1, 4, 25])
def test_group_norms_are_as_long_as_the_gradient_and_clip_alike(by) -> None:  # type: ignore[no-untyped-def]
    """‖u_i‖ = ‖g_i‖, and clipping u is taking the norms of the clipped gradient: the sum's sensitivity is C."""
    rows = adversarial_rows()
    parts = dict(zip(SPACE, rows.split([shape.numel() for shape in SPACE.values()], 1), strict=True))
    grads = BlockwiseGrads({n: DenseGrad(part.reshape(12, *SPACE[n])) for n, part in parts.items()}, 12)
    groups = group_coordinates(SPACE, by)
    encoded = GroupNormsCodec(SPACE, by).encode(grads)
    norms = rows.double().norm(dim=1)
    assert torch.allclose(encoded.squared_norms().sqrt(), norms, rtol=1e-5)
    clip = qg.FlatClip(0.5)
    for row in range(12):
        one = BlockwiseGrads({GROUP_NORMS: DenseGrad(encoded.dense()[GROUP_NORMS][row : row + 1])}, 1)
        total = clip(one, 0).blocks[GROUP_NORMS]
        assert float(total.double().norm()) <= 0.5
        clipped = rows[row].double() * min(1.0, 0.5 * (1 - MARGIN) / float(norms[row]))
        expected = groups.sum(clipped.square()).sqrt()
        assert torch.allclose(total.double(), expected, rtol=1e-4, atol=1e-12)


def test_paid_energies_take_their_share_and_move_nothing() -> None:
    mechanism = qg.methods.top_groups(freeze=0.5, paid_share=0.01).with_noise(2.0)
    gradient, norms = mechanism.releases
    assert (gradient.share, norms.share) == (0.99, 0.01)
    assert mechanism.std(gradient, 0) == pytest.approx(2.0 * 1.00504, rel=1e-4)  # half a percent louder
    assert mechanism.std(norms, 0) == pytest.approx(20.0)
    with privatizer(mechanism, [[0, 1]]) as (private, batches, model):
        got = flatten(run(private, batches, model)[0])
        state = private.state_dict()["representations"]["0"]
    assert len(got) == 371
    assert int((got != 0).sum()) <= round(0.5 * 371)
    assert torch.allclose(state["paid"]["weight"], torch.tensor(0.01))


@pytest.mark.wrong_types
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"freeze": 1.0}, "freeze rate"),
        ({"explore": 1.5}, "explore"),
        ({"memory": 1.0}, "memory"),
        ({"group_by": 0}, "group_by"),
        ({"group_by": "layer"}, "group_by"),
        ({"redraw": "day"}, "redraw"),
        ({"paid_share": 1.0}, "paid_share"),
        ({"paid_share": 0.1, "clip": qg.PerGroupClip({"": 1.0})}, "flat clip"),
    ],
)
def test_bad_settings_are_refused_by_name(options, named: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=named):
        qg.methods.top_groups(**options)


def test_the_mask_is_a_top_groups_mask() -> None:
    assert isinstance(qg.methods.top_groups().releases[0].representation, TopGroups)
