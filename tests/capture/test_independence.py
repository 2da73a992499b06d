"""`check_independence` finds coupled samples; `fix` removes the commonest cause."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import quietgrad as qg
from tests.cases.layers import Apply


def images() -> Tensor:
    return torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))


def test_an_independent_model_passes() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Dropout(0.5))
    calls: list[nn.Module] = []
    model.register_forward_hook(lambda module, _, __: calls.append(module))
    qg.check_independence(model, images())
    assert len(calls) > len(images()), "as it is, and with each sample replaced in turn"


def test_batch_norm_is_found_and_its_buffers_are_put_back() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with pytest.raises(qg.PrivacyError, match="mixes the samples"):
        qg.check_independence(model, images())
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_one_sample_that_listens_to_another_is_found() -> None:
    def forward(_: nn.Module, x: Tensor) -> Tensor:
        return torch.cat([x[:-1], x[-1:] + 1e-2 * x[:1]])

    with pytest.raises(qg.PrivacyError, match="output of a sample changed when another one was replaced"):
        qg.check_independence(Apply(forward), images())


def test_a_loss_normalised_by_the_batch_is_found() -> None:
    qg.check_independence(Apply(lambda _, x: x), images(), losses=lambda out: out.flatten(1).square().sum(1))
    with pytest.raises(qg.PrivacyError, match="mixes the samples"):
        qg.check_independence(
            Apply(lambda _, x: x), images(), losses=lambda out: out.flatten(1).sum(1) / out.norm()
        )


def test_tokens_are_replaced_too() -> None:
    ids = torch.tensor([[0, 1], [2, 3], [4, 0]])
    qg.check_independence(nn.Embedding(5, 2), ids)
    with pytest.raises(qg.PrivacyError, match="mixes the samples"):
        qg.check_independence(Apply(lambda m, x: m.e(x) - m.e(x).mean(0), e=nn.Embedding(5, 2)), ids)


def test_one_sample_proves_nothing() -> None:
    with pytest.raises(ValueError, match="at least 2 samples"):
        qg.check_independence(nn.Linear(3, 2), torch.zeros(1, 3))


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (48, 24), (7, 7), (1, 1), (34, 17)])
def test_fix_swaps_batch_norm_and_keeps_scale_and_shift(channels: int, groups: int) -> None:
    norm = nn.BatchNorm2d(channels)
    nn.init.normal_(norm.weight)
    model = qg.fix(nn.Sequential(nn.Conv2d(3, channels, 1), nn.ModuleDict({"norm": norm})["norm"]))
    assert isinstance(model, nn.Sequential)
    assert isinstance(model[1], nn.GroupNorm)
    assert model[1].num_groups == groups
    assert torch.equal(model[1].weight, norm.weight)


def test_fix_handles_a_bare_norm_a_shared_norm_and_running_statistics() -> None:
    assert isinstance(qg.fix(nn.BatchNorm3d(4)), nn.GroupNorm)
    shared = nn.BatchNorm2d(4, affine=False)
    model = qg.fix(nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)}))
    assert model.get_submodule("a") is model.get_submodule("b.0")
    assert isinstance(model.get_submodule("a"), nn.GroupNorm)
    tracked = qg.fix(nn.Sequential(nn.InstanceNorm1d(3, track_running_stats=True)))
    assert tracked(torch.randn(2, 3, 4)).shape == (2, 3, 4)
    assert not list(tracked.buffers())
