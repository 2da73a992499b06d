"""The recipe learns within its budget, and its features come from what is public or paid for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import quietgrad as qg
import quietgrad._linear_probe.recipe as recipe
from quietgrad._gradients.stages import PerSampleGrads, Released
from quietgrad._linear_probe.recipe import (
    SOURCES,
    Source,
    all_at_once,
    fit_rescaling,
    made_up_rows,
    paid_source,
    probe_program,
    train_head,
    with_products,
    zero_head,
)
from quietgrad._linear_probe.rule import Settings, leading_products, settings
from quietgrad._mechanism.clipping import FlatClip
from quietgrad._program import releasing
from quietgrad.features.encoders import Scatter, encode, unit
from quietgrad.features.interactions import Products
from quietgrad.features.pipeline import Rescale

RECORDS, CLASSES, DELTA = 2000, 3, 1e-5


def mixture(records: int = RECORDS, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three classes in 12 dimensions of falling variance."""
    rng = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, 12, generator=torch.Generator().manual_seed(99))
    labels = torch.randint(CLASSES, (records,), generator=rng)
    scale = torch.arange(1, 13) ** -1.0
    return unit((centres[labels] + torch.randn(records, 12, generator=rng)) * scale + 1.0), labels


def rule(epsilon: float) -> Settings:
    return settings(records=RECORDS, classes=CLASSES, epsilon=epsilon, delta=DELTA)


def paid(source: Source, statistics: qg.Statistics, rows: Tensor, found: Settings) -> Rescale:
    rescale = fit_rescaling(source, found, statistics=statistics, rows=rows)
    assert isinstance(rescale, Rescale)
    return rescale


@pytest.mark.parametrize("source", ["public", "private", "mean"])
def test_it_learns_within_its_budget(source: Source) -> None:
    rows, labels = mixture()
    found = rule(2.0)
    batches = all_at_once(TensorDataset(rows, labels), found)
    program = qg.calibrate(probe_program(source, (12,), found), batches, epsilon=2.0, delta=DELTA)
    statistics = qg.Statistics(program, batches)
    public = mixture(50, seed=5)[0]
    rescale = fit_rescaling(source, found, statistics=statistics, rows=rows, others=public)
    head = zero_head(rescale.width, CLASSES)
    turned = all_at_once(TensorDataset(rescale(rows), labels), found)
    private = train_head(head, program, turned, found, statistics.ledger)
    assert private.covered
    assert private.epsilon(DELTA) == pytest.approx(2.0, abs=2e-3)
    assert statistics.ledger.count == len(program.statistics) + found.steps
    test_rows, test_labels = mixture(1000, seed=1)
    right = (head(rescale(test_rows)).argmax(1) == test_labels).float().mean()
    assert float(right) > 0.75


@pytest.mark.parametrize("table", [False, True])
def test_the_head_takes_the_steps_of_the_rule(table: bool) -> None:
    """Against the same steps by hand, with noise that is too small to matter."""
    rows, labels = mixture(300)
    known = settings(records=300, classes=CLASSES, epsilon=1.0, delta=DELTA, table=table)
    found = replace(known, lr=3.0, steps=7)
    program = probe_program("public", (12,), found).with_noise(1e-5)
    head = zero_head(12, CLASSES)
    train_head(head, program, all_at_once(TensorDataset(rows, labels), found), found)
    wanted, one_hot = torch.zeros(CLASSES, 12), torch.nn.functional.one_hot(labels, CLASSES)
    for step in range(7):
        errors = (rows @ wanted.T).softmax(1) - one_hot
        errors = errors * (known.clip / errors.norm(dim=1, keepdim=True)).clamp_max(1.0)
        wanted -= 3.0 * (1 - step / 7 if table else 1.0) * errors.T @ rows / 300
    torch.testing.assert_close(head.weight.detach(), wanted, rtol=0, atol=5e-3)  # sums are rounded to a grid
    assert known.clip == (0.5 if table else 0.25)


def test_public_features_do_not_see_private_records() -> None:
    public = mixture(50, seed=5)[0]
    once, again = (fit_rescaling("public", rule(1.0), others=public).state_dict() for _ in range(2))
    assert all(torch.equal(once[name], again[name]) for name in once)


@pytest.mark.parametrize("source", ["private", "mean"])
def test_centring_by_a_private_mean_that_is_not_paid_for_is_refused(source: Source) -> None:
    rows, labels = mixture()
    found = rule(1.0)
    batches = all_at_once(TensorDataset(rows, labels), found)
    free = qg.Statistics(probe_program("public", (12,), found).with_noise(3.0), batches)
    with pytest.raises(ValueError, match="What is not planned is not paid for"):
        paid(source, free, rows, found)


