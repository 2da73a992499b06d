"""Embeddings: a table of which each sample reads few rows."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from quietgrad.capture.adapter import Adapter, Pieces, inputs_for
from quietgrad.capture.call import Call
from quietgrad.capture.layout import Layout
from quietgrad.gradients.indexed import IndexedGrad


class EmbeddingAdapter(Adapter):
    """Row id of the table gets Σ of the output gradients at the positions that read it; the padding row gets none."""

    def sample_dims(self, module: nn.Module, shape: torch.Size) -> int:
        return len(shape) - 1

    def pieces(
        self, call: Call, layouts: list[Layout | None], backprops: list[Float[Tensor, "n ..."]]
    ) -> Pieces:
        module = call.unit.module
        assert isinstance(module, nn.Embedding)
        n = len(backprops[0])
        ids = call.args[0] if call.args else call.kwargs["input"]
        ids = inputs_for(ids, layouts[0], n).reshape(n, -1).long()
        values = backprops[0].reshape(n * ids.shape[1], -1)
        owner = torch.arange(n, device=ids.device).repeat_interleave(ids.shape[1])
        ids = ids.flatten()
        if module.padding_idx is not None:
            kept = ids != module.padding_idx
            ids, owner, values = ids[kept], owner[kept], values[kept]
        grads = IndexedGrad(ids, owner, values, samples=n, table=module.num_embeddings)
        return {"weight": grads}
