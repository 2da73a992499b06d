"""Law 2 in every precision: whatever their length, number and scale, one sample moves the computed sum by at most C.

Neighbours are zero-out: the same batch with one row's gradient zero. Every pair is two clipped sums as the engine
computes them; their distance is taken in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from quietgrad._capture.recorder import Recorder
from quietgrad._gradients.blocks import DenseGrad
from quietgrad._gradients.stages import BlockwiseGrads, PerSampleGrads
from quietgrad._mechanism.clipping import FlatClip
from tests.cases.gradients import KINDS, KindCase, Tensors

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
ROWS = 9
SEEDS = 10
PAIRS = len(KINDS) * len(DTYPES) * SEEDS * ROWS
"""Of the first test alone."""


class Tally:
    """The worst ratio of all pairs that this process has seen."""

    pairs, worst, where = 0, 0.0, ""

    @classmethod
    def add(cls, moved: float, bound: float, where: str) -> None:
        cls.pairs += 1
        if not moved / bound <= cls.worst:
            cls.worst, cls.where = moved / bound, where
        assert moved <= bound, f"{where}: a sample moves the sum by {moved / bound:.7f} of the bound"


@pytest.fixture(scope="module", autouse=True)
def _figure(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    line = f"law 2 in floating point: worst ratio {Tally.worst:.6f} ({Tally.where}) over {Tally.pairs} pairs"
    if reporter is not None:
        reporter.write_line(f"\n{line}")


def total(grads: PerSampleGrads, bound: float) -> Tensor:
    return torch.cat([block.double().flatten() for block in FlatClip(bound)(grads, 0).blocks.values()])


def without(tensors: Tensors, row: int) -> Tensors:
    """The same batch, one row's gradient zero."""
    changed = {name: x.clone() for name, x in tensors.items()}
    for name, x in changed.items():
        if name != "ids":
            x[row] = 0
    return changed


def distances(
    case: KindCase, tensors: Tensors, bound: float, rows: Iterator[int] | range, where: str
) -> None:
    whole = total(case.grads(tensors), bound)
    for row in rows:
        moved = float((whole - total(case.grads(without(tensors, row)), bound)).norm())
        Tally.add(moved, bound, f"{where}, row {row}")


def scales(dtype: torch.dtype, seed: int) -> Tensor:
    """From the smallest to the largest numbers of a precision, and what lies around the bound."""
    g = torch.Generator().manual_seed(seed)
    info = torch.finfo(dtype)
    low, high = math.log10(max(info.smallest_normal, 1e-38)) - 3, math.log10(min(info.max, 3.4e38)) - 1.2
    drawn = low + (high - low) * torch.rand(ROWS, generator=g, dtype=torch.float64)
    drawn[:3] = torch.tensor([high, 0.0, low], dtype=torch.float64)
    return 10.0**drawn


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("case", KINDS, ids=str)
def test_every_kind_in_every_precision_at_every_scale(case: KindCase, dtype: torch.dtype) -> None:
    for seed in range(SEEDS):
        tensors = case.draw(ROWS, torch.Generator().manual_seed(seed))
        scale = scales(dtype, seed).view(-1, *[1] * (tensors[case.scaled].dim() - 1))
        tensors[case.scaled] = tensors[case.scaled].double() * scale
        tensors = {name: x if name == "ids" else x.to(dtype) for name, x in tensors.items()}
        bound = [1.0, 1e-3, 1e-9, 1e4, 0.3][seed % 5]
        distances(case, tensors, bound, range(ROWS), f"{case} {dtype} seed {seed}")


def test_the_pairs_are_many() -> None:
    assert PAIRS >= 5000


@pytest.mark.parametrize("bound", [1e-9, 1e-3, 1.0])
@pytest.mark.parametrize("kind", ["dense", "outer"])
def test_gradients_near_the_largest_number_under_small_clips(kind: str, bound: float) -> None:
    """Their weights lie below float32's normal numbers, where it rounds to a few bits or to none."""
    case = next(case for case in KINDS if case.name == kind)
    for exponent in range(20, 39, 2):
        tensors = case.draw(4, torch.Generator().manual_seed(exponent))
        tensors["b"] = (tensors["b"].sign() * 3.0 * 10.0 ** min(exponent, 38)).float()
        distances(case, tensors, bound, range(4), f"{kind} of 3e{exponent} clipped to {bound}")


