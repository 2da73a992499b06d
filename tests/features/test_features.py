"""Features tell of their own record only, are at most one long, and survive being saved."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import quietgrad as qg
from quietgrad.features.encoders import Columns, Frozen, Mirrored, Pixels, Scatter, ScatterRoots, encode, unit
from quietgrad.features.images import image_encoder
from quietgrad.features.interactions import Products
from quietgrad.features.moments import (
    Moments,
    moments_from_diagonal,
    moments_from_kronecker,
    moments_from_second,
    moments_of,
    moments_standing_out,
    noise_eigenvalue,
    shrunk,
)
from quietgrad.features.patterns import Patches
from quietgrad.features.pipeline import Pipeline, Rescale
from quietgrad.features.quadratic import Quadratic, quadratic_moments_of
from quietgrad.features.synthetic import synthetic_images


def images(count: int = 5) -> Tensor:
    return torch.randn(count, 1, 12, 12, generator=torch.Generator().manual_seed(0))


ENCODERS = {
    "scatter": Scatter((1, 12, 12)),
    "roots": ScatterRoots((1, 12, 12)),
    "mirrored": Mirrored(Scatter((1, 12, 12))),
    "patches": Patches((1, 12, 12)),
    "pixels": Pixels(),
    "frozen": Frozen(nn.Sequential(nn.Flatten(), nn.Linear(144, 7))),
}


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS.keys())
def test_a_row_is_one_long_and_depends_on_its_own_record(encoder: nn.Module) -> None:
    x = images()
    rows = encode(encoder, x)
    torch.testing.assert_close(rows.flatten(1).norm(dim=1), torch.ones(5), rtol=1e-5, atol=0)
    changed = x.clone()
    changed[0] = 100.0
    torch.testing.assert_close(encode(encoder, changed)[1:], rows[1:])


class Mixing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) - x.flatten(1).mean(0)


def test_an_encoder_that_mixes_records_is_refused() -> None:
    with pytest.raises(qg.PrivacyError, match="encoder=Mixing gives a record other features alone"):
        encode(Mixing(), images())


def test_a_mirrored_encoder_gives_an_image_and_its_mirror_image_the_same_row() -> None:
    x = images()
    encoder = Mirrored(Scatter((1, 12, 12)))
    torch.testing.assert_close(encode(encoder, x), encode(encoder, x.flip(-1)))
    assert not torch.allclose(encode(encoder, x), encode(encoder, x.flip(-2)), atol=1e-3)


def test_roots_are_taken_of_moduli_and_not_of_averages() -> None:
    """Nine times the contrast: averages grow by nine, moduli's roots by three."""
    x, encoder = images(), ScatterRoots((1, 12, 12))
    faint, strong = encoder._features(x), encoder._features(9 * x)
    torch.testing.assert_close(strong[:, 0], 9 * faint[:, 0], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(strong[:, 1:], 3 * faint[:, 1:], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(faint[:, 1:] ** 2, encoder.net(x)[:, 1:].clamp_min(0), rtol=1e-3, atol=1e-5)


def test_patches_are_the_same_for_an_image_and_its_mirror_image() -> None:
    x = synthetic_images(4, (3, 16, 16))
    encoder = Patches((3, 16, 16))
    rows = encode(encoder, x)
    assert rows.shape == (4, 1600, 4)
    torch.testing.assert_close(encode(encoder, x.flip(3)), rows, rtol=1e-2, atol=1e-3)
    turned = encode(encoder, x.flip(2))
    assert float((turned - rows).abs().max()) > 0.01


def test_patches_do_not_depend_on_brightness_and_hardly_on_contrast() -> None:
    x = synthetic_images(4, (3, 16, 16))
    encoder = Patches((3, 16, 16))
    likeness = (encode(encoder, x) * encode(encoder, 2 * x + 1)).sum((1, 2))
    assert float(likeness.min()) > 0.98


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((1, 28, 28), Scatter), ((3, 32, 32), Patches), ((1, 15, 15), Patches), ((1, 6, 6), Pixels)],
)
def test_the_encoder_suits_the_images(shape: tuple[int, int, int], expected: type[nn.Module]) -> None:
    assert isinstance(image_encoder(shape), expected)


