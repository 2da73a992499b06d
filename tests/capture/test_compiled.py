"""A compiled model hands out the factors of its trained layers, equal in every bit to those that hooks see."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import quietgrad as qg
from quietgrad._capture.recorder import Recorder
from tests.cases.world import privatizer, run, small_net
from tests.reference import looped

AOT = {"backend": "aot_eager", "fullgraph": True, "dynamic": True}


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    """Embedding, attention and a feed-forward part, with both kinds of norms."""

    def __init__(self, d: int = 12) -> None:
        super().__init__()
        self.table = nn.Embedding(11, d, padding_idx=0)
        self.before, self.after = nn.LayerNorm(d), nn.RMSNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d)
        self.up, self.down, self.head = nn.Linear(d, 20), nn.Linear(20, d), nn.Linear(d, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        n, t, d = x.shape
        q, k, v = self.qkv(self.before(x)).view(n, t, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d)
        x = x + self.out(mixed)
        x = x + self.down(F.gelu(self.up(self.after(x))))
        logits: Tensor = self.head(x.mean(1))
        return logits


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, stride=2, padding=1, padding_mode="circular", groups=2),
        nn.Flatten(2),
        nn.Conv1d(4, 3, 2, bias=False),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


MODELS: dict[str, tuple[Any, Any]] = {
    "mlp": (mlp, lambda n: torch.randn(n, 6)),
    "cnn": (cnn, lambda n: torch.randn(n, 2, 5, 6)),
    "transformer": (Block, lambda n: torch.randint(11, (n, 7))),
}
SLOW = [name if name == "mlp" else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]


def losses(model: nn.Module, x: Tensor) -> Tensor:
    return F.cross_entropy(model(x), torch.arange(len(x), device=x.device) % 3, reduction="none")


class Factors:
    """What the adapters of a recorder are given."""

    def __init__(self, model: nn.Module, options: dict[str, Any] | None) -> None:
        self.found: dict[str, tuple[Tensor, Tensor]] = {}
        self.recorder = Recorder(model, deterministic=True, compile_options=options)
        for unit in self.recorder._ownership.holders:
            self._watch(unit.name, unit.adapter)
        self.recorder.attach()

    def _watch(self, name: str, adapter: Any) -> None:
        pieces = adapter.pieces

        def watched(call: Any, layouts: Any, backprops: list[Tensor]) -> Any:
            self.found[name] = call.input.clone(), backprops[0].clone()
            return pieces(call, layouts, backprops)

        adapter.pieces = watched

    def of(self, model: nn.Module, x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        self.found = {}
        self.recorder.collect(losses(model, x))
        return self.found


@pytest.mark.parametrize("name", SLOW)
def test_factors_are_those_of_the_uncompiled_model(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model = make()
    batches = [inputs(n) for n in (6, 4, 1, 9)]
    plain = Factors(model, None)
    expected = [plain.of(model, x) for x in batches]
    plain.recorder.detach()
    compiled = Factors(model, AOT)
    for x, theirs in zip(batches, expected, strict=True):
        mine = compiled.of(model, x)
        assert mine.keys() == theirs.keys()
        for layer in theirs:
            assert torch.equal(mine[layer][0], theirs[layer][0]), f"input of {layer}"
            assert torch.equal(mine[layer][1], theirs[layer][1]), f"gradient at {layer}"
    assert model(batches[0][:0]).shape == (0, 3)
    assert compiled.recorder.collect(losses(model, batches[0][:0])).samples == 0
    assert "by probing" in compiled.recorder.independence or len(batches[-1]) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("name", MODELS)
def test_factors_of_inductor_differ_by_rounding_alone(name: str) -> None:
    """Inductor joins operations and orders sums otherwise; `aot_eager` does not."""
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model, x = make(), inputs(6)
    plain = Factors(model, None)
    theirs = plain.of(model, x)
    plain.recorder.detach()
    mine = Factors(model, {"backend": "inductor"}).of(model, x)
    assert mine.keys() == theirs.keys()
    worst = max(
        float((a.float() - b.float()).abs().max() / b.abs().max())
        for layer in theirs
        for a, b in zip(mine[layer], theirs[layer], strict=True)
    )
    print(f"{name}: {worst:.2g} of the largest entry")
    assert worst < 2e-6


def test_other_sizes_of_batches_are_not_compiled_again() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    model = mlp()
    recorder = Recorder(model, compile_options={"backend": counter, "fullgraph": True, "dynamic": True})
    recorder.attach()
    for n in (6, 4, 9, 5, 7, 12):
        recorder.collect(losses(model, torch.randn(n, 6)))
    # One for the first size, and at most one more where a size happens to equal another number of the model.
    assert counter.frame_count <= 2


def train(compile: bool | dict[str, Any]) -> list[dict[str, Tensor]]:  # noqa: A002
    mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(0.5)
    draws = [list(range(9)), [], list(range(9, 23))]
    with privatizer(mechanism, draws, compile=compile) as (private, batches, model):
        return run(private, batches, model, micro=5, lr=0.1)


def test_a_compiled_run_gets_the_gradients_of_an_uncompiled_one() -> None:
    expected, found = train(False), train({"backend": "aot_eager"})
    for mine, theirs in zip(found, expected, strict=True):
        for name, grad in theirs.items():
            torch.testing.assert_close(mine[name], grad, rtol=1e-5, atol=1e-7)


def test_close_leaves_the_model_as_it_was_and_copies_run_uncompiled() -> None:
    model, x = small_net(), torch.randn(4, 1, 6, 6)
    before, keys, expected = (
        {name: set(vars(m)) for name, m in model.named_modules()},
        set(model.state_dict()),
        model(x),
    )
    recorder = Recorder(model, compile_options={"backend": "aot_eager"})
    recorder.attach()
    twin = copy.deepcopy(model)
    assert set(model.state_dict()) == set(twin.state_dict()) == keys
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    assert not twin(x).any(), "a copy uses its own weights"
    recorded = [recorder.pending]
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), expected)
    assert torch.equal(model(x), expected)
    recorded.append(recorder.pending)
    assert recorded == [0, 4], "calls of the copy are not recorded"
    recorder.detach()
    assert {name: set(vars(m)) for name, m in model.named_modules()} == before
    assert torch.equal(model(x), expected)


class Loose(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.shift = nn.Linear(6, 3), nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        shifted: Tensor = self.layer(x) + self.shift
        return shifted


class Elsewhere(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(x) + x @ self.layer.weight)
        return out


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(self.layer(x)))
        return out


class Overwrites(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x * 2
        after = self.layer(hidden)
        hidden += 1
        out: Tensor = self.head(after + hidden)
        return out


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head((x[:, :, None] + self.table(torch.arange(6))).mean(1))
        return out


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.GRU(6, 3), "GRU.*cannot be compiled"),
        (Loose(), "The model, a Loose, trains shift"),
        (Elsewhere(), "'layer.weight' is used outside"),
        (Twice(), "'layer' is called 2 times"),
        (Overwrites(), "input of module 'layer' was changed in place"),
        (Positions(), "'table'.*several samples.*expand"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_cannot_be_compiled_is_refused_by_name(model: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):  # noqa: PT012
        recorder = Recorder(model, compile_options={"backend": "aot_eager"})
        recorder.attach()
        recorder.collect(losses(model, torch.randn(5, 6)))


def test_a_model_of_one_layer_is_refused_and_the_remedy_works() -> None:
    layer, x = nn.Linear(6, 3), torch.randn(5, 6)
    with pytest.raises(ValueError, match=r"one layer, a Linear.*Leave compile out, or train nn\.Sequential"):
        Recorder(layer, compile_options={"backend": "aot_eager"})
    model = nn.Sequential(layer)
    recorder = Recorder(model, compile_options={"backend": "aot_eager"})
    recorder.attach()
    grads = recorder.collect(model(x).square().sum(1))
    recorder.detach()
    expected = looped(model, (x,), lambda net, inputs: net(*inputs).square().sum(1), len(x))
    for name, rows in expected.items():
        torch.testing.assert_close(grads.blocks[name].dense(), rows)


def test_a_model_that_the_user_compiled_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="compile=True"):
        Recorder(torch.compile(mlp(), backend="eager"))  # type: ignore[arg-type]
