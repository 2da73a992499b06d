"""What silently breaks per-sample gradients elsewhere: each is right here, or refused by name."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._capture import probing
from quietgrad._capture.graph import Graph, uses
from quietgrad._capture.recorder import Recorder
from quietgrad._gradients import kernel_gradients
from tests.cases.layers import LAYERS, Apply
from tests.reference import Losses, looped

N = 4


@contextmanager
def recording(model: nn.Module, **options: Any) -> Iterator[Recorder]:
    recorder = Recorder(model, **options)
    recorder.attach()
    try:
        yield recorder
    finally:
        recorder.detach()


def squares(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    return model(*inputs).square().flatten(1).sum(1)


def images(*shape: int) -> Tensor:
    return torch.randn(N, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def assert_equals_loop(model: nn.Module, x: Tensor, *, losses: Losses = squares) -> None:
    expected = looped(model, (x,), losses, N)
    with recording(model) as recorder:
        grads = recorder.collect(losses(model, (x,)))
    for name, rows in expected.items():
        torch.testing.assert_close(grads.blocks[name].dense(), rows)


# ---- pairing ------------------------------------------------------------------------------------------------


def test_a_forward_without_a_backward_is_not_mispaired() -> None:
    model, x = nn.Linear(3, 2).double(), images(3)
    expected = looped(model, (x,), squares, N)["weight"]
    with recording(model) as recorder:
        model(x.flip(0))
        losses = squares(model, (x,))
        model(2 * x)
        grads = recorder.collect(losses)
    torch.testing.assert_close(grads.blocks["weight"].dense(), expected)


def test_two_forwards_may_wait_for_their_losses() -> None:
    model, x = nn.Linear(3, 2).double(), images(3)
    with recording(model) as recorder:
        first, second = squares(model, (x,)), squares(model, (x.flip(0),))
        one, two = recorder.collect(first), recorder.collect(second)
    torch.testing.assert_close(one.blocks["weight"].dense(), two.blocks["weight"].dense().flip(0))


def test_losses_of_two_forwards_add_their_gradients() -> None:
    model, x = nn.Linear(3, 2).double(), images(3)

    def siamese(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        return (model(inputs[0]) - model(inputs[0].flip(1))).square().sum(1)

    assert_equals_loop(model, x, losses=siamese)


def test_a_forward_under_no_grad_is_not_recorded() -> None:
    model, x = nn.Linear(3, 2).double(), images(3)
    with recording(model) as recorder:
        with torch.no_grad():
            model(x)
        assert recorder.pending == 0


def test_public_losses_nest_inside_a_private_forward() -> None:
    model, x, public = nn.Linear(3, 2).double(), images(3), images(3).flip(0)
    expected = looped(model, (x,), squares, N)["weight"]
    with recording(model) as recorder:
        losses = squares(model, (x,))
        with recorder.public_forward():
            other = recorder.collect(squares(model, (public,)))
        grads = recorder.collect(losses)
    torch.testing.assert_close(grads.blocks["weight"].dense(), expected)
    torch.testing.assert_close(other.blocks["weight"].dense(), expected.flip(0))


def test_evaluating_with_grad_on_does_not_hoard_graphs() -> None:
    model, x = nn.Linear(3, 2).double(), images(3)
    with recording(model) as recorder:
        for _ in range(5000):
            model(x)
        assert recorder.pending <= 4096


# ---- in-place operations ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 3)])
def test_an_in_place_relu_or_sum_after_a_linear_layer_does_no_harm(shape: tuple[int, ...]) -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.a(x)
        y.relu_()
        y = m.b(y)
        y += 1.0
        return y

    assert_equals_loop(Apply(forward, a=nn.Linear(3, 3), b=nn.Linear(3, 3)).double(), images(*shape))


def test_an_input_changed_after_its_use_is_refused() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = x * 1.0
        y = m.a(hidden)
        hidden += 1.0
        return y

    model = Apply(forward, a=nn.Linear(3, 2)).double()
    with (
        recording(model) as recorder,
        pytest.raises(qg.PrivacyError, match="input of module 'a' was changed in place"),
    ):
        recorder.collect(squares(model, (images(3),)))


# ---- coverage -----------------------------------------------------------------------------------------------


def test_a_second_functional_use_of_a_weight_is_run_again() -> None:
    model = Apply(lambda m, x: m.a(F.linear(x, m.a.weight)), a=nn.Linear(3, 3)).double()
    assert_equals_loop(model, images(3))


def test_a_penalty_on_the_weights_is_refused_by_name() -> None:
    model = nn.Linear(3, 2).double()
    with recording(model) as recorder, pytest.raises(qg.PrivacyError, match="'weight' is used outside"):
        recorder.collect(squares(model, (images(3),)) + model.weight.square().sum())


def test_a_parameter_that_the_losses_ignore_has_a_zero_block() -> None:
    model = Apply(lambda m, x: m.a(x), a=nn.Linear(3, 2), b=nn.Linear(3, 2)).double()
    with recording(model) as recorder:
        grads = recorder.collect(squares(model, (images(3),)))
    assert set(grads.blocks) == set(recorder.parameters)
    assert grads.weighted_sum(torch.ones(N, dtype=torch.float64))["b.weight"].abs().max() == 0


# ---- samples that are mixed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mix", ["mean", "softmax", "loss"])
def test_gradients_of_mixed_samples_are_not_attributed(mix: str) -> None:
    """A Privatizer refuses to release them unless asking shows that they belong to several samples rightly."""

    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.a(x)
        return y - y.mean(0) if mix == "mean" else y.softmax(0) if mix == "softmax" else y

    model = Apply(forward, a=nn.Linear(3, 2)).double()
    with recording(model) as recorder:
        losses = squares(model, (images(3),))
        losses = losses / losses.sum() if mix == "loss" else losses
        recorder.collect(losses)
    assert recorder.unattributed is not None
    assert recorder.unattributed.module_name == "a"


@pytest.mark.parametrize("name", ["positions_batched", "positions_flat", "distances"])
def test_shared_positions_cost_one_backward(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in LAYERS if case.name == name)
    model, inputs = case.model(), case.batch(N)
    taken: list[int] = []
    grad = torch.autograd.grad

    def counted(*arguments: Any, **options: Any) -> tuple[Tensor, ...]:
        if arguments[0] is losses:  # what lies before the broadcast is gone back through by itself
            taken.append(1)
        return grad(*arguments, **options)

    with recording(model) as recorder:
        recorder.collect(case.losses(model, inputs))
        losses = case.losses(model, inputs)
        monkeypatch.setattr(torch.autograd, "grad", counted)
        recorder.collect(losses)
    assert len(taken) == 1


# ---- randomness ---------------------------------------------------------------------------------------------


class Masked(nn.Module):
    """A module of the fallback that drops out."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.drop = nn.Parameter(torch.randn(5)), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(x * self.scale)


