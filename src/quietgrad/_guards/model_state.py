"""A model may change by releases only: what a forward writes into it is private data without noise."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from torch import nn

from quietgrad._errors import PrivacyError
from quietgrad._guards.byte_snapshot import ByteSnapshot
from quietgrad._guards.model_tensors import model_tensors

# A forward that writes into a parameter through `.data` shows in its bytes only. They are read in the first steps, in
# every step where they are few (4 MB take less than a millisecond), and else in one step of 32, chosen at random.
WHOLE_STEPS, SMALL, ONE_IN = 3, 4 << 20, 32
MESSAGE = (
    "The {} changed between the forward and the release of this step: it would keep private data outside the noise. "
    "Put that module in eval mode, or replace it (quietgrad.fix swaps BatchNorm); move changes that read no private "
    "record to after release(). A table that follows from lengths alone (rotary or position caches) still tells the "
    "longest record: pad to a fixed length and run the model once on made-up inputs of that length first."
)

_system_random = random.SystemRandom()


class ModelStateGuard:
    """Remember the model at the first forward of a step and refuse a step in which it changed.

    Between a release and the next forward the model may change at will: that is the optimizer, a schedule, an average
    of released weights. Buffers and attributes are compared byte by byte. Parameters are compared by identity, address
    and the number of writes that torch counts; `docs/sharp_edges.md` says when their bytes are read, too.

    Checked by: tests/attacks/test_state_in_model.py, tests/privatizer/guards/test_model_state.py

    Args:
        modules: returns the modules that the model has now, with their names.
    """

    def __init__(self, modules: Callable[[], Iterable[tuple[str, nn.Module]]]) -> None:
        self._modules = modules
        self._before: ByteSnapshot | None = None
        self._steps = 0

    def remember(self) -> None:
        """Remember the model, unless the first forward of this step did."""
        if self._before is None:
            tensors = list(model_tensors(self._modules()))
            size = sum(tensor.value.nbytes for tensor in tensors if tensor.is_parameter)
            read = self._steps < WHOLE_STEPS or size <= SMALL or _system_random.randrange(ONE_IN) == 0
            self._before = ByteSnapshot(tensors, read_parameters=read)
            self._steps += 1

    def check(self, *, read_bytes: bool) -> None:
        """Raise PrivacyError if the model changed; `read_bytes` sees all writes."""
        if self._before is not None:
            changed = self._before.find_change(model_tensors(self._modules()), read_bytes=read_bytes)
            if changed is not None:
                raise PrivacyError(MESSAGE.format(changed))

    def forget(self) -> None:
        """Let the model change, after a release."""
        self._before = None