@pytest.fixture(params=[False, True], ids=["denormals", "flushed"])
def _processor(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whether the processor takes denormal numbers for zero, as some users let it."""
    torch.set_flush_denormal(request.param)
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("_processor")
@pytest.mark.parametrize(
    ("small", "large"),
    [(1e-25, 1e30), (1e-40, 1e38), (1e-22, 1e15), (1e-19, 1e19), (3e-19, 1e18), (1e-18, 1e17), (3e-18, 1e16)],
)
@pytest.mark.parametrize(
    "algorithm", ["outer", "tokens_ghost", "tokens_formed", "tokens_chunked", "restricted"]
)
def test_a_tiny_factor_beside_a_huge_one(algorithm: str, small: float, large: float) -> None:
    case = next(case for case in KINDS if case.name == algorithm)
    for swapped in (False, True):
        for bound in (1e-6, 1.0):
            tensors = case.draw(4, torch.Generator().manual_seed(1))
            first, second = ("b", "a") if swapped else ("a", "b")
            tensors[first], tensors[second] = tensors[first] * small, tensors[second] * large
            distances(case, tensors, bound, range(4), f"{algorithm} of {small} and {large}, bound {bound}")


def long_rows(length: int, pattern: str, dtype: torch.dtype) -> Tensor:
    """One row whose squares a float32 sum loses: equal ones, or small ones after a large one."""
    row = torch.full((1, length), 3e-3, dtype=dtype)
    if pattern == "swallowed":
        row.fill_(2.0**-12.5)
        row[0, ::4096] = 1.0
    elif pattern == "random":
        row = torch.randn(1, length, generator=torch.Generator().manual_seed(0), dtype=torch.float32).to(
            dtype
        )
    return row


@pytest.mark.parametrize("pattern", ["equal", "swallowed", "random"])
@pytest.mark.parametrize(
    ("length", "dtype"),
    [(10**6, torch.float32), (10**6, torch.bfloat16), (10**6, torch.float64), (10**7, torch.float32)],
    ids=["1e6", "1e6-bfloat16", "1e6-float64", "1e7"],
)
def test_long_rows(length: int, dtype: torch.dtype, pattern: str) -> None:
    rows = long_rows(length, pattern, dtype)
    moved = float(total(BlockwiseGrads({"w": DenseGrad(rows)}, 1), 1.0).norm())
    Tally.add(moved, 1.0, f"{length} {pattern} coordinates in {dtype}")


@pytest.mark.slow
def test_a_row_of_forty_million_coordinates() -> None:
    rows = long_rows(4 * 10**7, "equal", torch.float32)
    moved = float(FlatClip(1.0)(BlockwiseGrads({"w": DenseGrad(rows)}, 1), 0).blocks["w"].norm())
    Tally.add(moved, 1.0, "4e7 equal coordinates")


def aligned(case: KindCase, n: int, spread: float) -> Tensors:
    """Rows that all point the same way, so that partial sums are as large as they can be."""
    g = torch.Generator().manual_seed(n)
    one, each = case.draw(1, g), case.draw(n, g)
    return {
        name: one[name].expand_as(x) if name == "ids" else 100.0 * (one[name] + spread * x)
        for name, x in each.items()
    }


@pytest.mark.parametrize("spread", [0.0, 1e-3])
@pytest.mark.parametrize("n", [512, 4096, 32_768])
@pytest.mark.parametrize("kind", ["dense", "dense_number", "outer", "tokens_ghost", "conv_ghost", "indexed"])
def test_large_batches_of_aligned_rows(kind: str, n: int, spread: float) -> None:
    case = next(case for case in KINDS if case.name == kind)
    distances(case, aligned(case, n, spread), 0.7, range(0, n, n // 8), f"{n} aligned rows, {kind}")


@pytest.mark.parametrize("n", [512, 32_768])
def test_large_batches_along_one_coordinate_of_a_matrix(n: int) -> None:
    """The roundings of a sum do not spread over directions: all of them add to what one row moves."""
    case = next(case for case in KINDS if case.name == "outer")
    g = torch.Generator().manual_seed(n)
    tensors = {"a": torch.zeros(n, 1, 12), "b": torch.zeros(n, 1, 10)}
    tensors["a"][:, 0, 3], tensors["b"][:, 0, 5] = 1 + torch.rand(n, generator=g), 7.0
    distances(case, tensors, 1.0, range(0, n, n // 16), f"{n} rows along one coordinate")


class SmallNet(nn.Module):
    """A convolution, a norm, a table and linear layers with and without tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.conv = nn.Embedding(11, 8), nn.Conv1d(8, 6, 3, padding=1)
        self.norm, self.mix, self.out = nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.conv(self.words(ids).transpose(1, 2)).transpose(1, 2)
        result: Tensor = self.out(torch.tanh(self.mix(self.norm(hidden))).mean(1))
        return result


@pytest.mark.parametrize("dtype", ["bfloat16", "autocast", "float32"])
def test_models_in_half_precision_and_under_autocast(dtype: str) -> None:
    """A row that the losses do not depend on (factor 0) is the same batch with its gradient zero."""
    torch.manual_seed(0)
    model = SmallNet().to(torch.bfloat16 if dtype == "bfloat16" else torch.float32)
    ids = torch.randint(0, 11, (16, 5))
    factors = 10.0 ** torch.linspace(-6, 6, 16)
    recorder = Recorder(model, deterministic=True)
    recorder.attach()

    def losses(kept: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "autocast"):
            out = model(ids)
        return (out.float().square().sum(1) + out.float()[:, 0]) * factors * kept

    for bound in (1e-2, 1.0):
        whole = total(recorder.collect(losses(torch.ones(16))), bound)
        for row in range(16):
            kept = torch.ones(16)
            kept[row] = 0.0
            moved = float((whole - total(recorder.collect(losses(kept)), bound)).norm())
            Tally.add(moved, bound, f"{dtype} model, bound {bound}, row {row}")
    recorder.detach()
