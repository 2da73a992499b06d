"""A release that breaks off after its line is written: whoever saw it may not get the same draw again.

Post-processing sees a release before `p.grad` is written. If it fails, or somebody presses Ctrl-C, the careless caller
calls `release()` again or repeats the loop. Both releases would be of one draw, with the coins of one draw, and the
ledger would count two: a record that was drawn shows in both, at a price that is too small by far. With banded noise
the draw would also meet noise that it had shaped already.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import quietgrad as qg
from tests.cases.inside import noise_state
from tests.cases.world import losses_of, privatizer, small_net
from tests.noise.test_banded import DRAWS, GROUPS, mechanism


class Failing:
    """Post-processing that sees each release, and fails at some."""

    name = "failing"

    def __init__(self, *at: int) -> None:
        self.at, self.seen = at, list[dict[str, torch.Tensor]]()

    def __call__(self, update: Any, public: Any, state: Any) -> Any:
        self.seen.append({name: block.clone() for name, block in update.items()})
        if len(self.seen) in self.at:
            raise KeyboardInterrupt
        return update, state


def steps(private: qg.Privatizer, batches: qg.PoissonBatches, model: torch.nn.Module) -> Iterator[list[int]]:
    for batch in batches:
        rows = list(batch._records)
        for x, y in batch.split(64):
            private.backward(losses_of(model, x, y))
        yield rows
        private.release()


@pytest.mark.parametrize("banded", [False, True], ids=["gaussian", "banded"])
def test_a_draw_that_was_seen_is_not_handed_out_again(banded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = mechanism() if banded else qg.methods.dp_sgd().with_noise(1.0)
    world = privatizer(made, DRAWS, users=GROUPS if banded else {})
    with world as (private, batches, model):
        failing = Failing(3)
        monkeypatch.setattr(
            private._state, "post_process", lambda update, public: failing(update, public, None)[0]
        )
        drawn: list[list[int]] = []
        with pytest.raises(KeyboardInterrupt):
            drawn.extend(steps(private, batches, model))
        assert private.step == 3
        with pytest.raises(qg.PrivacyError, match="No batch was drawn"):
            private.release()
        if banded:
            assert noise_state(private).secret is None
        drawn.extend(steps(private, batches, model))
        assert drawn == DRAWS, "each draw once"
        assert len(failing.seen) == len(DRAWS)
        assert private.ledger.phases == private.plan
        assert private.steps_left == 0


def test_an_observer_that_fails_ends_the_step_too() -> None:
    class Broken(qg.Observer):
        def step(self, step: int, released: Any, update: Any) -> None:
            raise OSError("disk full")

    with privatizer(qg.methods.dp_sgd().with_noise(1.0), DRAWS, research=True) as (private, batches, model):
        private.watch(Broken())
        with pytest.raises(OSError, match="disk full"):
            list(steps(private, batches, model))
        assert private.step == 1
        assert private.step_in_progress is None


def test_what_the_plan_does_not_hold_is_still_refused_before_the_step_ends() -> None:
    """Nothing was released: the step stays as it is."""
    ledger = qg.Ledger(plan=[])
    with privatizer(replace(qg.methods.dp_sgd(), name="unplanned").with_noise(1.0), DRAWS, ledger=ledger) as (
        private,
        batches,
        model,
    ):
        with pytest.raises(qg.PrivacyError, match="plan"):
            list(steps(private, batches, model))
        assert private.step == 0


def test_a_federated_round_that_breaks_off_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clients' sum was released to post-processing: a second release of it is refused."""
    server = qg.federated.FederatedServer(
        small_net(), qg.methods.dp_sgd().with_noise(1.0), clients=5, rate=0.5, rounds=3
    )

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    server.draw()
    with monkeypatch.context() as patch:
        patch.setattr(server._state, "post_process", fail)
        with pytest.raises(KeyboardInterrupt):
            server.release()
    assert (server.in_round, server.round, server.ledger.count) == (False, 1, 1)
    with pytest.raises(AssertionError, match="begins a round"):
        server.release()