@pytest.mark.parametrize(("source", "lines"), [("private", 2), ("mean", 1)])
def test_private_features_change_only_through_the_releases(source: Source, lines: int) -> None:
    """Law 3: with the same noise, one record moves centre and moments by what one record may."""
    rows, labels = mixture()
    other = rows.clone()
    other[0] = -rows[0]
    found = rule(1.0)
    means = []
    for records in (rows, other):
        batches = all_at_once(TensorDataset(records, labels), found)
        program = probe_program(source, (12,), found).with_noise(3.0)
        statistics = qg.Statistics(program, batches, noise_source=qg.SeededSource(3))
        means.append(paid(source, statistics, records, found).mean)
        assert statistics.ledger.count == lines
    assert 0 < float((means[0] - means[1]).norm()) <= 2 / RECORDS


def released_moments(rows: Tensor) -> tuple[Tensor, qg.Statistics]:
    """Mean and second moments of a row's coordinates by the recipe, with the same noise each time."""
    found = rule(1.0)
    batches = all_at_once(TensorDataset(rows), found)
    program = probe_program("private", (12,), found).with_noise(3.0)
    statistics = qg.Statistics(program, batches, noise_source=qg.SeededSource(3))
    rescale = paid("private", statistics, rows, found)
    return torch.cat([rescale.mean, rescale.directions.flatten()]), statistics


@pytest.mark.parametrize("source", ["private", "mean"])
def test_neighbours_have_the_same_ledger(source: Source) -> None:
    """Law 3 of the joint plan: a record changes neither how often is released, nor what it is said to cost."""
    rows, labels = mixture()
    ledgers = []
    for records in (rows, torch.cat([-rows[:1], rows[1:]]), torch.cat([0 * rows[:1], rows[1:]])):
        found = rule(1.0)
        batches = all_at_once(TensorDataset(records, labels), found)
        program = probe_program(source, (12,), found).with_noise(30.0)
        statistics = qg.Statistics(program, batches)
        rescale = paid(source, statistics, records, found)
        turned = all_at_once(TensorDataset(rescale(records), labels), found)
        train_head(zero_head(rescale.width, CLASSES), program, turned, found, statistics.ledger)
        ledgers.append((statistics.ledger.phases, statistics.ledger.count))
    assert ledgers[0] == ledgers[1] == ledgers[2]


class Unclipped(FlatClip):
    """Declares a sensitivity and does nothing for it."""

    def _row_weights(self, grads: PerSampleGrads, step: int) -> Tensor:
        return torch.ones(grads.samples, dtype=torch.float64)


@pytest.mark.parametrize("clipped", [True, False])
def test_forgetting_unit_length_is_held_by_the_clip_and_seen_without_it(
    monkeypatch: pytest.MonkeyPatch, clipped: bool
) -> None:
    """The planted bug: rows as long as they come."""
    rows = mixture()[0]
    other = rows.clone()
    other[0] *= 100
    monkeypatch.setattr(recipe, "unit", lambda rows: rows)
    if not clipped:
        monkeypatch.setattr(releasing, "FlatClip", Unclipped)
    released: list[Tensor] = []
    release = qg.Statistics.release

    def noted(self: qg.Statistics, name: str, values: Tensor) -> Released:
        found = release(self, name, values)
        released.extend(found.blocks.values())
        return found

    monkeypatch.setattr(qg.Statistics, "release", noted)
    for records in (rows, other):
        released_moments(records)
    mean, moments, other_mean, other_moments = released
    # One record replaced moves each sum by at most two bounds; the other rows are centred by what was released.
    by_centre = 4 * float((mean - other_mean).norm())
    within = [
        float((mean - other_mean).norm()) <= 2 / RECORDS,
        float((moments - other_moments).norm()) <= 2 / RECORDS + by_centre,
    ]
    assert within == ([True, True] if clipped else [False, False])


