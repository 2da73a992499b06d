"""The parts of the private linear probe: statistics, rescaling, head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from quietgrad._linear_probe.rule import (
    MOMENTS_SHARE,
    Settings,
    leading_products,
    mean_share,
    moments_stand_out,
    squares_stand_out,
    whitening,
)
from quietgrad._privatizer.privatizer import Privatizer
from quietgrad._program.program import Program, StatisticRelease
from quietgrad._program.releasing import Statistics
from quietgrad._program.statistics import (
    DiagonalMoments,
    KroneckerMoments,
    Mean,
    SecondMoments,
    Statistic,
)
from quietgrad._sampling.batches import PoissonBatches
from quietgrad.accounting.ledger import Ledger
from quietgrad.features.encoders import encode, unit
from quietgrad.features.interactions import Products
from quietgrad.features.moments import (
    Moments,
    moments_from_diagonal,
    moments_from_kronecker,
    moments_from_second,
    moments_of,
    moments_standing_out,
    shrunk,
)
from quietgrad.features.pipeline import Rescale
from quietgrad.features.quadratic import Quadratic, QuadraticMoments, quadratic_moments_of
from quietgrad.features.synthetic import synthetic_images
from quietgrad.methods.dp_sgd import dp_sgd

Source = Literal["public", "synthetic", "mixed", "private", "mean"]
SOURCES: tuple[Source, ...] = get_args(Source)
"""Where centre and directions come from: public rows; made-up images around a private mean; these, and private moments
along their directions; private moments; only a private mean, for pretrained features, whose directions are good as they
are, and for small tables."""

WIDEST = 512
"""Columns up to which all second moments are released."""

WIDEST_WHOLE = 4096
"""Columns up to which a mean alone is an offer: it keeps all directions, as a matrix."""

SYNTHETIC = 2000
MICRO_BATCH = 2048


def probe_program(source: Source, row_shape: Sequence[int], settings: Settings) -> Program:
    """Plan the statistics that a source releases, and DP-SGD of the head."""
    mean = {"mean": StatisticRelease(statistic=Mean(), share=mean_share(math.prod(row_shape), settings))}
    own, along = (
        mean | {"moments": StatisticRelease(statistic=second, share=MOMENTS_SHARE)}
        for second in (_second(row_shape), SecondMoments())
    )
    statistics = {"public": {}, "synthetic": mean, "mixed": along, "private": own, "mean": mean}[source]
    return Program(training=dp_sgd(clip=settings.clip), statistics=statistics)


def paid_source(width: int, settings: Settings) -> Source:
    """Choose what a table releases: second moments too, or its mean alone."""
    if width <= WIDEST:
        return "private" if moments_stand_out(width, settings) else "mean"
    return "private" if width > WIDEST_WHOLE or squares_stand_out(width, settings) else "mean"


def keeps_all_directions(source: Source, row_shape: Sequence[int]) -> bool:
    """Whether k is the number of coordinates, whatever the rule says."""
    return source == "mean" or (source == "private" and isinstance(_second(row_shape), SecondMoments))


def fit_rescaling(
    source: Source,
    settings: Settings,
    *,
    statistics: Statistics | None = None,
    rows: Float[Tensor, "n ..."] | None = None,
    others: Float[Tensor, "m ..."] | None = None,
    products: bool = False,
) -> Rescale | Quadratic:
    """Fit the centre and the directions of the features from one of the sources.

        public      mean and directions of `others`, public rows: nothing is released
        synthetic   directions of `others`, made-up rows, around the released mean of `rows`
        mixed       the same, turned by the released second moments of `rows` along these directions
        private     released mean, then released second moments of the centred rows at unit length
        mean        released mean, every direction as it is

    Formal guarantee: a function of `others` and of what `statistics` releases, in the ledger before it is used.
    Checked by: tests/linear_probe/test_recipe.py

    Args:
        statistics: of `probe_program`; "public" needs none.
        rows: encoded private records.
        others: encoded public or made-up records (`made_up_rows`).
        products: directions of all products of features too, for "public" and "synthetic".

    Raises:
        ValueError: fewer than two public rows.
    """
    if source == "public":
        assert others is not None
        _check_enough(others)
        return _rescaling(_moments_of(others, settings, products), settings)
    assert statistics is not None
    assert rows is not None
    if source == "mean":
        mean = _mean(statistics, rows)
        return Rescale(Moments(mean, torch.eye(len(mean)), torch.ones(len(mean))), 0.0)
    if source == "private":
        return _rescaling(_released_moments(statistics, rows, settings), settings)
    assert others is not None
    moments = _moments_of(others, settings, products).centred_at(_mean(statistics, rows))
    base = _rescaling(moments, settings)
    return base if source == "synthetic" else _turned(base, statistics, rows, settings)


def made_up_rows(encoder: nn.Module, input_shape: Sequence[int]) -> Float[Tensor, "m d"]:
    """Encode synthetic images, which stand in for public ones."""
    return encode(encoder, synthetic_images(SYNTHETIC, input_shape)).flatten(1)


def with_products(rescale: Rescale, settings: Settings, source: Source) -> Rescale | Products:
    """Add products of a table's leading directions where the budget can use more.

    With a mean alone no direction leads: products of all of them, or none.
    """
    columns = rescale.width - 1
    leading = leading_products(columns, settings)
    return Products(rescale, leading) if leading and (source != "mean" or leading == columns) else rescale


def train_head(
    head: nn.Linear,
    program: Program,
    batches: PoissonBatches,
    settings: Settings,
    ledger: Ledger | None = None,
) -> Privatizer:
    """Train the head on all records in each step; the Privatizer has the cost.

    Batches hold rows and labels, and perhaps a weight in [0, 1] for each record.
    """
    with Privatizer(head, program.training, batches, ledger=ledger) as private:
        for step, batch in enumerate(batches):
            for x, y, *weights in batch.split(MICRO_BATCH):
                private.backward(_losses(head(x), y, *weights, clip=settings.clip))
            private.release()
            assert head.weight.grad is not None
            # Plain SGD in one line: the first optimizer of a process imports torch's compiler, which takes seconds.
            with torch.no_grad():
                head.weight -= settings.rate(step) * head.weight.grad
    return private


def _losses(
    logits: Float[Tensor, "n k"], y: Tensor, weights: Float[Tensor, " n"] | None = None, *, clip: float
) -> Float[Tensor, " n"]:
    """Cross entropy; with weights, a loss whose gradient is w·clip(error).

    A weight that multiplied the loss would be lost where the clip makes all errors equally long. Rows are at most one
    long, so these gradients are below the mechanism's clip already, which bounds them whatever the weights are.
    """
    if weights is None:
        losses: Tensor = nn.functional.cross_entropy(logits, y, reduction="none")
        return losses
    with torch.no_grad():
        known = (y >= 0) & (y < logits.shape[1])
        errors = logits.softmax(1) - nn.functional.one_hot(y.clamp(0, logits.shape[1] - 1), logits.shape[1])
        lengths = errors.norm(dim=1, keepdim=True).clamp_min(torch.finfo(errors.dtype).tiny)
        errors = errors * (clip / lengths).clamp_max(1.0) * (weights * known)[:, None]
    weighted: Tensor = (logits * errors).sum(1)
    return weighted


def zero_head(width: int, classes: int) -> nn.Linear:
    """Logits zero for every record: the first errors are known and equally long."""
    head = nn.Linear(width, classes, bias=False)
    nn.init.zeros_(head.weight)
    return head


def all_at_once(data: TensorDataset, settings: Settings, **users: Any) -> PoissonBatches:
    """Every record, or user, in every step."""
    return PoissonBatches(data, rate=1.0, steps=settings.steps, **users)


def _second(row_shape: Sequence[int]) -> Statistic:
    """Choose the second moments that stay above their noise at this width."""
    if len(row_shape) == 2:
        return KroneckerMoments()
    return SecondMoments() if row_shape[0] <= WIDEST else DiagonalMoments()


def _mean(statistics: Statistics, rows: Tensor) -> Float[Tensor, " d"]:
    released = statistics.release("mean", rows.flatten(1))
    return shrunk(released.blocks["mean"], released.std)


def _check_enough(rows: Tensor) -> None:
    if len(rows) < 2:
        raise ValueError(
            f"Expected at least 2 public records, got {len(rows)}. Pass more, or take moments='synthetic' or 'private'."
        )


def _moments_of(others: Tensor, settings: Settings, products: bool) -> Moments | QuadraticMoments:
    """Return principal directions of rows that are not private."""
    return (quadratic_moments_of if products else moments_of)(others.flatten(1), settings.directions)


def _released_moments(statistics: Statistics, rows: Tensor, settings: Settings) -> Moments:
    """Release mean and second moments of private rows, and decompose them."""
    mean = _mean(statistics, rows)
    released = statistics.release("moments", unit(rows - mean.view(rows.shape[1:])))
    blocks, std, most = released.blocks, released.std, settings.directions
    if "diagonal" in blocks:
        return moments_from_diagonal(mean, blocks["diagonal"], std, most)
    if "second" in blocks:
        return moments_from_second(mean, blocks["second"], std)
    return moments_from_kronecker(mean, blocks["channels"], blocks["positions"], std, most)


def _turned(
    base: Rescale | Quadratic, statistics: Statistics, rows: Tensor, settings: Settings
) -> Rescale | Quadratic:
    """Turn directions by the released second moments of private rows along them."""
    assert isinstance(base, Rescale), "products have no second moments of their own"
    along = [unit((few.flatten(1) - base.mean) @ base.directions) for few in rows.split(MICRO_BATCH)]
    released = statistics.release("moments", torch.cat(along))
    own = moments_standing_out(released.blocks["second"], released.std)
    return _rescaling(Moments(base.mean, base.directions @ own.directions, own.variances), settings)


def _rescaling(moments: Moments | QuadraticMoments, settings: Settings) -> Rescale | Quadratic:
    whiten = whitening(moments.variances, settings.dimension)
    return Rescale(moments, whiten) if isinstance(moments, Moments) else Quadratic(moments, whiten)
