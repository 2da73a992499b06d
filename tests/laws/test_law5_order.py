"""Law 5: public code cannot see private gradients; the wrong order does not type-check."""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path
from typing import Any

import pytest
from mypy import api

from quietgrad._capture.recorder import Recorder
from quietgrad._gradients.stages import ClippedSum, PerSampleGrads
from quietgrad._sampling.batch import Batch
from quietgrad._sampling.batches import PoissonBatches
from quietgrad._sampling.poisson import PoissonSampler
from tests.cases.methods import BY_FAMILY, MethodCase
from tests.cases.world import losses_of, privatizer

PRIVATE = (ClippedSum, PerSampleGrads, Batch, PoissonBatches, PoissonSampler)


def reachable(root: Any) -> list[Any]:
    """Everything reachable through fields, closures, bound methods and containers. The recorder is the gate that
    `public_forward()` closes, so the walk stops there."""
    seen: dict[int, Any] = {}
    stack = [root]
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, Recorder | types.ModuleType | type):
            continue
        seen[id(item)] = item
        if isinstance(item, types.FunctionType):
            stack += [cell.cell_contents for cell in item.__closure__ or ()]
        elif isinstance(item, types.MethodType):
            stack += [item.__self__, item.__func__]
        elif isinstance(item, dict):
            stack += item.values()
        elif isinstance(item, list | tuple | set):
            stack += item
        elif dataclasses.is_dataclass(item):
            stack += [getattr(item, field.name) for field in dataclasses.fields(item)]
        else:
            stack += vars(item).values() if hasattr(item, "__dict__") else []
    return list(seen.values())


@pytest.mark.parametrize("case", BY_FAMILY)
def test_a_refresh_cannot_reach_the_batch(case: MethodCase) -> None:
    with privatizer(case.build(0.5).with_noise(1.0), [[0, 1, 2]]) as (private, batches, model):
        x, y = next(next(iter(batches)).split(3))
        private.backward(losses_of(model, x, y))
        found = [item for item in reachable(private.begin_step().public) if isinstance(item, PRIVATE)]
        assert not found
        assert any(isinstance(item, PRIVATE) for item in reachable(private)), "the walk finds what is there"


WRONG = """
from quietgrad._mechanism.clipping import FlatClip
from quietgrad._noise.base import NoiseDraw, NoiseState
from quietgrad._noise.gaussian import Gaussian
from quietgrad._noise.sources import SeededSource
from quietgrad._collective import SingleProcess
from quietgrad._representations.base import Codec
from quietgrad._gradients.stages import ClippedSum, PerSampleGrads, Released

def noise_before_clip(grads: PerSampleGrads) -> Released:
    draw = NoiseDraw(std=1.0, divisor=1.0, source=SeededSource(0), reducer=SingleProcess(), step=0)
    return Gaussian().release(grads, draw, NoiseState())[0]

def decode_without_noise(codec: Codec, total: ClippedSum) -> object:
    return codec.decode(total)

def clip_twice(total: ClippedSum) -> ClippedSum:
    return FlatClip(1.0)(total, 0)

def scale_between(total: ClippedSum) -> ClippedSum:
    return total * 2.0
"""


@pytest.mark.slow
def test_the_wrong_order_does_not_type_check(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(WRONG)
    report, _, status = api.run([str(file), "--strict", "--cache-dir", str(tmp_path / "cache")])
    assert status == 1
    wrong_lines = [line for line in report.splitlines() if "wrong.py" in line and "error" in line]
    assert len({line.split(":")[1] for line in wrong_lines}) == 4, report
