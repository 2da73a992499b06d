"""Embedding and residual: what numpy says, embedded once, and never above the clip in floating point."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.space import Shapes
from quietgrad._gradients.stages import BlockwiseGrads, Released
from quietgrad._mechanism.clipping import MARGIN, FlatClip
from quietgrad._representations.base import Public
from quietgrad._representations.subspace.basis import Basis
from quietgrad._representations.subspace.residual import LARGEST, Residual, ResidualCodec
from quietgrad._representations.subspace.subspace import Subspace, SubspaceCodec
from tests.representations.public_stub import (
    SIZE,
    SPACE,
    blockwise,
    flat,
    losses,
    numpy_top_directions,
    public_view,
)

WIDE: Shapes = {"w": torch.Size((40, 50)), "v": torch.Size((500,))}


def rows_of(count: int, size: int = SIZE, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
        dtype
    )


def codecs(
    public: Public, bound: float, rank: int = 6, **options: Any
) -> tuple[SubspaceCodec, ResidualCodec]:
    subspace = Subspace(public_losses=losses, rank=rank, **options)
    embedding, residual = public.codec(subspace), public.codec(Residual(subspace=subspace, bound=bound))
    assert isinstance(embedding, SubspaceCodec)
    assert isinstance(residual, ResidualCodec)
    return embedding, residual


def norm(blocks: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(block.double().square().sum()) for block in blocks.values()))


def difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return norm({name: a[name].double() - b[name].double() for name in a})


@pytest.mark.parametrize("groups", [1, "modules"])
def test_embedding_and_residual_are_numpys(groups: int | str) -> None:
    public = public_view(rows_of(12, dtype=torch.float64))
    embedding, residual = codecs(public, 1e6, rule="eigenvectors", groups=groups)
    private = rows_of(9, seed=1, dtype=torch.float64)
    grads = blockwise(private)
    weights = torch.linspace(0.1, 2, 9, dtype=torch.float64)
    anchor = rows_of(12, dtype=torch.float64).numpy()
    if groups == 1:
        basis = numpy_top_directions(anchor, 6)
    else:
        sizes = embedding.space["a"][0], embedding.space["b"][0]
        basis = np.zeros((6, SIZE))
        basis[: sizes[0], :25] = numpy_top_directions(anchor[:, :25], sizes[0])
        basis[sizes[0] :, 25:] = numpy_top_directions(anchor[:, 25:], sizes[1])
    expected = weights.numpy() @ private.numpy()
    inside = expected @ basis.T @ basis
    embedded = embedding.encode(grads).weighted_sum(weights)
    got = embedding.decode(Released(blocks=embedded, std=0.0, sensitivity=1.0))
    assert np.allclose(flat(got), inside, atol=1e-10)
    encoded = residual.encode(grads)
    assert np.allclose(flat(encoded.weighted_sum(weights)), expected - inside, atol=1e-10)
    dense = torch.cat([block.flatten(1) for block in encoded.dense().values()], 1).numpy()
    assert np.allclose(dense, private.numpy() @ (np.eye(SIZE) - basis.T @ basis), atol=1e-10)
    assert np.allclose(encoded.squared_norms().sqrt(), np.linalg.norm(dense, axis=1), rtol=3e-3)


def test_a_micro_batch_is_embedded_once_for_both_releases(monkeypatch: Any) -> None:
    embedding, residual = codecs(public_view(rows_of(12)), 1.0)
    calls: list[int] = []
    original = Basis.project

    def counted(self: Basis, grads: Any) -> Any:
        calls.append(1)
        return original(self, grads)

    monkeypatch.setattr(Basis, "project", counted)
    for seed in (1, 2):
        grads = blockwise(rows_of(4, seed=seed))
        embedding.encode(grads)
        residual.encode(grads)
    assert len(calls) == 2


def in_span(basis: Tensor, count: int, seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, len(basis), generator=rng, dtype=torch.float64) @ basis.double()
    return rows / rows.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("share_outside", [0.0, 1e-6, 1e-3, 0.1, 1.0])
@pytest.mark.parametrize("clip", [2.0, 0.05])
def test_a_sample_in_the_span_stays_within_the_clip_at_any_scale(share_outside: float, clip: float) -> None:
    size = 2500
    embedding, residual = codecs(public_view(rows_of(60, size), space=WIDE), clip, rank=50)
    basis = embedding.basis.groups["part0"].rows
    directions = in_span(basis, 25, seed=1) + share_outside * rows_of(25, size, seed=2).double() / math.sqrt(
        size
    )
    rows = (directions * 10.0 ** torch.linspace(-12, 12, 25)[:, None]).float()
    rule = FlatClip(clip)
    for index in range(25):
        one = rule(residual.encode(blockwise(rows[index : index + 1], WIDE)), 0)
        assert norm(one.blocks) <= clip, index


@pytest.mark.parametrize("length", [5.0, 1e9])
def test_a_crowd_inside_the_span_leaves_no_room_for_one_more(length: float) -> None:
    """4000 samples whose embedded parts all add up: their float32 rounding must not carry one sample over the clip."""
    size, clip = 2500, 0.5
    embedding, residual = codecs(public_view(rows_of(60, size), space=WIDE), clip, rank=50)
    basis = embedding.basis.groups["part0"].rows
    spread = torch.rand(4000, 1, generator=torch.Generator().manual_seed(5), dtype=torch.float64) + 0.5
    crowd = in_span(basis, 1, seed=1) * spread * length
    outside = rows_of(4, size, seed=2).double()
    outside -= outside @ basis.double().T @ basis.double()
    outside *= clip / outside.norm(dim=1, keepdim=True) * torch.tensor([0.99, 1, 2, 1e6])[:, None]
    rule = FlatClip(clip)
    rest = crowd.float()
    without = rule(residual.encode(blockwise(rest, WIDE)), 0)
    for extra in outside.float():
        for place in (0, 133, 4000):  # another order of additions, another rounding of the crowd's sum
            rows = torch.cat([rest[:place], extra[None], rest[place:]])
            whole = rule(residual.encode(blockwise(rows, WIDE)), 0)
            assert difference(whole.blocks, without.blocks) <= clip


def test_the_bound_costs_little() -> None:
    """Beyond the clip's margin a residual at the clip is scaled by 0.1%, and by 1% if nine tenths lie in the span."""
    size = 2500
    embedding, residual = codecs(public_view(rows_of(60, size), space=WIDE), 1.0, rank=50)
    basis = embedding.basis.groups["part0"].rows
    outside = rows_of(1, size, seed=2).double()
    outside -= outside @ basis.double().T @ basis.double()
    outside /= outside.norm()
    for inside, least in ((0.0, 0.999), (1.0, 0.999), (LARGEST - 1, 0.99)):
        row = (outside + inside * in_span(basis, 1, seed=3)).float()
        kept = norm(FlatClip(1.0)(residual.encode(blockwise(row, WIDE)), 0).blocks)
        assert least * (1 - MARGIN) <= kept <= 1.0


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_is_dropped_from_the_residual(poison: float) -> None:
    _, residual = codecs(public_view(rows_of(12)), 1.0)
    rows = rows_of(3, seed=1)
    broken = rows.clone()
    broken[1, 7] = poison
    clean = FlatClip(1.0)(residual.encode(blockwise(rows[[0, 2]])), 0)
    assert difference(FlatClip(1.0)(residual.encode(blockwise(broken)), 0).blocks, clean.blocks) < 1e-6