def test_centring_by_the_mean_itself_leaves_a_line_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: the plan has the mean, the recipe takes it without a release. Law 3 and the ledger see it."""
    rows = mixture()[0]
    other = rows.clone()
    other[0] = 1e4
    sound = [released_moments(records) for records in (rows, other)]
    monkeypatch.setattr(recipe, "_mean", lambda _, rows: rows.flatten(1).mean(0))
    broken = [released_moments(records) for records in (rows, other)]
    assert [statistics.ledger.count for _, statistics in sound] == [2, 2]
    assert [statistics.ledger.count for _, statistics in broken] == [1, 1]
    assert float((sound[0][0][:12] - sound[1][0][:12]).norm()) <= 2 / RECORDS
    assert float((broken[0][0][:12] - broken[1][0][:12]).norm()) > 2 / RECORDS


def test_made_up_images_need_a_private_mean_only() -> None:
    images = torch.randn(20, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    encoder = Scatter((1, 12, 12))
    rows = encode(encoder, images)
    found = rule(1.0)
    batches = all_at_once(TensorDataset(rows, torch.zeros(20)), found)
    program = probe_program("synthetic", rows.shape[1:], found).with_noise(3.0)
    assert list(program.statistics) == ["mean"]
    statistics = qg.Statistics(program, batches)
    others = made_up_rows(encoder, (1, 12, 12))
    rescale = fit_rescaling("synthetic", found, statistics=statistics, rows=rows, others=others)
    assert statistics.ledger.count == 1
    assert rescale(rows).shape == (20, rescale.width)


def test_mixed_features_are_a_function_of_the_two_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 3: rows of length one go in, two lines are paid, and other records with the same releases change nothing."""
    images = torch.randn(40, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    encoder, found = Scatter((1, 12, 12)), rule(1.0)
    rows, other = encode(encoder, images).split(20)
    batches = all_at_once(TensorDataset(rows, torch.zeros(20)), found)
    statistics = qg.Statistics(probe_program("mixed", rows.shape[1:], found).with_noise(0.1), batches)
    release, released = qg.Statistics.release, []

    def noted(self: qg.Statistics, name: str, values: Tensor) -> Released:
        assert float(values.flatten(1).norm(dim=1).max()) <= 1 + 1e-5
        released.append(release(self, name, values))
        return released[-1]

    monkeypatch.setattr(qg.Statistics, "release", noted)
    made_up = made_up_rows(encoder, (1, 12, 12))
    rescale = fit_rescaling("mixed", found, statistics=statistics, rows=rows, others=made_up)
    assert rescale(rows).shape == (20, rescale.width)
    assert statistics.ledger.count == len(released) == 2
    again = iter(released)
    monkeypatch.setattr(qg.Statistics, "release", lambda *_: next(again))
    others = fit_rescaling("mixed", found, statistics=statistics, rows=other, others=made_up)
    assert all(
        torch.equal(mine, theirs) for mine, theirs in zip(rescale.buffers(), others.buffers(), strict=True)
    )


def test_products_around_made_up_images_change_only_through_the_released_mean() -> None:
    """Law 3: landmarks and weights know nothing of the records; the centre moves by what one record may."""
    rng = torch.Generator().manual_seed(1)
    images, encoder, found = torch.randn(20, 1, 12, 12, generator=rng), Scatter((1, 12, 12)), rule(1.0)
    rows = encode(encoder, images)
    other = torch.cat([-rows[:1], rows[1:]])
    states = []
    for records in (rows, other):
        batches = all_at_once(TensorDataset(records, torch.zeros(20)), found)
        program = probe_program("synthetic", rows.shape[1:], found).with_noise(
            0.01
        )  # a mean of noise would shrink to zero
        statistics = qg.Statistics(program, batches, noise_source=qg.SeededSource(3))
        others = made_up_rows(encoder, (1, 12, 12))
        rescale = fit_rescaling(
            "synthetic", found, statistics=statistics, rows=records, others=others, products=True
        )
        assert statistics.ledger.count == 1
        states.append(rescale.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in ("landmarks", "weights", "offset"))
    assert 0 < float((states[0]["mean"] - states[1]["mean"]).norm()) <= 2 / 20


def test_a_table_of_few_records_releases_its_mean_alone() -> None:
    few = settings(records=400, classes=2, epsilon=0.5, delta=DELTA)
    assert paid_source(30, few) == "mean"
    assert list(probe_program("mean", (30,), few).statistics) == ["mean"]
    assert paid_source(12, rule(2.0)) == "private"
    assert paid_source(2000, rule(2.0)) == "mean"  # wider than all second moments are released of
    assert (
        paid_source(100_000, rule(2.0)) == "private"
    )  # the largest columns only: all would be a matrix too large


def test_where_no_direction_leads_products_are_of_all_columns_or_of_none() -> None:
    found = settings(records=324, classes=2, epsilon=1.0, delta=DELTA)
    most = leading_products(10, found)
    few, many = Rescale.shaped(most, most), Rescale.shaped(most + 1, most + 1)
    assert isinstance(with_products(few, found, "mean"), Products)
    assert isinstance(with_products(many, found, "private"), Products)
    assert with_products(many, found, "mean") is many


@pytest.mark.parametrize("source", SOURCES)
def test_training_has_most_of_the_budget(source: Source) -> None:
    assert probe_program(source, (4, 5), rule(1.0)).training_share > 0.9


def test_one_public_record_is_not_enough() -> None:
    with pytest.raises(ValueError, match="at least 2 public records"):
        fit_rescaling("public", rule(1.0), others=torch.ones(1, 4))
