"""A step begins at its first private forward, at the weights of that forward, and nowhere else by accident."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor, nn

import quietgrad as qg
from tests.cases.inside import recorder_of
from tests.cases.world import losses_of, privatizer, public_losses, small_net

PLAIN = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
GEP = qg.methods.gep(public_losses, rank=2, clip=1.0, residual_clip=1.0).with_noise(1.0)


def has_begun(private: qg.Privatizer) -> bool:
    return private.step_in_progress is not None


@pytest.mark.parametrize("mechanism", [PLAIN, GEP], ids=["dp_sgd", "gep"])
def test_the_first_private_forward_begins_it_and_the_release_ends_it(mechanism: qg.Mechanism) -> None:
    with privatizer(mechanism, [[0, 1, 2], [3]]) as (private, batches, model):
        for batch in batches:
            assert not has_begun(private)
            steps = set()
            for x, y in batch.split(2):
                losses = losses_of(model, x, y)
                assert has_begun(private)
                steps.add(id(private.step_in_progress))
                private.backward(losses)
            assert len(steps) == 1, "all micro-batches of a step share its codecs"
            private.release()
        assert not has_begun(private)
        assert private.step == 2


def test_an_empty_batch_begins_in_its_release() -> None:
    with privatizer(GEP, [[]]) as (private, batches, _):
        for batch in batches:
            assert len(batch) == 0
            assert not has_begun(private)
            private.release()
        assert private.step == 1


def test_forwards_that_lead_to_no_losses_begin_nothing() -> None:
    """Before a batch is drawn, in a test without gradients, and between a release and the optimizer's step."""
    with privatizer(GEP, [[0, 1]]) as (private, batches, model):
        made_up = torch.zeros(2, 1, 6, 6)
        model(made_up)
        assert not has_begun(private)
        for batch in batches:
            model.eval()
            with torch.no_grad():
                model(made_up)
            model.train()
            assert not has_begun(private)
            for x, y in batch.split(2):
                private.backward(losses_of(model, x, y))
            private.release()
            model(made_up)
            assert not has_begun(private)


def test_a_part_called_on_its_own_begins_it() -> None:
    """The outermost module that runs: before any call of the step is recorded."""
    model = nn.ModuleDict({"body": nn.Sequential(nn.Flatten(), nn.Linear(36, 4)), "head": nn.Linear(4, 3)})

    def public(net: nn.Module) -> Tensor:
        assert isinstance(net, nn.ModuleDict)
        out: Tensor = net["head"](net["body"](torch.ones(3, 1, 6, 6))).square().sum(1)
        return out

    mechanism = qg.methods.gep(public, rank=1).with_noise(1.0)
    with privatizer(mechanism, [[0, 1]], model=model) as (private, batches, _):
        for x, y in next(iter(batches)).split(2):
            hidden = model["body"](x)
            assert has_begun(private)
            private.backward(losses_of(model["head"], hidden, y))
        private.release()
        assert private.step == 1


def test_losses_of_a_forward_from_before_the_draw_still_have_their_calls() -> None:
    """The step then begins in backward(), after the forward: public losses must not drop its recorded calls."""
    with privatizer(GEP, [[0, 1]]) as (private, batches, model):
        losses = losses_of(model, torch.randn(2, 1, 6, 6), torch.zeros(2, dtype=torch.long))
        next(next(iter(batches)).split(2))
        private.backward(losses)
        private.release()
        assert private.step == 1


def test_a_loop_left_after_the_forward_goes_on_with_the_same_codecs() -> None:
    with privatizer(GEP, [[0, 1, 2]]) as (private, batches, model):
        for x, y in next(iter(batches)).split(2):
            private.backward(losses_of(model, x, y))
            break
        begun = private.step_in_progress
        for x, y in next(iter(batches)).split(2):
            private.backward(losses_of(model, x, y))
            assert private.step_in_progress is begun
        private.release()
        assert private.step == 1


def test_a_resumed_run_begins_its_step_at_the_next_forward() -> None:
    with privatizer(GEP, [[0, 1], [2]]) as (private, batches, model):
        saved = private.state_dict()
        for x, y in next(iter(batches)).split(2):
            private.backward(losses_of(model, x, y))
        private.load_state_dict(saved)
        assert not has_begun(private)
        for x, y in next(iter(batches)).split(2):
            losses = losses_of(model, x, y)
            assert has_begun(private)
            private.backward(losses)
        private.release()
        assert private.step == 1


def test_autocast_around_the_forward_does_not_reach_the_basis() -> None:
    """The basis of a forward in half precision is that of one in full precision, bit by bit."""

    def basis(enabled: bool) -> list[Tensor]:
        with privatizer(GEP, [[0, 1]]) as (private, batches, model):
            for x, _ in next(iter(batches)).split(2):
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                    out = model(x)
                assert (out.dtype == torch.bfloat16) is enabled
            step = private.step_in_progress
            assert step is not None
            made = [p.clone() for p in step.public.parameters.values()]
            rows = qg.BlockwiseGrads(
                {n: qg.DenseGrad(torch.ones(1, *s)) for n, s in step.public.space.items()}, 1
            )
            return [*made, *step.codec(0).encode(rows).dense().values()]

    assert all(torch.equal(a, b) for a, b in zip(basis(False), basis(True), strict=True))


def test_a_privatizer_thrown_away_without_close_lets_its_batches_go() -> None:
    """Hooks stay on the model, but hold neither the Privatizer nor its sampler."""
    model, sampler = small_net(), qg.PoissonSampler(10, rate=0.5, steps=3)
    private = qg.Privatizer(model, PLAIN, sampler)
    left_behind = recorder_of(private)
    del private
    gc.collect()
    next(iter(sampler))
    model(torch.zeros(2, 1, 6, 6))
    with qg.Privatizer(model, PLAIN, sampler) as again:
        assert again.step == 0
    left_behind.detach()


def test_the_old_name_warns_and_begins() -> None:
    with privatizer(PLAIN, [[0]]) as (private, _, _model):
        with pytest.warns(DeprecationWarning, match="begin_step"):
            step = private.current
        assert step is private.step_in_progress is private.begin_step()
