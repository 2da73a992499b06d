"""Features computed once: transfer learning and ScatterNet without running the extractor in every step."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from quietgrad.lab.data.parts import Parts

ROWS = 256


def precompute(parts: Parts, extractor: nn.Module) -> Parts:
    """The parts with each input replaced by its features.

    The extractor must be public (fixed, or trained on public data) and treat each input on its own: then a
    record's features depend on that record alone, and what protects the features protects the record.

    Args:
        parts: the task.
        extractor: from inputs [n, ...] to features [n, ...]; run in evaluation mode, which it then keeps.
    """
    extractor.eval()
    _refuse_mixing(extractor, parts.test.tensors[0][:4])
    private, public, test = (
        TensorDataset(_features(extractor, data.tensors[0]), *data.tensors[1:])
        for data in (parts.private, parts.public, parts.test)
    )
    return dataclasses.replace(
        parts,
        private=private,
        public=public,
        test=test,
        input_shape=tuple(private.tensors[0].shape[1:]),
        record={**parts.record, "features": type(extractor).__name__},
    )


@torch.no_grad()
def _features(extractor: nn.Module, inputs: Tensor) -> Tensor:
    rows = inputs.split(ROWS) if len(inputs) else (inputs,)
    return torch.cat([extractor(chunk) for chunk in rows])


def _refuse_mixing(extractor: nn.Module, inputs: Tensor) -> None:
    together = _features(extractor, inputs)
    alone = torch.cat([_features(extractor, row[None]) for row in inputs])
    if not torch.allclose(together, alone, rtol=1e-3, atol=1e-4):
        raise ValueError(
            f"extractor={type(extractor).__name__} gives an input other features alone than in a batch. "
            "Use one that treats each input on its own (no batch statistics, no random transforms)."
        )
