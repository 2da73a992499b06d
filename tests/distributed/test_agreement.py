"""What ranks compare: rounding passes, anything else is named. No processes needed."""

from __future__ import annotations

import math

import pytest
import torch

from quietgrad._collective import Facts, Fingerprint
from quietgrad._gradients.blocks import flatten, unflatten
from quietgrad.distributed.agreement import check, row


def meet(*ranks: Facts) -> None:
    check(torch.stack([row(facts) for facts in ranks]), lambda: list(ranks))


def with_weights(value: float, scale: float = 1.0) -> Facts:
    return Facts(equal={}, close={"weights": Fingerprint(value, scale)})


def test_rounding_is_agreement_and_more_is_not() -> None:
    meet(with_weights(2.0), with_weights(2.0 + 1e-6))
    with pytest.raises(ValueError, match="weights drifted apart"):
        meet(with_weights(2.0), with_weights(2.0), with_weights(2.001))


def test_models_that_diverged_alike_agree() -> None:
    meet(with_weights(math.nan), with_weights(math.nan))
    meet(with_weights(math.inf, math.inf), with_weights(math.inf, math.inf))
    with pytest.raises(ValueError, match="drifted"):
        meet(with_weights(0.0), with_weights(math.nan))


def test_all_zero_tensors_agree() -> None:
    meet(with_weights(0.0, 0.0), with_weights(0.0, 0.0))


def test_an_error_names_ranks_and_values_and_stays_readable() -> None:
    ranks = [Facts(equal={"mechanism": {f"field{i}": i + (n == 2) for i in range(9)}}) for n in range(4)]
    with pytest.raises(
        ValueError, match=r"mechanism\.field0: 0 on ranks 0 and 1 and 3, 1 on rank 2.*\(and 3 more\)"
    ) as caught:
        meet(*ranks)
    assert "field7" not in str(caught.value)
    long = [Facts(equal={"data": f"{n}" + "x" * 500}) for n in range(2)]
    with pytest.raises(ValueError, match="data: 0x") as caught:
        meet(*long)
    assert len(str(caught.value)) < 400


def test_flat_buffers_keep_shapes_and_dtypes() -> None:
    blocks = {
        "half": torch.randn(2, 3).to(torch.bfloat16),
        "single": torch.randn(4),
        "scalar": torch.randn((), dtype=torch.float64),
        "empty": torch.randn(0, 5),
    }
    flat = flatten(blocks)
    assert flat.dtype == torch.float64
    assert flat.shape == (11,)
    assert flatten({"half": blocks["half"]}).dtype == torch.float32
    for name, block in unflatten(flat, blocks).items():
        assert torch.equal(block, blocks[name])
        assert block.dtype == blocks[name].dtype
    steps = {"a": torch.tensor([2**53 + 1]), "b": torch.tensor([[-5]])}
    assert torch.equal(flatten(steps), torch.tensor([2**53 + 1, -5])), "integers are not rounded"
