"""RGP as users run it: projections, the joint clip, micro-batches, resume, composition, what is refused."""

from __future__ import annotations

import io
import itertools
import math

import pytest
import torch
from torch import Tensor, nn

import quietgrad as qg
from quietgrad._gradients.blocks import Blocks
from quietgrad._gradients.stages import PerSampleGrads, Released
from quietgrad._mechanism.clipping import MARGIN
from quietgrad._privatizer.research import Observer
from quietgrad._representations.base import Public
from quietgrad._representations.low_rank.carriers import power_method
from quietgrad._representations.low_rank.low_rank import SALT, CarriedParts, LowRank, LowRankCodec
from quietgrad._representations.masks.mask import RandomMask
from tests.cases.world import losses_of, mean_gradient, privatizer, records, run, small_net

MATRICES = ("conv.weight", "hidden.weight")
ROWS = [0, 4, 5, 11, 30, 31]
VARIANTS = [
    pytest.param(lambda **a: qg.methods.rgp(release="orthogonal", **a), id="orthogonal"),
    pytest.param(lambda **a: qg.methods.rgp(release="paper", **a), id="paper"),
    pytest.param(lambda **a: qg.methods.rgp(release="left", **a), id="left"),
    pytest.param(lambda **a: qg.methods.rgp_random(**a), id="random"),
]


class Watching(Observer):
    """The carriers and the releases of every step."""

    def __init__(self) -> None:
        self.codecs: list[LowRankCodec] = []
        self.released: list[Released] = []
        self.views: list[Public] = []
        self.weights: list[Blocks] = []

    def micro_batch(self, grads: PerSampleGrads, public: Public, mechanism: qg.Mechanism) -> None:
        codec = public.codec(mechanism.releases[0].representation)
        assert isinstance(codec, LowRankCodec)
        self.codecs.append(codec)
        self.views.append(public)
        self.weights.append({name: weight.clone() for name, weight in public.parameters.items()})

    def step(self, step: int, released: list[Released], update: Blocks) -> None:
        self.released += released


def double_run(mechanism: qg.Mechanism, draws: list[list[int]], **options):  # type: ignore[no-untyped-def]
    watching, net = Watching(), small_net(torch.float64)
    with privatizer(mechanism, draws, model=net, data=records(torch.float64), research=True) as (
        private,
        batches,
        model,
    ):
        private.watch(watching)
        history = run(private, batches, model, **options)
    return history, watching


@pytest.mark.parametrize("build", VARIANTS)
def test_without_noise_the_gradient_is_the_stated_projection(build) -> None:  # type: ignore[no-untyped-def]
    mechanism = build(rank=2, clip=1e6, matrices=MATRICES).with_noise(0.0)
    history, watching = double_run(mechanism, [ROWS])
    whole = mean_gradient(small_net(torch.float64), records(torch.float64), ROWS, divisor=10.0)
    left_only = mechanism.releases[0].representation.release == "left"
    for name, gradient in whole.items():
        expected = gradient
        if name in MATRICES:
            carriers, matrix = watching.codecs[0].carriers[name], gradient.flatten(1)
            off_right = matrix - matrix @ carriers.right.T @ carriers.right
            lost = off_right if left_only else off_right - carriers.left @ carriers.left.T @ off_right
            expected = (matrix - lost).view_as(gradient)
        torch.testing.assert_close(history[0][name], expected)


@pytest.mark.parametrize("build", VARIANTS)
def test_micro_batches_change_nothing(build) -> None:  # type: ignore[no-untyped-def]
    mechanism = build(rank=2, clip=0.1, matrices=MATRICES).with_noise(0.5)
    whole, _ = double_run(mechanism, [ROWS, [1, 2], []], lr=0.1)
    parts, _ = double_run(mechanism, [ROWS, [1, 2], []], lr=0.1, micro=2)
    for a, b in zip(whole, parts, strict=True):
        for name in a:
            torch.testing.assert_close(a[name], b[name])


@pytest.mark.parametrize("build", VARIANTS)
def test_one_clip_over_carriers_and_everything_else(build) -> None:  # type: ignore[no-untyped-def]
    """A single sample with a tiny clip: the joint norm of all released blocks is the clip, none is clipped alone."""
    history, watching = double_run(build(rank=2, clip=1e-3, matrices=MATRICES).with_noise(0.0), [[3]])
    blocks = watching.released[0].blocks
    assert "head.bias" in blocks
    norm = math.sqrt(sum(float(block.square().sum()) for block in blocks.values())) * 10.0
    assert norm == pytest.approx(1e-3 * (1 - MARGIN), rel=1e-5)
    assert history[0]["norm.weight"].norm() > 0


def test_carriers_of_the_weight_during_the_warm_up_and_of_the_update_afterwards() -> None:
    name = "hidden.weight"
    mechanism = qg.methods.rgp(rank=1, clip=1.0, warmup_steps=2, matrices=(name,)).with_noise(0.0)
    _, watching = double_run(mechanism, [ROWS, ROWS, ROWS], lr=0.5)
    start = small_net(torch.float64).hidden.weight.detach()
    for step, decomposed in enumerate([start, watching.weights[1][name], watching.weights[2][name] - start]):
        expected = power_method(decomposed, 1, 1, watching.views[step].generator(SALT))
        torch.testing.assert_close(watching.codecs[step].carriers[name].left, expected.left)
        torch.testing.assert_close(watching.codecs[step].carriers[name].right, expected.right)


