"""Preconditioning broken on purpose, one bug each: what sees each of them, and that the real one passes the same check.

Three mistakes are easy to make. The scaling may come from the private batch, which nobody paid for. The noise may be
shaped by the scaling while the ledger counts it as round. The scaling may change between the micro-batches of one step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import quietgrad as qg
from quietgrad._representations.preconditioned.scaling import PreconditionedCodec
from tests.cases.world import privatizer, public_losses, run
from tests.laws.test_law2_sensitivity import adversarial_rows, blockwise, distance

CLIP = 0.5
DRAW = [[0, 3, 5, 9, 11, 20]]


class FromTheBatch(qg.Codec):
    """Bug 1: the scaling of a micro-batch is the inverse root of its own second moment."""

    def __init__(self, space: Any) -> None:
        self.space = space

    def encode(self, grads: qg.PerSampleGrads) -> qg.PerSampleGrads:
        rows = {name: block.dense() for name, block in grads.blocks.items()}
        scaled = {name: r / r.square().mean(0).add(1e-3).sqrt() for name, r in rows.items()}
        return qg.BlockwiseGrads({name: qg.DenseGrad(r) for name, r in scaled.items()}, grads.samples)

    def decode(self, released: qg.Released) -> dict[str, torch.Tensor]:
        return released.blocks


@dataclass(frozen=True)
class BatchScaling(qg.Representation):
    def refresh(self, public: qg.Public, state: dict[str, Any]) -> tuple[qg.Codec, dict[str, Any]]:
        return FromTheBatch(public.space), state


@dataclass(frozen=True, kw_only=True)
class ShapedNoise(qg.Gaussian):
    """Bug 2: less noise where decoding enlarges it, and the event of round noise."""

    honest: bool

    def release(
        self, total: qg.ClippedSum, draw: qg.NoiseDraw, state: qg.NoiseState
    ) -> tuple[qg.Released, qg.NoiseState]:
        released, state = super().release(total, replace(draw, std=draw.std / 3), state)
        return released if self.honest else replace(released, std=3 * released.std), state


class EveryCall(PreconditionedCodec):
    """Bug 3: the scaling is measured again whenever it is asked for."""

    calls = 0

    def encode(self, grads: qg.PerSampleGrads) -> qg.PerSampleGrads:
        self.calls += 1
        self._lengthened = {name: scale.times(self.calls) for name, scale in self.scales.items()}
        return super().encode(grads)


@dataclass(frozen=True, eq=False, kw_only=True)
class RefreshedInside(qg.Preconditioned):
    def refresh(self, public: qg.Public, state: dict[str, Any]) -> tuple[qg.Codec, dict[str, Any]]:
        codec, state = super().refresh(public, state)
        assert isinstance(codec, PreconditionedCodec)
        return EveryCall(codec.space, codec.scales, state, []), state


def real() -> qg.Mechanism:
    return qg.methods.preconditioned(public_losses, clip=CLIP)


def within(representation: qg.Representation) -> qg.Mechanism:
    return qg.methods.dp_sgd(clip=CLIP) @ representation


def furthest_move(mechanism: qg.Mechanism) -> float:
    """Law 2's: how far one row moves the sum, in units of the sensitivity."""
    with privatizer(mechanism.with_noise(1.0), DRAW) as (private, _, _):
        step = private.begin_step()
        rows = adversarial_rows(step.public.space, seed=0)
        whole = step.encoded_sum(0, blockwise(rows))
        moves = []
        for left_out in range(16):
            others = {name: torch.cat([r[:left_out], r[left_out + 1 :]]) for name, r in rows.items()}
            moves.append(distance(whole, step.encoded_sum(0, blockwise(others))) / whole.sensitivity)
    return max(moves)


def test_a_scaling_from_the_private_batch_breaks_the_sensitivity() -> None:
    assert furthest_move(real()) <= 1.0
    assert furthest_move(within(BatchScaling())) > 1.0


def noise_in_units_of_the_event(mechanism: qg.Mechanism) -> float:
    """Law 4's: the length of what an empty batch releases, beside what the event says."""
    lengths: list[float] = []

    class Lengths(qg.Observer):
        def step(self, step: int, released: list[qg.Released], update: Any) -> None:
            stated = 2.0 * CLIP / 10.0  # σ·C over the expected batch
            size = sum(block.numel() for block in released[0].blocks.values())
            found = sum(float(block.square().sum()) for block in released[0].blocks.values())
            lengths.append(math.sqrt(found / size) / stated)

    with privatizer(mechanism.with_noise(2.0), [[]], research=True) as (private, batches, model):
        private.watch(Lengths())
        run(private, batches, model)
    return lengths[0]


def test_noise_that_is_shaped_without_an_event_for_it() -> None:
    assert noise_in_units_of_the_event(real()) == pytest.approx(1.0, rel=0.15)
    silent = replace(real(), noise=ShapedNoise(honest=False))
    assert noise_in_units_of_the_event(silent) < 0.5
    with pytest.raises(RuntimeError, match="accounted"):  # law 0 stops the one that states what it did
        noise_in_units_of_the_event(replace(real(), noise=ShapedNoise(honest=True)))


def gradients(mechanism: Callable[[], qg.Mechanism], micro: int) -> dict[str, torch.Tensor]:
    with privatizer(mechanism().with_noise(0.0), DRAW) as (private, batches, model):
        return run(private, batches, model, micro=micro)[0]


def test_a_refresh_inside_a_step_depends_on_micro_batches() -> None:
    whole, split = gradients(real, 6), gradients(real, 2)
    for name, gradient in whole.items():
        torch.testing.assert_close(split[name], gradient, rtol=1e-4, atol=1e-6)

    def broken() -> qg.Mechanism:
        return within(RefreshedInside(probes=public_losses))

    whole, split = gradients(broken, 6), gradients(broken, 2)
    assert any(not torch.allclose(split[name], whole[name], rtol=1e-2, atol=1e-6) for name in whole)


def test_probes_run_when_a_step_begins_and_never_within_it() -> None:
    seen: list[int] = []

    def counted(model: torch.nn.Module) -> torch.Tensor:
        seen.append(1)
        return public_losses(model)

    mechanism = qg.methods.preconditioned(counted, refresh_every=2).with_noise(1.0)
    with privatizer(mechanism, [[0, 1, 2, 3], [4, 5], [6]]) as (private, batches, model):
        run(private, batches, model, micro=1)
    assert len(seen) == 4  # two passes at steps 0 and 2, however many micro-batches there are
