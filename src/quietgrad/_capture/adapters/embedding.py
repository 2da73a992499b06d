"""Embeddings: a table of which each sample reads few rows."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from quietgrad._capture.adapter import Adapter, Pieces, inputs_for
from quietgrad._capture.call import Call
from quietgrad._capture.layout import Layout, Placement
from quietgrad._gradients.indexed import IndexedGrad


class EmbeddingAdapter(Adapter):
    """Row id of the table gets Σ of the output gradients at the positions that read it; the padding row gets none."""

    feature_dims = 1

    def pieces(
        self, call: Call, layouts: list[Placement | None], backprops: list[Float[Tensor, "n ..."]]
    ) -> Pieces:
        module = call.unit.module
        assert isinstance(module, nn.Embedding)
        n = len(backprops[0])
        ids = call.input
        ids = inputs_for(ids, layouts[0], backprops[0]).reshape(n, -1).long()
        values = backprops[0].flatten(0, -2)
        most = ids.shape[1]
        owner = torch.arange(n, device=ids.device).repeat_interleave(most)
        ids = ids.flatten()
        if module.padding_idx is not None:
            kept = ids != module.padding_idx
            if ids.device.type == "cpu":
                ids, owner, values = ids[kept], owner[kept], values[kept]
            else:  # the host would wait for the number of those that are left
                values = values.masked_fill(~kept[:, None], 0.0)
        # One position for each sample: its norm is that of one row, and no ids have to be compared for repetitions.
        single = backprops[0].numel() == n * backprops[0].shape[-1]
        grads = IndexedGrad(
            ids, owner, values, samples=n, table=module.num_embeddings, single=single, most=most
        )
        return {"weight": grads}


class EmbeddingBagAdapter(Adapter):
    """Sums or means of rows: id j of a bag gets the bag's output gradient times its weight, repeated ids add up."""

    feature_dims = 1

    def pieces(
        self, call: Call, layouts: list[Placement | None], backprops: list[Float[Tensor, "n ..."]]
    ) -> Pieces:
        module, n = call.unit.module, len(backprops[0])
        assert isinstance(module, nn.EmbeddingBag)
        if layouts[0] is None:
            raise ValueError(
                f"The bags of module {call.module_name!r} belong to no sample. Give each sample its own bags."
            )
        values = backprops[0].reshape(-1, backprops[0].shape[-1])
        if len(values) == n and layouts[0] == Layout(0) and is_single(module, call):
            ids, owner = call.args[0].flatten().long(), torch.arange(n, device=values.device)
            table = module.num_embeddings
            return {"weight": IndexedGrad(ids, owner, values, samples=n, table=table, single=True)}
        ids, bag, scale = bags(module, call)
        # `bag` counts bags in the order of the output, while `values` are in the order of the samples. `row` maps the
        # first to the second.
        where = layouts[0].samples_first(torch.arange(len(values), device=ids.device), n).flatten()
        row = torch.empty_like(where)
        row[where] = torch.arange(len(values), device=ids.device)  # where a bag's gradient went
        owner = torch.div(row[bag], len(values) // n, rounding_mode="floor")
        grads = IndexedGrad(
            ids,
            owner,
            values[row[bag]] * scale[:, None].to(values.dtype),
            samples=n,
            table=module.num_embeddings,
        )
        return {"weight": grads}


def is_single(module: nn.EmbeddingBag, call: Call) -> bool:
    """Whether every bag is one row of the table as it is."""
    plain = len(call.args) == 1 and not call.kwargs and module.padding_idx is None
    return plain and call.args[0].dim() == 2 and call.args[0].shape[1] == 1


def bags(module: nn.EmbeddingBag, call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """(table row, bag, weight) of every entry that is not padding."""
    given = call.arguments("input", "offsets", "per_sample_weights")
    ids, offsets, weights = given["input"], given.get("offsets"), given.get("per_sample_weights")
    if ids.dim() == 2:
        count = ids.shape[0]
        bag = torch.arange(count, device=ids.device).repeat_interleave(ids.shape[1])
    else:
        assert offsets is not None
        starts = offsets[:-1] if module.include_last_offset else offsets
        count = len(starts)
        places = torch.arange(len(ids), device=ids.device)
        # The bag of an entry is the last one that starts at or before it.
        bag = torch.searchsorted(starts.long().contiguous(), places, right=True) - 1
    ids, scale = ids.flatten().long(), torch.ones(ids.numel(), dtype=torch.float64, device=ids.device)
    kept = torch.ones_like(ids, dtype=torch.bool) if module.padding_idx is None else ids != module.padding_idx
    ids, bag, scale = ids[kept], bag[kept], scale[kept]
    if weights is not None:
        scale = scale * weights.flatten()[kept]
    if module.mode == "mean":
        scale = scale / torch.bincount(bag, minlength=count).clamp_min(1)[bag]
    return ids, bag, scale