def test_patches_refuse_what_is_too_small() -> None:
    with pytest.raises(ValueError, match="sides of at least 12"):
        Patches((3, 8, 8))


def test_a_record_that_is_not_finite_becomes_zeros() -> None:
    rows = torch.tensor([[3.0, 4.0], [math.nan, 1.0], [math.inf, 1.0], [0.0, 0.0]])
    expected = torch.tensor([[0.6, 0.8], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(unit(rows), expected)


def test_columns_are_clamped_to_their_bounds() -> None:
    columns = Columns(torch.tensor([0.0, -1.0, 5.0, 0.0]), torch.tensor([10.0, 1.0, 5.0, 1.0]))
    rows = columns(torch.tensor([[20.0, 0.0, 7.0, math.nan], [0.0, -9.0, 5.0, 1.0]]))
    torch.testing.assert_close(rows, torch.tensor([[0.5, 0.0, 0.0, 0.0], [-0.5, -0.5, 0.0, 0.5]]))
    assert float(columns(1e30 * torch.randn(50, 4)).norm(dim=1).max()) <= 1.0


def test_swapped_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="lower <= upper"):
        Columns(torch.ones(2), torch.zeros(2))


@pytest.mark.parametrize("rows", [10, 60])
def test_directions_are_orthonormal_and_have_their_variances(rows: int) -> None:
    x = torch.randn(rows, 20, generator=torch.Generator().manual_seed(1)) * torch.arange(1, 21)
    found = moments_of(x, most=8)
    torch.testing.assert_close(found.directions.T @ found.directions, torch.eye(8), atol=1e-5, rtol=0)
    along = ((x - x.mean(0)) @ found.directions).square().mean(0)
    torch.testing.assert_close(along, found.variances, rtol=1e-4, atol=1e-4)
    assert bool((found.variances.diff() <= 0).all())


def test_fewer_rows_than_directions_give_fewer() -> None:
    assert moments_of(torch.randn(6, 20), most=100).directions.shape == (20, 5)


def test_eigenvalues_below_the_noise_are_lifted_to_it() -> None:
    found = moments_from_second(torch.zeros(4), torch.diag(torch.tensor([1.0, 0.5, 0.0, -0.3])), 0.01)
    torch.testing.assert_close(
        found.variances, torch.tensor([1.0, 0.5, 0.01 * math.sqrt(8), 0.01 * math.sqrt(8)])
    )


def test_what_stands_out_of_the_noise_is_found_as_it_was_before_it() -> None:
    """A steep spectrum in 300 dimensions: leading directions at their true lengths, the diagonal of the rest."""
    rng = torch.Generator().manual_seed(1)
    turn = torch.linalg.qr(torch.randn(300, 5, generator=rng)).Q
    rest = torch.linspace(0.002, 0.0005, 300)
    truth = turn * torch.tensor([0.3, 0.2, 0.1, 0.08, 0.06]) @ turn.T + rest.diag()
    std = 2e-4
    found = moments_standing_out(truth + std * torch.randn(300, 300, generator=rng), std)
    rebuilt = found.directions * found.variances @ found.directions.T
    as_released = std * 300 / math.sqrt(2)  # matrix and transpose, halved
    assert float((rebuilt - truth).norm()) < as_released / 3
    torch.testing.assert_close(
        found.variances[:5], torch.linalg.eigvalsh(truth).flip(0)[:5], rtol=0.02, atol=0
    )
    assert bool((found.variances > 0).all())
    assert bool((found.variances.diff() <= 0).all())


def test_noise_alone_has_the_largest_eigenvalue_that_is_expected_of_it() -> None:
    noise = 0.3 * torch.randn(400, 400, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    largest = float(torch.linalg.eigvalsh((noise + noise.T) / 2)[-1])
    assert largest == pytest.approx(noise_eigenvalue(0.3, 400), rel=0.05)


def test_a_mean_that_is_noise_is_shrunk_to_nothing_and_a_clear_one_is_kept() -> None:
    noise = 0.1 * torch.randn(1000, generator=torch.Generator().manual_seed(2))
    assert float(shrunk(noise, 0.1).norm()) < 0.3 * float(noise.norm())
    clear = torch.ones(1000) + noise
    assert float((shrunk(clear, 0.1) - clear).norm()) < 0.02 * float(clear.norm())
    assert torch.equal(shrunk(clear, 0.0), clear)
    assert torch.equal(shrunk(torch.zeros(3), 0.0), torch.zeros(3))


@pytest.mark.parametrize("length", [0.0, 0.5, 1.0, 4.0])
def test_a_shrunk_mean_is_nearer_to_the_truth(length: float) -> None:
    """James and Stein: on average, wherever the truth lies; noise of length about one."""
    truth = length * torch.nn.functional.normalize(torch.arange(1.0, 31.0), dim=0)
    rng = torch.Generator().manual_seed(3)
    released = truth + 30**-0.5 * torch.randn(500, 30, generator=rng)
    found = torch.stack([shrunk(mean, 30**-0.5) for mean in released])
    assert float((found - truth).square().sum(1).mean()) < float((released - truth).square().sum(1).mean())


def test_the_coordinates_of_the_largest_squares_are_chosen() -> None:
    found = moments_from_diagonal(torch.zeros(4), torch.tensor([0.1, 0.4, -0.1, 0.2]), 0.05, most=3)
    torch.testing.assert_close(found.variances, torch.tensor([0.4, 0.2, 0.1]))
    torch.testing.assert_close(found.directions.T @ torch.arange(4.0), torch.tensor([1.0, 3.0, 0.0]))


def test_kronecker_directions_are_the_products() -> None:
    rng = torch.Generator().manual_seed(2)
    a, b = (torch.randn(side, side, generator=rng) for side in (3, 4))
    a, b = a @ a.T, b @ b.T
    found = moments_from_kronecker(torch.zeros(12), a, b, 0.0, most=12)
    whole = found.directions @ torch.diag(found.variances) @ found.directions.T
    torch.testing.assert_close(whole, torch.kron(a, b), rtol=1e-4, atol=1e-4)


def rescale() -> Rescale:
    return Rescale(moments_of(torch.randn(40, 9, generator=torch.Generator().manual_seed(3)), 6), 0.5)


def test_rescaled_rows_are_one_long_and_zeros_stay_zeros() -> None:
    rows = torch.randn(5, 9)
    rows[2] = 0.0
    lengths = rescale()(rows).norm(dim=1)
    torch.testing.assert_close(lengths, torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0]))


