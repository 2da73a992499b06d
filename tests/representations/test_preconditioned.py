"""`qg.Preconditioned`: what P is, on which kinds of layers, what clip and rate mean, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._gradients.blocks import flatten
from quietgrad._gradients.convolution import ConvGrad
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.space import coordinates
from quietgrad._mechanism.clipping import MARGIN
from quietgrad._representations.compose import ComposedCodec
from quietgrad._representations.preconditioned.layer_scale import TableScale
from quietgrad._representations.preconditioned.scaling import PreconditionedCodec
from quietgrad._representations.subspace.subspace import SubspaceCodec
from quietgrad.rules import PER_COORDINATE

N, CLASSES = 12, 3
Losses = Callable[[nn.Module], Tensor]


class Mixed(nn.Module):
    """A table, attention, a norm, a convolution and two linear layers, one of them without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.conv = nn.Conv1d(8, 6, 3)
        self.hidden = nn.Linear(6, 5, bias=False)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        x = torch.relu(self.conv(x.transpose(1, 2)))
        out: Tensor = self.head(torch.relu(self.hidden(x.mean(2))))
        return out


def tokens(seed: int, count: int = N) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.multinomial(1.0 / torch.arange(1.0, 21.0), count * 7, True, generator=rng).view(count, 7)


def probes(model: nn.Module) -> Tensor:
    return F.cross_entropy(model(tokens(1, 40)), torch.randint(CLASSES, (40,)), reduction="none")


def mixed() -> Mixed:
    torch.manual_seed(0)
    return Mixed()


def trained(
    model: nn.Module, mechanism: qg.Mechanism, data: TensorDataset, *, steps: int = 1
) -> tuple[dict[str, Tensor], list[qg.Codec]]:
    """The gradient of the last step without noise, and the codec of each step."""
    batches = qg.PoissonBatches(data, rate=1.0, steps=steps)
    codecs = []
    with qg.Privatizer(
        model, mechanism.with_noise(0.0), batches, deterministic=True, public_seed=3
    ) as private:
        for batch in batches:
            codecs.append(private.begin_step().codec(0))
            for x, y in batch.split(5):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, codecs


def text_data() -> TensorDataset:
    return TensorDataset(tokens(2), torch.arange(N) % CLASSES)


def reference(model: nn.Module, data: TensorDataset, codec: qg.Codec, clip: float) -> dict[str, Tensor]:
    """A loop over samples: P as the codec applies it to formed gradients, the clip, P again."""
    assert isinstance(codec, PreconditionedCodec)
    names = [name for name, _ in model.named_parameters()]
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for x, y in zip(*data.tensors, strict=True):
        grads = torch.autograd.grad(F.cross_entropy(model(x[None]), y[None]), list(model.parameters()))
        row = codec.encode(
            qg.BlockwiseGrads({n: qg.DenseGrad(g[None]) for n, g in zip(names, grads, strict=True)}, 1)
        )
        scale = min(1.0, clip / float(row.squared_norms()[0].sqrt()))
        for name, block in row.blocks.items():
            total[name] += scale * block.dense()[0] / len(data)
    return codec.decode(qg.Released(blocks=total, std=0.0, sensitivity=clip))


def test_every_kind_of_layer_equals_a_loop_over_formed_gradients() -> None:
    model, data = mixed(), text_data()
    found, (codec,) = trained(model, qg.methods.preconditioned(probes, clip=0.3), data)
    for name, expected in reference(model, data, codec, 0.3).items():
        torch.testing.assert_close(found[name], expected, rtol=1.2 * MARGIN, atol=1e-5)


def test_which_layers_are_scaled_and_which_biases_go_with_them() -> None:
    _, (codec,) = trained(mixed(), qg.methods.preconditioned(probes), text_data())
    assert isinstance(codec, PreconditionedCodec)
    with_bias = {name for name, scale in codec.scales.items() if scale.with_bias}
    assert with_bias == {
        "attention.in_proj_weight", "attention.out_proj.weight", "conv.weight", "head.weight"
    }  # fmt: skip
    assert codec.scales.keys() - with_bias == {"embed.weight", "hidden.weight"}


def linear_data() -> TensorDataset:
    x = torch.randn(N, 6, generator=torch.Generator().manual_seed(3))
    return TensorDataset(x, torch.arange(N) % CLASSES)