def test_noise_along_the_basis_is_taken_off_the_residual() -> None:
    embedding, residual = codecs(public_view(rows_of(12)), 1.0)
    noise = {
        name: torch.randn(shape, generator=torch.Generator().manual_seed(1)) for name, shape in SPACE.items()
    }
    decoded = residual.decode(Released(blocks=noise, std=1.0, sensitivity=1.0))
    along = embedding.basis.coordinates(decoded)["part0"]
    assert float(along.abs().max()) < 1e-5
    assert norm(decoded) < norm(noise)


def test_a_cached_basis_is_kept_until_it_is_due_and_survives_a_checkpoint() -> None:
    subspace = Subspace(public_losses=losses, rank=6, refresh_every=3)
    state: dict[str, Any] = {}
    found = []
    for step in range(5):
        public = public_view(rows_of(12, seed=step), step=step)
        codec, state = subspace.refresh(public, state)
        assert isinstance(codec, SubspaceCodec)
        found.append(codec.basis.groups["part0"].rows)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[2], found[3])
    assert torch.equal(found[3], found[4])


def test_a_refresh_every_step_keeps_no_state() -> None:
    _, state = Subspace(public_losses=losses, rank=6).refresh(public_view(rows_of(12)), {})
    assert state == {}


def factored(x: Tensor) -> BlockwiseGrads:
    backprops = torch.ones(len(x), 1, 3)
    return BlockwiseGrads({"first": FactoredGrad(x[:, None, :], backprops)}, len(x))


def test_a_public_loss_that_fed_the_private_batch_to_the_model_is_refused() -> None:
    private, public_inputs = rows_of(8, 5, seed=1), rows_of(8, 5, seed=2)
    space = {"first": torch.Size((3, 5))}

    def view(inputs: Tensor) -> Public:
        public = public_view(torch.zeros(1, 15), space=space)
        return replace(public, collect=lambda _, __: iter([factored(inputs)]))

    subspace = Subspace(public_losses=losses, rank=2)
    assert view(public_inputs).codec(subspace).encode(factored(private)).samples == 8
    for leaked in (private, private[2:6], private.view(8, 5)):
        codec = view(leaked).codec(subspace)
        with pytest.raises(ValueError, match="fed the private batch to the model"):
            codec.encode(factored(private))
    # Equal values are not refused: whether this raises must not depend on private data.
    assert view(private.clone()).codec(subspace).encode(factored(private)).samples == 8


@pytest.mark.wrong_types
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank to be a whole number >= 1, got 0"),
        ({"rank": 2.5}, "rank to be a whole number"),
        ({"rank": 2, "refresh_every": 0}, "refresh_every"),
        ({"rank": 2, "power_iterations": -1}, "power_iterations"),
        ({"rank": 2, "rule": "svd"}, '"power", "eigenvectors" or "random"'),
        ({"rank": 2, "public_losses": None}, "public_losses to be a function"),
        ({"rank": 2, "public_losses": torch.zeros(3)}, "public_losses to be a function"),
    ],
)
def test_bad_options_are_refused_at_construction(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Subspace(**{"public_losses": losses, **options})