@pytest.mark.parametrize("build", VARIANTS)
def test_a_run_goes_on_from_a_checkpoint_that_loads_with_weights_only(build) -> None:  # type: ignore[no-untyped-def]
    mechanism = build(rank=2, clip=1.0, matrices=MATRICES).with_noise(0.0)
    draws = [ROWS, [1, 2, 3], [7, 8], [9]]
    with privatizer(mechanism, draws) as (private, batches, model):
        whole = run(private, batches, model, lr=0.3)
    with privatizer(mechanism, draws) as (private, batches, model):
        run(private, itertools.islice(batches, 2), model, lr=0.3)
        file = io.BytesIO()
        torch.save({"private": private.state_dict(), "model": model.state_dict()}, file)
        ledger = private.ledger
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = build(rank=2, clip=1.0, matrices=MATRICES).with_noise(0.0)
    net = small_net()
    net.load_state_dict(saved["model"])
    with privatizer(again, draws, model=net, ledger=ledger) as (private, batches, model):
        private.load_state_dict(saved["private"])
        rest = run(private, batches, model, lr=0.3)
    assert len(rest) == 2
    for a, b in zip(whole[2:], rest, strict=True):
        for name in a:
            torch.testing.assert_close(a[name], b[name])


def test_resuming_with_another_rank_is_refused() -> None:
    with privatizer(qg.methods.rgp(rank=1).with_noise(1.0), [[0], [1]]) as (private, batches, model):
        run(private, batches, model)
        saved = private.state_dict()
    with (
        privatizer(qg.methods.rgp(rank=2, matrices=MATRICES).with_noise(1.0), [[0], [1]]) as (private, _, _),
        pytest.raises(ValueError, match="another mechanism"),
    ):
        private.load_state_dict(saved)


@pytest.mark.parametrize(
    "change",
    [
        {"rank": 2},
        {"release": "left"},
        {"warmup_steps": 3},
        {"iterations": 2},
        {"matrices": ("conv.*",)},
        {"clip": 2.0},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_setting_is_part_of_the_description(change: dict[str, object]) -> None:
    settings: dict[str, object] = {"rank": 1, **change}
    assert qg.methods.rgp(**settings).describe() != qg.methods.rgp(rank=1).describe()  # type: ignore[arg-type]
    assert qg.methods.rgp(rank=1).describe() == qg.methods.rgp(rank=1).describe()


@pytest.mark.parametrize("release", ["orthogonal", "paper", "left"])
def test_a_mask_on_the_carriers(release: CarriedParts) -> None:
    """`mask @ LowRank`: half of the carriers' coordinates are released, and the update is still low-rank."""
    low_rank = LowRank(rank=1, release=release)
    mechanism = qg.within(
        qg.methods.dp_sgd(clip=1.0), qg.within(RandomMask(freeze=0.5), low_rank)
    ).with_noise(0.0)
    with privatizer(mechanism, [ROWS], model=small_net(torch.float64), data=records(torch.float64)) as (
        private,
        b,
        net,
    ):
        gradient = run(private, b, net)[0]
        inside = private.begin_step().public.codec(low_rank).space
    assert "hidden.weight.left" in inside
    values = torch.linalg.svdvals(gradient["hidden.weight"])
    assert values[0] > 0
    assert values[2:].max() < 1e-12


def test_carriers_of_what_is_already_encoded_are_refused() -> None:
    mechanism = qg.within(qg.methods.rgp(rank=1), RandomMask(freeze=0.5)).with_noise(1.0)
    with (
        privatizer(mechanism, [[0]]) as (private, batches, model),
        pytest.raises(ValueError, match="LowRank needs the matrices as they are"),
    ):
        run(private, batches, model)


def test_frozen_parameters_have_no_carriers() -> None:
    net = small_net()
    net.hidden.weight.requires_grad_(False)
    with (
        privatizer(
            qg.methods.rgp(rank=1, matrices=("hidden.weight",)).with_noise(1.0), [[0]], model=net
        ) as parts,
        pytest.raises(ValueError, match=r"'hidden\.weight' names no trainable matrix.*frozen"),
    ):
        run(*parts)
    with privatizer(qg.methods.rgp(rank=1).with_noise(1.0), [[0]], model=net) as (private, batches, model):
        assert "hidden.weight" not in run(private, batches, model)[0]
        assert "conv.weight.left" in private.begin_step().codec(0).space


def test_a_clip_per_group_is_refused() -> None:
    for method in (qg.methods.rgp, qg.methods.rgp_random):
        with pytest.raises(ValueError, match="jointly"):
            method(rank=1, clip=qg.PerGroupClip({"": 1.0}))
    assert qg.methods.rgp(rank=1, clip=qg.AutomaticClip(1.0)).releases[0].clip.sensitivity(0) == 1.0


def test_rgp_learns_without_noise() -> None:
    """RGP (N.P.) of the paper: the projected gradients alone train the model."""
    rows = list(range(40))
    mechanism = qg.methods.rgp(rank=1, clip=1e6, warmup_steps=5).with_noise(0.0)

    def loss(net: nn.Module) -> Tensor:
        with torch.no_grad():
            return losses_of(net, *records()[:]).mean()

    with privatizer(mechanism, [rows] * 150, rate=1.0) as (private, batches, model):
        before = loss(model)
        run(private, batches, model, lr=0.5)
        assert loss(model) < 0.5 * before
