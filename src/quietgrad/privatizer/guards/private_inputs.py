"""Which tensors are private: those of the data set, and those that went through `backward`."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from torch.utils.hooks import RemovableHandle

from quietgrad.capture.call import Hook, tensors_of
from quietgrad.privatizer.guards.overlap import Extent, extent, share_memory, tensors_in

MOST_WAITING = 64
"""Inputs of forwards whose losses may still come; older ones are given up."""

_open: weakref.WeakSet[PrivateInputs] = weakref.WeakSet()


class PrivateInputs:
    """Sees what the model is fed. Refuses private records in public losses, and one batch in two Privatizers.

    Slices and views of a private tensor are seen, copies are not. Nothing is decided by values.

    Args:
        model: whose forwards are watched.
        in_public: whether the forward under way is one of public losses.
        dataset: the private records, if they are known.
    """

    def __init__(self, model: nn.Module, in_public: Callable[[], bool], dataset: Dataset[Any] | None) -> None:
        self._model, self._in_public = model, in_public
        self._records = [] if dataset is None else list(tensors_in(dataset))
        self._waiting: list[tuple[Extent, int]] = []
        self._handed_out: list[Extent] = []
        self._consumed: list[Extent] = []
        self._handle: RemovableHandle | None = None

    def attach(self) -> None:
        """Watch the model's forwards."""
        self._handle = self._model.register_forward_pre_hook(Hook(self._before), with_kwargs=True)
        _open.add(self)

    def detach(self) -> None:
        """Leave no hook behind, and let others have the batches."""
        if self._handle is not None:
            self._handle.remove()
        _open.discard(self)

    def hand_out(self, rows: Any) -> None:
        """A micro-batch is given to the loop: private from now on, even before its losses come."""
        inputs = tensors_of((rows,), {})
        self._handed_out = [extent(tensor) for tensor in inputs if tensor.dim() and tensor.numel()]

    def consume(self, rows: int) -> None:
        """The inputs of so many rows that the model was fed since the last losses are this Privatizer's.

        Raises:
            ValueError: another Privatizer that is still open took them.
        """
        inputs = [seen for seen, length in self._waiting if length == rows and seen.alive]
        self._waiting.clear()
        others = [taken for other in _open if other is not self for taken in other.taken()]
        if any(mine.meets(theirs) for mine in inputs for theirs in others):
            raise ValueError(
                "This batch already went through another Privatizer. Two models trained on the same draws cost more "
                "than either ε says: draw batches for each from a PoissonSampler of its own."
            )
        self._consumed = [*self.taken(), *inputs]

    def taken(self) -> list[Extent]:
        """What went through `backward` and still exists."""
        return [seen for seen in self._consumed if seen.alive]

    def _before(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs = [tensor for tensor in tensors_of(args, kwargs) if tensor.dim() and tensor.numel()]
        if self._in_public():
            self._refuse_private(inputs)
        elif torch.is_grad_enabled():
            self._waiting += [(extent(tensor), len(tensor)) for tensor in inputs]
            del self._waiting[:-MOST_WAITING]

    def _refuse_private(self, inputs: list[Tensor]) -> None:
        batches = [*self.taken(), *(seen for seen in self._handed_out if seen.alive)]
        if any(extent(tensor).meets(batch) for tensor in inputs for batch in batches):
            raise ValueError(_leaks("the private batch"))
        if any(share_memory(tensor, records) for tensor in inputs for records in self._records):
            raise ValueError(_leaks("records of the private data set"))


def _leaks(what: str) -> str:
    return (
        f"public_losses fed {what} to the model, so that what is released would leak them. Compute public losses from "
        "data that are not among the private records."
    )