def test_dropout_inside_the_fallback_is_the_recorded_one() -> None:
    model, x = Masked().double(), images(5)
    with recording(model) as recorder:
        torch.manual_seed(3)
        out = model(x)
        grads = recorder.collect(out.sum(1))
    kept = (out / x / model.scale.detach()).detach()
    torch.testing.assert_close(grads.blocks["scale"].dense(), kept * x)
    assert 0 < (kept == 0).double().mean() < 1


def test_dropout_of_attention_is_the_recorded_one() -> None:
    model, x = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.5, batch_first=True).double(), images(3, 4)
    rows = []
    for i in range(N):
        torch.manual_seed(0)
        rows.append(torch.autograd.grad(squares(model, (x,))[i], model.self_attn.in_proj_weight)[0])
    with recording(model) as recorder:
        torch.manual_seed(0)
        grads = recorder.collect(squares(model, (x,)))
    torch.testing.assert_close(grads.blocks["self_attn.in_proj_weight"].dense(), torch.stack(rows))


def test_capturing_draws_no_random_numbers() -> None:
    model, x = Masked().double(), images(5)
    with recording(model) as recorder:
        losses = squares(model, (x,))
        state = torch.get_rng_state()
        recorder.collect(losses)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"batch_first": True}], ids=str)
def test_dropout_between_recurrent_layers_is_the_recorded_one(kind: Any, options: dict[str, bool]) -> None:
    model = Apply(lambda m, x: m.r(x)[0], r=kind(3, 3, num_layers=3, dropout=0.5, **options)).double()
    x = images(2, 3) if "batch_first" in options else images(2, 3).transpose(0, 1)
    dim = 0 if "batch_first" in options else 1

    def losses(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        torch.manual_seed(0)
        return model(*inputs).square().movedim(dim, 0).flatten(1).sum(1)

    assert_equals_loop(model, x, losses=losses)


def test_layouts_are_found_one_output_and_one_row_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for gradients too large to be probed or compared together."""
    monkeypatch.setattr(probing, "PROBED_AT_ONCE", 1)
    monkeypatch.setattr(probing, "MOST_PROBES", 10**9)
    monkeypatch.setattr(probing, "COMPARED_AT_ONCE", 1)
    layers = [nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(36, 3), nn.LayerNorm(3)]
    model = nn.Sequential(*layers).double()

    def reordered(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        return squares(model, inputs)[torch.arange(N).flip(0)].flip(0)  # which the graph does not tell

    assert_equals_loop(model, images(2, 5, 5), losses=reordered)
    mixing = Apply(lambda m, x: m.a(x).softmax(0), a=nn.Linear(3, 2)).double()
    with recording(mixing) as recorder:
        recorder.collect(squares(mixing, (images(3),)))
    assert recorder.unattributed is not None


def test_patches_are_multiplied_a_few_samples_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_gradients, "IN_CACHE", 1)
    assert_equals_loop(nn.Conv2d(2, 3, 3, padding=1).double(), images(2, 5, 5))


# ---- surroundings: works, or refused by name ----------------------------------------------------------------


def test_checkpointing_without_reentry_works() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.b(checkpoint(lambda y: m.a(y).tanh(), x, use_reentrant=False))

    assert_equals_loop(Apply(forward, a=nn.Linear(3, 3), b=nn.Linear(3, 2)).double(), images(3))


def test_checkpointed_group_norms_work() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.b(checkpoint(lambda y: m.norm(m.a(y)).relu(), x, use_reentrant=False))

    layers = {"a": nn.Conv2d(2, 4, 3), "norm": nn.GroupNorm(2, 4), "b": nn.Conv2d(4, 2, 2)}
    assert_equals_loop(Apply(forward, **layers).double(), images(2, 5, 5))


def test_reentrant_checkpointing_is_refused() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.b(checkpoint(lambda y: m.a(y).tanh(), x.requires_grad_(), use_reentrant=True))

    model = Apply(forward, a=nn.Linear(3, 3), b=nn.Linear(3, 2)).double()
    with recording(model) as recorder, pytest.raises(ValueError, match="use_reentrant=False"):
        recorder.collect(squares(model, (images(3),)))


@pytest.mark.parametrize("layer", [nn.Linear(3, 4), nn.PReLU(1)], ids=["adapter", "fallback"])
def test_autocast_works(layer: nn.Module) -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), layer), images(3).float()
    expected = looped(model.double(), (x.double(),), squares, N)
    with recording(model.float()) as recorder:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            losses = squares(model, (x,)).float()
        grads = recorder.collect(losses)
    for name, rows in expected.items():
        found = grads.blocks[name].dense().double()
        assert (found - rows).norm() < 0.05 * rows.norm()


def test_a_compiled_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the model is compiled and trains 'weight'"):
        Recorder(cast(nn.Module, torch.compile(nn.Linear(2, 2))))
    model = nn.Linear(2, 2)
    model.compile()
    with pytest.raises(ValueError, match=r"compile=True"):
        Recorder(model)


def test_why_compiled_parts_with_trained_parameters_are_refused() -> None:
    """Their backward is one node that reads the weights: no gradient arrives at the output of a layer inside."""
    inner = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    graph = Graph.of(torch.compile(inner, backend="aot_eager")(images(3).float()).sum(1))
    readers = {node.name() for node, _ in uses(graph, dict(inner.named_parameters()))}
    assert len(readers) == 1
    assert readers.pop().startswith("CompiledFunction")


def test_frozen_parts_may_be_compiled() -> None:
    frozen = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).requires_grad_(False)

    def forward(m: Any, x: Tensor) -> Tensor:
        return m.b(m.frozen(m.a(x)))

    parts = {"a": nn.Linear(3, 4), "b": nn.Linear(4, 2)}
    plain = Apply(forward, frozen=frozen, **parts).double()
    compiled = Apply(forward, frozen=cast(nn.Module, torch.compile(frozen, backend="aot_eager")), **parts)
    x = images(3)
    expected = looped(plain, (x,), squares, N)
    batches = qg.PoissonBatches.replay(TensorDataset(x), [range(N)] * 2, rate=1.0)
    with qg.Privatizer(compiled, qg.methods.dp_sgd(clip=1e6).with_noise(0.0), batches) as private:
        for batch in batches:
            for (rows,) in batch.split(N):
                private.backward(squares(compiled, (rows,)))
            private.release()
        assert "exchanged or left out" in str(private.explain())
    for name, parameter in parts["a"].named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad * N, expected[f"a.{name}"].sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DataParallel"]
)
def test_wrappers_are_refused_by_name(name: str) -> None:
    wrapper = type(name, (nn.Linear,), {})
    with pytest.raises(ValueError, match=name):
        Recorder(wrapper(2, 2))


def test_the_names_of_the_wrappers_are_torchs_own() -> None:
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    assert FSDPModule.__name__ == "FSDPModule"
    assert FullyShardedDataParallel.__name__ == "FullyShardedDataParallel"
    assert nn.parallel.DistributedDataParallel.__name__ == "DistributedDataParallel"


def test_a_scripted_model_is_refused() -> None:
    with pytest.raises(ValueError, match="ScriptModule"):
        Recorder(torch.jit.script(nn.Linear(2, 2)))


# ---- what must not change -----------------------------------------------------------------------------------


def test_batch_norm_in_training_mode_is_refused_with_the_remedy() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4))
    with pytest.raises(qg.PrivacyError, match=r"quietgrad\.fix"):
        Recorder(model)
    Recorder(qg.fix(model))


def test_batch_norm_switched_to_training_later_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)).eval()
    with recording(model), pytest.raises(qg.PrivacyError, match="BatchNorm2d in training mode"):
        model.train()(torch.randn(2, 2, 5, 5))


@pytest.mark.parametrize("freeze", [True, False])
def test_freezing_or_unfreezing_after_set_up_is_refused(freeze: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2).requires_grad_(freeze)).double()
    with recording(model) as recorder:
        losses = squares(model, (images(3),))
        model[1].requires_grad_(not freeze)
        with pytest.raises(ValueError, match=r"1\.(weight|bias)"):
            recorder.collect(losses)


def test_nothing_is_left_on_the_model() -> None:
    model = nn.Sequential(
        nn.Embedding(5, 4), nn.TransformerEncoderLayer(4, 2, 6, batch_first=True), nn.PReLU()
    ).double()
    before = [sorted(vars(module)) for module in model.modules()]
    linear = F.linear
    with recording(model) as recorder:
        recorder.collect(squares(model, (torch.randint(0, 5, (N, 3)),)))
    assert [sorted(vars(module)) for module in model.modules()] == before
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert all(p.grad is None and not p._backward_hooks for p in model.parameters())
    assert F.linear is linear


def test_a_failing_forward_leaves_no_watch_behind() -> None:
    model, linear = nn.MultiheadAttention(4, 2), F.linear
    with recording(model), pytest.raises(AssertionError):
        model(torch.randn(2, 2, 5), torch.randn(2, 2, 5), torch.randn(2, 2, 5))
    assert F.linear is linear


# ---- bad input ----------------------------------------------------------------------------------------------


@pytest.mark.wrong_types
@pytest.mark.parametrize("shape", [(), (N, 2, 2)])
def test_losses_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with recording(nn.Linear(2, 2)) as recorder, pytest.raises(ValueError, match="one loss per sample"):
        recorder.collect(torch.zeros(shape, requires_grad=True))


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Embedding(3, 2, max_norm=1.0), "max_norm"),
        (nn.Embedding(3, 2, scale_grad_by_freq=True), "scale_grad_by_freq"),
        (nn.InstanceNorm1d(3, track_running_stats=True), "running statistics"),
    ],
)
def test_modules_that_cannot_be_private_are_refused(module: nn.Module, reason: str) -> None:
    with pytest.raises(qg.PrivacyError, match=reason):
        Recorder(module)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.LazyLinear(3), "not initialised"),
        (nn.Linear(2, 2).requires_grad_(False), "no trainable parameters"),
    ],
)
def test_modules_that_are_not_ready_are_refused(module: nn.Module, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        Recorder(module)
    assert not isinstance(refused.value, qg.PrivacyError)


def test_a_memory_budget_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="memory_budget"):
        Recorder(nn.Linear(2, 2), memory_budget=0)


def test_a_thread_beside_a_private_forward_sees_the_stock_linear() -> None:
    model, x = nn.MultiheadAttention(4, 2, batch_first=True).double(), images(3, 4)
    expected = looped(Apply(lambda m, x: m.a(x, x, x)[0], a=model), (x,), squares, N)
    seen: list[bool] = []
    stock = F.linear

    def look(*_: object) -> None:
        thread = threading.Thread(target=lambda: seen.append(F.linear is stock))
        thread.start()
        thread.join()

    with recording(Apply(lambda m, x: m.a(x, x, x)[0], a=model)) as recorder:
        handle = model.register_forward_pre_hook(look)  # runs after the recorder's: the watch is on
        grads = recorder.collect(squares(recorder.model, (x,)))
        handle.remove()
    assert seen
    assert all(seen)
    for name, rows in expected.items():
        torch.testing.assert_close(grads.blocks[name].dense(), rows)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_modules_train_for_several_steps(kind: Any) -> None:
    """They keep a list of their weights, in which the tensors of a replay would stay."""
    recurrent = kind(3, 4, batch_first=True)
    model = Apply(lambda m, x: m.r(x)[0], r=recurrent)
    data = TensorDataset(torch.randn(6, 5, 3))
    batches = qg.PoissonBatches(data, rate=1.0, steps=3)
    with qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches) as private:
        for batch in batches:
            for (x,) in batch.split(4):
                private.backward(squares(model, (x,)))
                assert all(isinstance(weight, nn.Parameter) for weight in recurrent._flat_weights)
            private.release()


def test_an_evaluation_while_a_run_is_open_is_not_followed() -> None:
    model = nn.Linear(3, 2)
    batches = qg.PoissonBatches(TensorDataset(images(3).float()), rate=1.0, steps=1)
    with qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches):
        with torch.no_grad():
            model(torch.zeros(1, 3))
        assert torch.overrides._get_current_function_mode() is None