def test_products_are_those_of_the_leading_coordinates() -> None:
    x = torch.randn(5, 9, generator=torch.Generator().manual_seed(4))
    x[2] = 0.0
    expanded = Products(rescale(), 3)
    rows, turned = expanded(x), rescale()(x)
    assert rows.shape == (5, expanded.width)
    assert rows[2].eq(0).all()
    assert rows[[0, 1, 3, 4]].norm(dim=1) == pytest.approx(torch.ones(4).numpy(), abs=1e-5)
    for row, short in zip(rows[[0, 1]], turned[[0, 1]], strict=True):
        outer = short[:3].outer(short[:3])
        slow = torch.cat(
            [
                short,
                torch.stack([outer[i, j] * (1 if i == j else 2**0.5) for i in range(3) for j in range(i, 3)])
                / outer.norm(),
            ]
        )
        assert torch.allclose(row, slow / slow.norm(), atol=1e-6)


def test_whitening_makes_directions_equally_long() -> None:
    x = torch.randn(4000, 5, generator=torch.Generator().manual_seed(4)) * torch.tensor(
        [9.0, 5.0, 3.0, 2.0, 1.0]
    )
    moments = moments_of(x, 5)
    turned = (x - moments.mean) @ Rescale(moments, 1.0).directions
    torch.testing.assert_close(turned.var(0) / turned.var(0).mean(), torch.ones(5), rtol=1e-2, atol=0)
    kept = Rescale(moments, 0.0).directions
    torch.testing.assert_close(kept, moments.directions)


def test_a_pipeline_is_loaded_as_it_was_saved() -> None:
    saved = Pipeline(Pixels(), rescale())
    loaded = Pipeline(Pixels(), Rescale.shaped(9, 6))
    loaded.load_state_dict(saved.state_dict())
    x = torch.randn(3, 9)
    torch.testing.assert_close(loaded(x), saved(x))
    assert saved(x).shape == (3, saved.rescale.width)


