"""Noise with memory: checkpoints hold what is public of it, and nothing else ever leaves the process."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import quietgrad as qg
from quietgrad._gradients.space import Space
from quietgrad._gradients.stages import ClippedSum, Released
from quietgrad._noise.base import NoiseDraw, NoiseState
from quietgrad._noise.gaussian import Gaussian
from tests.cases.inside import noise_state
from tests.cases.world import losses_of, privatizer, run, small_net

DRAWS = [[0, 3, 5], [1, 2], [7]]


@dataclass(frozen=True, kw_only=True)
class Remembering(Gaussian):
    """Counts its draws in public, and keeps the last sum to itself."""

    def init(self, space: Space) -> NoiseState:
        return NoiseState(
            public={"draws": 0, "coordinates": sum(s.numel() for s in space.values())}, secret={}
        )

    def release(self, total: ClippedSum, draw: NoiseDraw, state: NoiseState) -> tuple[Released, NoiseState]:
        released, _ = super().release(total, draw, state)
        public = {**state.public, "draws": state.public["draws"] + 1}
        return released, NoiseState(public=public, secret=dict(total.blocks))


def mechanism() -> qg.Mechanism:
    return replace(qg.methods.dp_sgd(clip=1.0).with_noise(1.0), noise=Remembering())


def secret(private: qg.Privatizer) -> dict[str, Tensor]:
    found: dict[str, Tensor] = noise_state(private).secret
    return found


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)


def test_a_checkpoint_holds_the_public_part_and_never_the_secret_one() -> None:
    with privatizer(mechanism(), DRAWS) as (private, batches, model):
        run(private, batches, model)
        saved = private.state_dict()
        kept = secret(private)
    assert saved["noise"]["0"]["draws"] == len(DRAWS)
    assert kept, "the noise does remember the last sum"
    assert not [
        t for t in tensors(saved) for s in kept.values() if t.shape == s.shape and torch.equal(t, s.to(t))
    ]
    buffer = io.BytesIO()
    torch.save(saved, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True)["noise"] == saved["noise"]


def test_a_resumed_run_goes_on_in_public_and_anew_in_secret() -> None:
    with privatizer(mechanism(), DRAWS) as (private, batches, model):
        for batch in batches:
            for x, y in batch.split(64):
                private.backward(losses_of(model, x, y))
            private.release()
            if private.step == 2:
                break
        saved, ledger = private.state_dict(), private.ledger
    with privatizer(mechanism(), DRAWS, ledger=ledger) as (again, batches, model):
        again.load_state_dict(saved)
        assert secret(again) == {}
        assert again.state_dict()["noise"] == saved["noise"]
        run(again, batches, model)
        assert again.state_dict()["noise"]["0"]["draws"] == 3


def test_loading_a_checkpoint_in_the_same_process_forgets_the_secret() -> None:
    with privatizer(mechanism(), DRAWS) as (private, batches, model):
        run(private, batches, model)
        assert secret(private)
        private.load_state_dict(private.state_dict())
        assert secret(private) == {}


def test_looking_at_a_step_does_not_advance_the_noise() -> None:
    with privatizer(mechanism(), DRAWS) as (private, batches, model):
        private.explain()
        assert private.state_dict()["noise"] == {}
        run(private, batches, model)
        before, kept = private.state_dict()["noise"], secret(private)
        private.explain()
        assert private.state_dict()["noise"] == before
        assert secret(private) is kept


def test_noise_without_memory_leaves_nothing_in_a_checkpoint() -> None:
    with privatizer(qg.methods.dp_sgd(clip=1.0).with_noise(1.0), DRAWS) as (private, batches, model):
        run(private, batches, model)
        assert private.state_dict()["noise"] == {}


def test_each_release_of_a_step_has_a_memory_of_its_own() -> None:
    masked = qg.methods.dp_sgd(clip=1.0) @ qg.RandomMask(0.5)
    both = replace(qg.both(qg.methods.dp_sgd(clip=1.0), masked), noise=Remembering()).with_noise(1.0)
    with privatizer(both, DRAWS) as (private, batches, model):
        run(private, batches, model)
        saved = private.state_dict()["noise"]
    assert [saved[index]["draws"] for index in ("0", "1")] == [len(DRAWS), len(DRAWS)]
    assert saved["1"]["coordinates"] < saved["0"]["coordinates"]


def test_a_step_that_fails_after_its_release_still_advances_the_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second try must not use the secret of the first."""
    with privatizer(mechanism(), DRAWS) as (private, batches, model):
        for x, y in next(iter(batches)).split(64):
            private.backward(losses_of(model, x, y))
        monkeypatch.setattr(qg.Step, "decode", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            private.release()
        assert private.state_dict()["noise"]["0"]["draws"] == 1


def test_a_federated_checkpoint_holds_the_public_part(tmp_path: Path) -> None:
    options: dict[str, Any] = {"clients": 4, "rate": 0.5, "rounds": 3, "ledger": tmp_path / "ledger.jsonl"}
    server = qg.federated.FederatedServer(small_net(), mechanism(), **options)
    server.draw()
    server.release()
    saved = server.state_dict()
    server.close()
    assert saved["noise"]["0"]["draws"] == 1
    again = qg.federated.FederatedServer(small_net(), mechanism(), **options)
    again.load_state_dict(saved)
    assert again.state_dict()["noise"] == saved["noise"]
    assert again._state.noise.get(0, Space({})).secret == {}


@pytest.mark.parametrize("attempt", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_secret_cannot_be_copied_or_pickled(attempt: Any) -> None:
    with pytest.raises(qg.PrivacyError, match=r"state\.public"):
        attempt(NoiseState(secret=torch.ones(3)))
    attempt(NoiseState(public={"draws": 1}))


def test_a_secret_is_not_printed() -> None:
    assert "7.25" not in repr(NoiseState(public={"draws": 1}, secret=7.25))
