"""RGP's theorems against autograd on an explicitly reparametrised model, and what each release keeps of a gradient."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quietgrad._capture.recorder import Recorder
from quietgrad._gradients.blocks import DenseGrad
from quietgrad._gradients.space import Space
from quietgrad._gradients.stages import BlockwiseGrads, PerSampleGrads, Released
from quietgrad._privatizer.run_state import PublicGradients, step_seed
from quietgrad._representations.base import Codecs, Public, States
from quietgrad._representations.low_rank.low_rank import CarriedParts, LowRank, LowRankCodec
from tests.cases.world import SmallNet, losses_of, records, small_net

MATRICES = ("conv.weight", "hidden.weight")
RELEASES: tuple[CarriedParts, ...] = ("orthogonal", "paper", "left")
SAMPLES = 6


class Reparametrised(nn.Module):
    """The small net with W → LR + (W − LR).detach(), the kernel as two consecutive convolutions (equations 1 and 4)."""

    def __init__(self, net: SmallNet, codec: LowRankCodec) -> None:
        super().__init__()
        self.net = net
        conv, hidden = (codec.carriers[name] for name in MATRICES)
        self.conv_left, self.conv_right = nn.Parameter(conv.left), nn.Parameter(conv.right)
        self.hidden_left, self.hidden_right = nn.Parameter(hidden.left), nn.Parameter(hidden.right)

    def forward(self, x: Tensor) -> Tensor:
        net, rank = self.net, len(self.conv_right)
        thin, kernel = self.conv_right.view(rank, 1, 3, 3), net.conv.weight.detach()
        rest = kernel - (self.conv_left @ self.conv_right).detach().view_as(kernel)
        carried = F.conv2d(F.conv2d(x, thin, stride=2, padding=1), self.conv_left[:, :, None, None])
        maps = carried + F.conv2d(x, rest, net.conv.bias, stride=2, padding=1)
        features = torch.tanh(net.norm(maps)).flatten(1)
        rest = net.hidden.weight.detach() - (self.hidden_left @ self.hidden_right).detach()
        carried = F.linear(F.linear(features, self.hidden_right), self.hidden_left)
        return net.head(torch.tanh(carried + F.linear(features, rest, net.hidden.bias)))


@pytest.fixture
def net() -> SmallNet:
    return small_net(torch.float64)


def public_view(net: nn.Module, step: int = 0) -> Public:
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    return Public(
        parameters=parameters,
        space=Space.of(parameters),
        step=step,
        steps=10,
        rate=0.1,
        seed=step_seed(3, step),
        collect=PublicGradients(Recorder(net)),
        codecs=Codecs(States()),
    )


def codec_of(net: nn.Module, release: CarriedParts = "orthogonal", rank: int = 2) -> LowRankCodec:
    codec = public_view(net).codec(LowRank(rank=rank, release=release, matrices=MATRICES))
    assert isinstance(codec, LowRankCodec)
    return codec


def collected(net: nn.Module) -> BlockwiseGrads:
    recorder = Recorder(net)
    recorder.attach()
    grads = recorder.collect(losses_of(net, *records(torch.float64)[:SAMPLES]))
    recorder.detach()
    return grads


def released(blocks: dict[str, Tensor]) -> Released:
    return Released(blocks=blocks, std=0.0, sensitivity=1.0)


def projected(gradient: Tensor, codec: LowRankCodec, name: str) -> Tensor:
    """G − (I − LLᵀ)G(I − RᵀR): the projection onto matrices whose columns or rows lie in the carriers' spans."""
    left, right = codec.carriers[name].left, codec.carriers[name].right
    matrix = gradient.flatten(1)
    off = (matrix - left @ left.T @ matrix) @ (torch.eye(right.shape[1], dtype=right.dtype) - right.T @ right)
    return (matrix - off).view_as(gradient)


def test_theorem_2_1_carrier_gradients_are_those_of_the_reparametrised_model(net: SmallNet) -> None:
    codec = codec_of(net, "paper")
    encoded = codec.encode(collected(net)).dense()
    model = Reparametrised(net, codec)
    x, y = records(torch.float64)[:SAMPLES]
    torch.testing.assert_close(model(x), net(x))
    names = {
        "conv.weight.left": model.conv_left,
        "conv.weight.right": model.conv_right,
        "hidden.weight.left": model.hidden_left,
        "hidden.weight.right": model.hidden_right,
        "head.weight": net.head.weight,
        "norm.bias": net.norm.bias,
    }
    for sample in range(SAMPLES):
        loss = losses_of(model, x[sample : sample + 1], y[sample : sample + 1]).sum()
        for name, expected in zip(names, torch.autograd.grad(loss, list(names.values())), strict=True):
            torch.testing.assert_close(encoded[name][sample], expected)


@pytest.mark.parametrize("release", ["paper", "orthogonal"])
def test_corollary_2_1_1_the_update_is_the_projection_of_the_gradient(
    net: SmallNet, release: CarriedParts
) -> None:
    codec = codec_of(net, release)
    grads = collected(net)
    weights = torch.rand(SAMPLES, dtype=torch.float64)
    decoded = codec.decode(released(codec.encode(grads).weighted_sum(weights)))
    whole = grads.weighted_sum(weights)
    for name in MATRICES:
        torch.testing.assert_close(decoded[name], projected(whole[name], codec, name))
    for name in set(whole) - set(MATRICES):
        assert torch.equal(decoded[name], whole[name])


def test_left_keeps_the_rows_in_the_span_of_r(net: SmallNet) -> None:
    codec = codec_of(net, "left")
    grads = collected(net)
    decoded = codec.decode(released(codec.encode(grads).weighted_sum(torch.ones(SAMPLES))))
    for name in MATRICES:
        right = codec.carriers[name].right
        matrix = grads.weighted_sum(torch.ones(SAMPLES))[name].flatten(1)
        torch.testing.assert_close(decoded[name].flatten(1), matrix @ right.T @ right)