@pytest.mark.parametrize("channels", [1, 3])
def test_made_up_images_are_the_same_every_time_and_about_standardised(channels: int) -> None:
    first, again = (synthetic_images(60, (channels, 12, 16), seed=5) for _ in range(2))
    torch.testing.assert_close(first, again)
    assert first.shape == (60, channels, 12, 16)
    assert abs(float(first.mean())) < 1.0
    assert 0.3 < float(first.std()) < 2.0
    assert not torch.equal(first, synthetic_images(60, (channels, 12, 16), seed=6))


def test_moments_keep_their_directions_around_another_centre() -> None:
    moments = moments_of(torch.randn(30, 4), 3)
    moved = moments.centred_at(torch.ones(4))
    assert isinstance(moved, Moments)
    torch.testing.assert_close(moved.mean, torch.ones(4))
    torch.testing.assert_close(moved.directions, moments.directions)


def test_rescaled_rows_have_unit_length_and_the_same_constant() -> None:
    """However far a record lies from the centre, the clip bounds errors alone and the bias is worth the same to all."""
    rng = torch.Generator().manual_seed(0)
    public, lengths = torch.randn(50, 6, generator=rng), torch.logspace(-3, 3, 20)[:, None]
    rows = Rescale(moments_of(public, 4), 0.5)(lengths * torch.randn(20, 6, generator=rng))
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(20))
    torch.testing.assert_close(rows[:, -1], torch.full((20,), 0.2 / 1.04**0.5))


def quadratic(whiten: float) -> Quadratic:
    public = torch.randn(60, 4, generator=torch.Generator().manual_seed(3))
    return Quadratic(quadratic_moments_of(public, 100), whiten)


def test_quadratic_directions_are_those_of_all_products() -> None:
    """Slow reference: u ↦ (1, √2 u, u uᵀ), whose inner products are (1 + ⟨u, v⟩)², and its principal directions."""
    rng = torch.Generator().manual_seed(3)
    public, records = torch.randn(60, 4, generator=rng), torch.randn(20, 4, generator=rng)
    centre = public.mean(0)

    def products(rows: Tensor) -> Tensor:
        u = unit(rows - centre).double()
        return torch.cat([2**0.5 * u, torch.einsum("ni,nj->nij", u, u).flatten(1)], 1)

    slow = moments_of(products(public), 100)
    found = quadratic_moments_of(public, 100)
    used = 4 + 4 * 5 // 2 - 1  # squares add up to one, so one of them says nothing
    assert len(found.variances) == used
    torch.testing.assert_close(found.variances.double(), slow.variances[:used], rtol=1e-4, atol=1e-7)
    turned = (products(records) - slow.mean) @ slow.directions[:, :used]
    rows = Quadratic(found, 0.0)(records)[:, :-1]
    expected = unit(turned) / 1.04**0.5
    torch.testing.assert_close(rows @ rows.T, (expected @ expected.T).float(), rtol=1e-3, atol=1e-4)


def test_quadratic_rows_are_one_long_and_zeros_stay_zeros() -> None:
    rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(4)) * torch.logspace(-3, 3, 5)[:, None]
    rows[2], rows[3, 0] = 0.0, torch.nan
    turned = quadratic(0.5)(rows)
    torch.testing.assert_close(turned.norm(dim=1), torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0]))
    torch.testing.assert_close(turned[[0, 1, 4], -1], torch.full((3,), 0.2 / 1.04**0.5))


def test_a_quadratic_row_tells_of_its_own_record_only() -> None:
    rng = torch.Generator().manual_seed(5)
    rows, others = torch.randn(6, 4, generator=rng), torch.randn(6, 4, generator=rng)
    turn = quadratic(0.5)
    mixed = torch.cat([rows[:1], others[1:]])
    torch.testing.assert_close(turn(rows)[0], turn(mixed)[0])
    torch.testing.assert_close(turn(rows), torch.cat([turn(row[None]) for row in rows]))


def test_quadratic_features_are_loaded_as_they_were_saved() -> None:
    saved = quadratic(0.5)
    loaded = Quadratic.shaped(4, *saved.weights.shape)
    loaded.load_state_dict(saved.state_dict())
    x = torch.randn(3, 4)
    torch.testing.assert_close(loaded(x), saved(x))