def linear_probes(model: nn.Module) -> Tensor:
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(4)) * torch.logspace(0, -2, 6) + 0.5
    return F.cross_entropy(model(x), torch.arange(50) % CLASSES, reduction="none")


@pytest.mark.parametrize("power", [0.25, 0.5])
def test_p_is_the_damped_inverse_root_of_the_second_moment(power: float) -> None:
    """Of a linear model: A by numpy's own way, a 1 beside the inputs for the bias."""
    torch.manual_seed(0)
    model = nn.Linear(6, CLASSES)
    _, (codec,) = trained(
        model, qg.methods.preconditioned(linear_probes, power=power, damping=0.1), linear_data()
    )
    assert isinstance(codec, PreconditionedCodec)
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(4)) * torch.logspace(0, -2, 6) + 0.5
    a = torch.cat([x, torch.ones(50, 1)], 1).double()
    moment = a.T @ a
    values, vectors = torch.linalg.eigh(moment / moment.trace() * 7 + 0.1 * torch.eye(7))
    expected = (vectors * values**-power) @ vectors.T
    got = codec.scales["weight"].apply(torch.eye(7)[:, :6], torch.eye(7)[:, 6])
    found = torch.cat([got[0], got[1][:, None]], 1) if got[1] is not None else got[0]
    # Directions that are nearly alike share one number, so P is close rather than equal.
    assert float((found.double() - expected).norm() / expected.norm()) < 0.1
    before, after = codec.scales["weight"].spread
    assert before > 3.0
    assert after < before


def test_no_gradient_is_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    formed: list[str] = []
    for kind in (FactoredGrad, ConvGrad):
        for algorithm in ("dense", "chunks"):
            monkeypatch.setattr(kind, algorithm, lambda self: formed.append(type(self).__name__))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    batches = qg.PoissonBatches(linear_data(), rate=1.0, steps=1)
    mechanism = qg.methods.preconditioned(linear_probes).with_noise(1.0)
    with qg.Privatizer(model, mechanism, batches, require_independence=False) as private:
        for batch in batches:
            for x, y in batch.split(5):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
    assert formed == []


def test_clip_and_rate_mean_what_they_mean_in_dp_sgd() -> None:
    """The median probe keeps its length, and decoded noise has the length of DP-SGD's."""
    model = mixed()
    _, (codec,) = trained(model, qg.methods.preconditioned(probes), text_data())
    batches = qg.PoissonBatches(text_data(), rate=1.0, steps=1)
    with qg.Privatizer(model, qg.methods.dp_sgd().with_noise(0.0), batches, public_seed=3) as private:
        (grads,) = private.begin_step().public.gradients(probes)
        encoded = codec.encode(grads)
    ratio = float(encoded.squared_norms().median() / grads.squared_norms().median())
    assert ratio == pytest.approx(1.0, rel=1e-3)
    rng = torch.Generator().manual_seed(5)
    energies = []
    for _ in range(40):
        noise = {name: torch.randn(shape, generator=rng) for name, shape in codec.space.items()}
        decoded = codec.decode(qg.Released(blocks=noise, std=1.0, sensitivity=1.0))
        assert decoded is not None
        energies.append(sum(float(block.square().sum()) for block in decoded.values()))
    assert sum(energies) / len(energies) == pytest.approx(coordinates(codec.space), rel=0.05)


@pytest.mark.parametrize(("every", "made"), [(None, [0, 0, 0, 0]), (2, [0, 0, 2, 2]), (1, [0, 1, 2, 3])])
def test_refreshed_when_it_is_due(every: int | None, made: list[int]) -> None:
    _, codecs = trained(mixed(), qg.methods.preconditioned(probes, refresh_every=every), text_data(), steps=4)
    assert [codec.since for codec in codecs] == made


def test_a_subspace_inside_may_have_the_same_public_inputs() -> None:
    """They pass through the scaling when the basis is found, and are no private batch."""
    kept = torch.randn(30, 6, generator=torch.Generator().manual_seed(6))
    public = qg.public_losses.random_label_losses(kept, CLASSES)
    mechanism = qg.methods.gep(public, rank=4) @ qg.Preconditioned(probes=public)
    found, _ = trained(nn.Linear(6, CLASSES), mechanism, linear_data())
    assert all(bool(gradient.isfinite().all()) for gradient in found.values())


