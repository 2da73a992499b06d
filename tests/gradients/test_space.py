"""A space is a mapping from names to whole shapes that also knows where each block lives."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import quietgrad as qg
from quietgrad._gradients.blocks import DenseGrad
from quietgrad._gradients.space import Part, Space, coordinates

SHAPES = {"w": torch.Size((4, 3)), "b": torch.Size((4,))}


def test_a_space_reads_like_a_dict_of_shapes() -> None:
    space = Space.of({name: torch.zeros(shape) for name, shape in SHAPES.items()})
    assert space == SHAPES
    assert list(space.items()) == list(SHAPES.items())
    assert coordinates(space) == 16
    assert "w" in space
    assert space.get("c") is None
    assert repr(space) == f"Space({SHAPES})"


def test_gradients_and_parameters_give_dtype_and_device() -> None:
    half = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    double = DenseGrad(torch.zeros(5, 2, dtype=torch.float64))
    assert Space.of({"half": half}).part("half") == Part(torch.Size((2,)), half.device, torch.float32)
    assert Space.of({"double": double}).part("double") == Part(torch.Size((2,)), half.device, torch.float64)


def test_shapes_take_the_places_of_another_space() -> None:
    like = Space({"a": Part(torch.Size((9,)), torch.device("meta")), "b": Part(torch.Size((9,)))})
    space = Space.of_shapes({"b": torch.Size((2,)), "new": torch.Size((3,))}, like)
    assert space == {"b": torch.Size((2,)), "new": torch.Size((3,))}
    assert [space.part(name).device.type for name in space] == ["cpu", "meta"]
    assert Space.coerce(space, like) is space


def test_blocks_are_made_where_they_live_and_as_large_as_the_local_part() -> None:
    whole = Part(torch.Size((5, 3)), dtype=torch.float64)
    space = Space({"whole": whole, "part": Part(torch.Size((5, 3)), torch.device("meta"), rows=slice(2, 4))})
    zeros = space.zeros()
    assert torch.equal(zeros["whole"], torch.zeros(5, 3, dtype=torch.float64))
    assert zeros["part"].shape == space.part("part").local_shape == (2, 3)
    assert zeros["part"].device.type == "meta"
    assert space["part"] == (5, 3)
    assert {block.dtype for block in space.empty(torch.int64).values()} == {torch.int64}


def test_only_a_space_of_parameters_leads_to_them() -> None:
    model = nn.Linear(3, 4)
    space = Space.of_parameters(dict(model.named_parameters()))
    assert space.local("weight") is model.weight
    for other in (space.restrict(space), space | space, space.rename("x:")):
        with pytest.raises(KeyError):
            other.local(next(iter(other)))


def test_what_representations_see_leads_to_no_parameter() -> None:
    model = nn.Linear(3, 2)
    data = torch.utils.data.TensorDataset(torch.randn(8, 3))
    batches = qg.PoissonBatches(data, rate=0.5, steps=1)
    with qg.Privatizer(model, qg.methods.dp_sgd().with_noise(1.0), batches) as private:
        seen = private.begin_step().public.space
        assert seen == {name: p.shape for name, p in model.named_parameters()}
        with pytest.raises(KeyError):
            seen.local("weight")


@dataclass(frozen=True, eq=False)
class BiasCodec(qg.Codec):
    """Gives a plain dict, as codecs of 0.2 do."""

    space: dict[str, torch.Size]  # type: ignore[assignment]

    def encode(self, grads: qg.PerSampleGrads) -> qg.PerSampleGrads:
        return qg.BlockwiseGrads({name: grads.blocks[name] for name in self.space}, grads.samples)

    def decode(self, released: qg.Released) -> dict[str, torch.Tensor]:
        return released.blocks


@dataclass(frozen=True)
class Bias(qg.Representation):
    def refresh(self, public: qg.Public, state: dict[str, object]) -> tuple[qg.Codec, dict[str, object]]:
        return BiasCodec({"bias": public.space["bias"]}), state


def test_a_codec_may_give_a_plain_dict() -> None:
    model = nn.Linear(3, 2).double()
    x, y = torch.randn(8, 3, dtype=torch.float64), torch.arange(8) % 2
    batches = qg.PoissonBatches(torch.utils.data.TensorDataset(x, y), rate=0.9, steps=1)
    release = qg.Release(representation=Bias(), clip=qg.FlatClip(1.0))
    mechanism = qg.Mechanism(name="bias", releases=(release,)).with_noise(1.0)
    with qg.Privatizer(model, mechanism, batches) as private:
        assert private.begin_step().zero_sum(0).released_in("bias") == torch.float64
        for batch in batches:
            for xb, yb in batch.split(8):
                private.backward(F.cross_entropy(model(xb), yb, reduction="none"))
            private.release()
    assert model.bias.grad is not None
    assert bool((model.bias.grad != 0).all())
    assert model.weight.grad is not None
    assert not bool(model.weight.grad.any())