def energies(net: nn.Module, release: CarriedParts) -> tuple[Tensor, Tensor]:
    """Squared norms before and after encoding, over the matrices alone."""
    grads = collected(net)
    grads = BlockwiseGrads(
        {n: b if n in MATRICES else DenseGrad(0 * b.dense()) for n, b in grads.blocks.items()}, SAMPLES
    )
    return grads.squared_norms(), codec_of(net, release).encode(grads).squared_norms()


def test_orthogonal_parts_have_no_more_energy_than_the_gradient(net: SmallNet) -> None:
    whole, parts = energies(net, "orthogonal")
    assert (parts <= whole * (1 + 1e-9)).all()
    codec = codec_of(net)
    dense = collected(net).dense()
    kept = sum(
        torch.stack([projected(g, codec, name).square().sum() for g in dense[name]]) for name in MATRICES
    )
    torch.testing.assert_close(parts, kept, rtol=1e-6, atol=0)


def test_the_papers_pair_counts_the_middle_part_twice(net: SmallNet) -> None:
    """So the same clip takes more from it; for a gradient inside both spans twice as much."""
    _, orthogonal = energies(net, "orthogonal")
    _, paper = energies(net, "paper")
    assert (paper > orthogonal).all()
    codec, twin = codec_of(net), codec_of(net, "paper")
    rows = {name: torch.zeros(1, *shape, dtype=torch.float64) for name, shape in codec._outside.items()}
    carriers = codec.carriers["hidden.weight"]
    rows["hidden.weight"][0] = carriers.left @ carriers.right
    grads = BlockwiseGrads({name: DenseGrad(block) for name, block in rows.items()}, 1)
    assert codec.encode(grads).squared_norms().item() == pytest.approx(2.0)
    assert twin.encode(grads).squared_norms().item() == pytest.approx(4.0)


@pytest.mark.parametrize("release", ["paper", "orthogonal"])
def test_the_decoded_noise_has_the_dimension_of_the_projection(net: SmallNet, release: CarriedParts) -> None:
    """r(o + i) − r² for both: D's noise inside the rows of R is projected away, not added a second time."""
    codec = codec_of(net, release)
    draws = 2000
    energy = dict.fromkeys(MATRICES, 0.0)
    for _ in range(draws):
        noise = {name: torch.randn(shape, dtype=torch.float64) for name, shape in codec.space.items()}
        decoded = codec.decode(released(noise))
        for name in MATRICES:
            energy[name] += float(decoded[name].square().sum()) / draws
    for name in MATRICES:
        (o, r), i = codec.carriers[name].left.shape, codec.carriers[name].right.shape[1]
        assert energy[name] == pytest.approx(r * (o + i) - r * r, rel=0.04)


@pytest.mark.parametrize("release", RELEASES)
def test_the_encoded_space_is_what_is_encoded(net: SmallNet, release: CarriedParts) -> None:
    codec = codec_of(net, release)
    encoded = codec.encode(collected(net))
    assert encoded.space == codec.space
    assert list(encoded.space) == list(codec.space)
    assert ("hidden.weight.right" in codec.space) == (release != "left")


def test_gradients_that_are_not_blockwise_are_encoded_too(net: SmallNet) -> None:
    grads = collected(net)

    class Opaque(PerSampleGrads):
        samples, space = grads.samples, grads.space
        squared_norms: Callable[..., Tensor] = grads.squared_norms
        weighted_sum = grads.weighted_sum

        def dense(self) -> dict[str, Tensor]:
            return grads.dense()

    codec = codec_of(net)
    expected, got = codec.encode(grads).dense(), codec.encode(Opaque()).dense()
    for name, block in expected.items():
        torch.testing.assert_close(got[name], block)


def test_carriers_follow_the_public_seed_and_state_only(net: SmallNet) -> None:
    first, again = codec_of(net), codec_of(net)
    for name in MATRICES:
        assert torch.equal(first.carriers[name].left, again.carriers[name].left)
        assert torch.equal(first.carriers[name].right, again.carriers[name].right)


def test_proposition_4_1_gradients_of_least_squares_stay_in_one_subspace() -> None:
    """So carriers from W_t − W_0 lose nothing of any later gradient, and random ones nearly everything."""
    x = torch.randn(4, 30, dtype=torch.float64)
    y = torch.randn(4, 20, dtype=torch.float64)
    net = nn.Linear(30, 20, bias=False).double()
    start = net.weight.detach().clone()
    first: Tensor | None = None
    for step in range(15):
        loss = F.mse_loss(net(x), y, reduction="sum") / len(x)
        (gradient,) = torch.autograd.grad(loss, net.weight)
        if first is None:
            u, _, v = torch.linalg.svd(gradient, full_matrices=False)
            first = gradient
            u, v = u[:, :4], v[:4]
        assert (gradient - u @ u.T @ gradient).norm() <= 1e-9 * gradient.norm()
        assert (gradient - gradient @ v.T @ v).norm() <= 1e-9 * gradient.norm()
        if step:
            codec = LowRank(rank=4, matrices=("weight",))
            state = {"carriers": {"weight": start}}
            made, _ = codec.refresh(public_view(net, step), state)
            assert isinstance(made, LowRankCodec)
            carriers = made.carriers["weight"]
            off = gradient - gradient @ carriers.right.T @ carriers.right
            # The random filling of missing directions (1e-6) is all that separates the spans.
            assert off.norm() <= 1e-4 * gradient.norm()
        with torch.no_grad():
            net.weight -= 0.02 * gradient
