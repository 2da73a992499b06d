"""A model may change by releases only: what a forward writes into it is private data without noise."""

from __future__ import annotations

import random

from torch import nn

from quietgrad._errors import PrivacyError
from quietgrad._guards.byte_snapshot import ByteSnapshot
from quietgrad._guards.model_tensors import ModelTensor, model_tensors

WHOLE_STEPS = 3
"""Steps at the beginning in which the bytes of parameters are read, whatever their size."""
SMALL = 4 << 20
"""Bytes of parameters that are read in every step; reading them takes less than a millisecond."""
ONE_IN = 32
"""Larger parameters are read in later steps with this chance: a forward that writes in every step is found soon."""

_system_random = random.SystemRandom()


class ModelStateGuard:
    """Remember the model at the first forward of a step and refuse a step in which it changed.

    Between a release and the next forward the model may change at will: that is the optimizer, a schedule, an average
    of released weights. Buffers and attributes are compared byte by byte. Parameters are compared by identity, address
    and the number of writes that torch counts; their bytes are read in some steps only.

    Checked by: tests/attacks/test_state_in_model.py, tests/privatizer/guards/test_model_state.py

    Args:
        model: all of its parameters, buffers and attributes that hold tensors.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before: ByteSnapshot | None = None
        self._steps = 0

    def remember(self) -> None:
        """Remember the model, unless the first forward of this step did."""
        if self._before is None:
            tensors = list(model_tensors(self._model))
            self._before = ByteSnapshot(tensors, read_parameters=self._reads_parameters(tensors))
            self._steps += 1

    def check(self, *, read_bytes: bool) -> None:
        """Refuse what was kept since the first forward of this step.

        Args:
            read_bytes: also look for writes that torch does not count.

        Raises:
            PrivacyError: something changed, or is new.
        """
        if self._before is not None:
            changed = self._before.find_change(model_tensors(self._model), read_bytes=read_bytes)
            if changed is not None:
                raise PrivacyError(_message(changed))

    def forget(self) -> None:
        """Let the model change, after a release."""
        self._before = None

    def _reads_parameters(self, tensors: list[ModelTensor]) -> bool:
        if self._steps < WHOLE_STEPS or _system_random.randrange(ONE_IN) == 0:
            return True
        return sum(tensor.value.nbytes for tensor in tensors if tensor.is_parameter) <= SMALL


def _message(name: str) -> str:
    return (
        f"The {name} changed between the forward and the release of this step: it would keep private data outside the "
        "noise. Put that module in eval mode, or replace it (quietgrad.fix swaps BatchNorm); move changes that read no "
        "private record to after release(). A table that follows from lengths alone (rotary or position caches) still "
        "tells the longest record: pad to a fixed length and run the model once on made-up inputs of that length first."
    )
