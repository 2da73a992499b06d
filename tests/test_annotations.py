"""The tests execute the library's annotations: these see that they do, on ranks too, and not where a test says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation

import quietgrad as qg
from quietgrad._gradients.blocks import BlockGrads
from quietgrad._gradients.row_arithmetic import zero_rows
from quietgrad._mechanism.clipping import clip_weights
from tests.annotations import MODE
from tests.distributed.launch import launch

pytestmark = [
    pytest.mark.annotations,
    pytest.mark.skipif(MODE == "0", reason="QUIETGRAD_ANNOTATIONS=0"),
]

WRONG: dict[str, Callable[[], object]] = {
    "a function": lambda: clip_weights([1.0], 1.0),  # type: ignore[arg-type]
    "a method": lambda: qg.SeededSource(0).integers("5"),  # type: ignore[arg-type]
    "a dataclass": lambda: qg.FlatClip([1.0]),  # type: ignore[arg-type]
    "a dtype": lambda: clip_weights(torch.ones(3), 1.0),
    "a shape": lambda: clip_weights(torch.ones(3, 2, dtype=torch.float64), 1.0),
    "a letter with two sizes": lambda: zero_rows(torch.ones(3, 2), torch.ones(2, dtype=torch.bool)),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_seen(what: str) -> None:
    with pytest.raises(BeartypeCallHintViolation):
        WRONG[what]()


@pytest.mark.wrong_types
def test_wrong_types_on_purpose_are_let_through() -> None:
    assert clip_weights(torch.ones(3), 1.0).dtype == torch.float32


def test_a_wrong_result_is_seen_though_only_a_type_checker_imports_its_class() -> None:
    class Unformed(qg.DenseGrad):
        form = BlockGrads.form

        def dense(self) -> torch.Tensor:
            return torch.ones(())

    with pytest.raises(BeartypeCallHintViolation):
        Unformed(torch.ones(3, 2)).form()


def _wrong_shape(_: int) -> None:
    WRONG["a shape"]()


def test_ranks_execute_them_too() -> None:
    (outcome,) = launch(1, _wrong_shape)
    assert outcome.error is not None
    assert outcome.error.startswith("BeartypeCallHint")
