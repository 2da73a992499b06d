"""Numbers as cosines of their ranks: rows stay short, ranks follow what was released."""

from __future__ import annotations

import numpy as np
import torch

from quietgrad._program.statistics import Histograms
from quietgrad.features.curves import COSINES, EDGES, FUNCTIONS, LINEAR, Blocks, ranks_from_bins


def bins_of(values: torch.Tensor) -> torch.Tensor:
    (rows,) = Histograms(EDGES, values.shape[1]).rows(values).dense().values()
    return rows.sum(0)


def table() -> tuple[torch.Tensor, torch.Tensor]:
    """Two numbers, one with a heavy tail and gaps, and a category between them."""
    rng = torch.Generator().manual_seed(0)
    tail = -1 + 2 * torch.rand(500, generator=rng) ** 4
    tail[::9] = torch.nan
    even = 2 * torch.rand(500, generator=rng) - 1
    return torch.stack([tail, (even > 0).float(), even], 1), torch.tensor([True, False, True])


def test_ranks_are_the_shares_of_records_below() -> None:
    values, is_number = table()
    ranks = ranks_from_bins(bins_of(values[:, is_number]), 2)
    found = Blocks(is_number, 3, ranks)._ranked(values[:, is_number], ranks)
    for column in range(2):
        own = values[:, is_number][:, column]
        shares = [(own <= value).double().sum() / own.isfinite().sum() for value in own]
        gap = (found[:, column].double() - torch.stack(shares)).abs()
        assert float(gap.nan_to_num(0.0).max()) < 0.1
    assert found[:, 0].isnan().equal(values[:, 0].isnan())


def test_rows_are_at_most_one_long_whatever_a_record_holds() -> None:
    values, is_number = table()
    ranks = ranks_from_bins(bins_of(values[:, is_number]), 2)
    odd = torch.tensor([[1e30, 1.0, -1e30], [torch.nan, 0.0, torch.inf], [-torch.inf, 1.0, 1.0]])
    for encoder in (Blocks(is_number, 3), Blocks(is_number, 3, ranks)):
        rows = encoder(torch.cat([values, odd]))
        assert rows.shape[1] == encoder.width
        assert bool(rows.isfinite().all())
        assert float(rows.norm(dim=1).max()) <= 1 + 1e-6


def test_each_feature_has_its_places_and_missing_numbers_are_zeros() -> None:
    values, is_number = table()
    encoder = Blocks(is_number, 3, ranks_from_bins(bins_of(values[:, is_number]), 2))
    assert [len(places) for places in encoder.places] == [FUNCTIONS, 1, FUNCTIONS]
    rows = encoder(values)
    gaps = values[:, 0].isnan()
    assert bool((rows[gaps][:, encoder.places[0]] == 0).all())
    torch.testing.assert_close(rows[:, encoder.places[1][0]] * 3**0.5, values[:, 1])


def test_a_block_is_the_cosines_of_the_rank_and_the_number() -> None:
    """Entry by entry, against the formula of the module."""
    values, is_number = table()
    ranks = ranks_from_bins(bins_of(values[:, is_number]), 2)
    encoder = Blocks(is_number, 3, ranks)
    rows, ranked = encoder(values), encoder._ranked(values[:, is_number], ranks)
    length = sum(1 / k**2 for k in range(1, COSINES + 1)) ** 0.5
    for record in range(1, 20):
        for number, column in enumerate((0, 2)):
            x, r = float(values[record, column]), float(ranked[record, number])
            wanted = [(1 - LINEAR) ** 0.5 * np.cos(np.pi * k * r) / k / length for k in range(1, COSINES + 1)]
            wanted = [*wanted, LINEAR**0.5 * x] if x == x else [0.0] * FUNCTIONS
            found = rows[record, encoder.places[column]] * 3**0.5
            np.testing.assert_allclose(found.numpy(), wanted, atol=1e-5)


def test_numbers_far_out_in_a_tail_stay_apart() -> None:
    """Of equal rank, as in one bin that hardly any record is in."""
    ranks = torch.linspace(0, 1, len(EDGES))[None].clone()
    ranks[0, -3:] = 1.0
    rows = Blocks(torch.tensor([True]), 1, ranks)(torch.tensor([[EDGES[-3]], [1.0]]))
    torch.testing.assert_close(rows[0, :-1], rows[1, :-1])
    assert float(rows[1, -1] - rows[0, -1]) > 0.01


def test_a_record_changes_its_own_row_only() -> None:
    values, is_number = table()
    encoder = Blocks(is_number, 3, ranks_from_bins(bins_of(values[:, is_number]), 2))
    other = values.clone()
    other[7] = torch.tensor([1.0, 0.0, torch.nan])
    same = torch.arange(500) != 7
    assert torch.equal(encoder(values)[same], encoder(other)[same])


def test_released_noise_never_makes_ranks_fall() -> None:
    rng = np.random.default_rng(0)
    noise = torch.from_numpy(rng.normal(size=3 * (len(EDGES) - 1))).float()
    ranks = ranks_from_bins(noise, 3)
    assert bool((ranks.diff(dim=1) >= 0).all())
    assert bool((ranks[:, 0] == 0).all())
    nothing = ranks_from_bins(-torch.ones(len(EDGES) - 1), 1)
    torch.testing.assert_close(nothing[0], torch.linspace(0, 1, len(EDGES)))