def test_coordinates_of_a_subspace_are_scaled_by_their_second_moment_in_its_own_basis() -> None:
    """`Preconditioned @ Subspace`: the update is κ·c·Bᵀ·D²·B·g, and D is made anew with every basis."""
    subspace = qg.Subspace(public_losses=fixed_probes, rank=4, rule="eigenvectors", refresh_every=2)
    scaled = qg.Preconditioned(probes=fixed_probes, damping=0.1) @ subspace
    model = mixed()
    grads, codecs = trained(model, qg.methods.dp_sgd(clip=1e6) @ scaled, text_data(), steps=3)
    inside = [codec.inner for codec in codecs if isinstance(codec, ComposedCodec)]  # of DP-SGD's identity
    both = [codec for codec in inside if isinstance(codec, ComposedCodec)]
    assert [codec.outer.since for codec in both] == [0, 0, 2]
    last, inner = both[-1].outer, both[-1].inner
    assert isinstance(inner, SubspaceCodec)
    assert isinstance(last, PreconditionedCodec)
    (scale,) = last.scales.values()
    assert isinstance(scale, TableScale)
    assert bool((scale.rows.diff() > 0).all()), "the largest eigenvalue has the smallest scale"
    mean = flatten(_mean_gradient(model))
    (basis,) = (group.rows for group in inner.basis.groups.values())
    expected = last._noise_kept * last.length * basis.T @ (scale.rows.square() * (basis @ mean))
    torch.testing.assert_close(flatten(grads), expected, rtol=1e-3, atol=1e-5)


def fixed_probes(model: nn.Module) -> Tensor:
    labels = torch.randint(CLASSES, (40,), generator=torch.Generator().manual_seed(2))
    return F.cross_entropy(model(tokens(1, 40)), labels, reduction="none")


def _mean_gradient(model: nn.Module) -> dict[str, Tensor]:
    x, y = text_data().tensors
    loss = F.cross_entropy(model(x), y)
    return dict(
        zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True)
    )


def test_damping_that_is_left_out_follows_the_noise_of_the_run() -> None:
    """The same P as with the rule's number, which explain() shows."""
    model, found = mixed(), []
    size = sum(p.numel() for p in model.parameters())
    sigma = 30 * PER_COORDINATE * N / size  # p·σ/(qN√T) is 30 times PER_COORDINATE
    for damping in (None, 900.0, 1.0):
        batches = qg.PoissonBatches(text_data(), rate=1.0, steps=1)
        mechanism = qg.methods.preconditioned(probes, damping=damping).with_noise(sigma)
        with qg.Privatizer(model, mechanism, batches, public_seed=3) as private:
            codec = private.begin_step().codec(0)
            assert f"damping {damping or 900:g}" in private.explain().releases[0].remark
        assert isinstance(codec, PreconditionedCodec)
        found.append({name: scale.state() for name, scale in codec.scales.items()})
    torch.testing.assert_close(found[0], found[1])
    assert found[0]["head.weight"]["base"] != found[2]["head.weight"]["base"]


def test_explain_shows_the_conditioning() -> None:
    batches = qg.PoissonBatches(text_data(), rate=1.0, steps=1)
    with qg.Privatizer(mixed(), qg.methods.preconditioned(probes).with_noise(1.0), batches) as private:
        explained = private.explain()
    assert "largest over mean eigenvalue" in explained.releases[0].remark
    assert explained.releases[0].remark in str(explained)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"power": 0.0}, "power"),
        ({"damping": 0.0}, "damping"),
        ({"damping": float("inf")}, "damping"),
        ({"sides": "left"}, "sides"),
        ({"refresh_every": 0}, "refresh_every"),
        ({"probes": torch.ones(3)}, "probes"),
    ],
)
@pytest.mark.wrong_types
def test_wrong_arguments_are_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        qg.Preconditioned(**{"probes": probes, **wrong})  # type: ignore[arg-type]


def test_probes_that_are_not_finite_are_refused() -> None:
    def broken(model: nn.Module) -> Tensor:
        return model(torch.full((4, 6), float("inf"))).sum(1)

    with pytest.raises(ValueError, match="NaN or infinite"):
        trained(nn.Linear(6, CLASSES), qg.methods.preconditioned(broken), linear_data())
