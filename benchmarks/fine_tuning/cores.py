"""LoRA between public directions: W + U·R·V with U and V from public text; the small R alone trains and gets noise.

For two classes the gradient of one record with respect to a matrix W is (p - y)·M, where M = Σ_t g_t x_tᵀ is that of
the difference of the logits (x_t: the matrix's inputs, g_t: the gradients of its outputs). M needs no label, so public
text without any shows where gradients lie, on both sides:

    Σ_i M_i M_iᵀ = Σ_k λ_k u_k u_kᵀ,   Σ_i M_iᵀ M_i = Σ_k μ_k v_k v_kᵀ,   U = (u_1 … u_r),   V = (v_1 … v_r)ᵀ

R has r² numbers where LoRA's B has r·o. Bałazy et al., LoRA-XS (2024), take U and V from the weights' singular vectors.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from benchmarks.fine_tuning.public_text import rated_sentences
from quietgrad.integrations.text_folder import FolderTokens

MATRICES = ("attention.self.value", "attention.output.dense", "intermediate.dense", "output.dense")
LAYERS = 6
TEXTS = 500
KEPT = 64
"""Directions of each side that are kept, the leading ones."""
ROWS = 32


class Cored(nn.Module):
    """A frozen matrix and R between two frozen ones; R begins at zero.

    Args:
        linear: the matrix.
        left: U.
        right: V.
    """

    def __init__(self, linear: nn.Linear, left: Float[Tensor, "o r"], right: Float[Tensor, "r i"]) -> None:
        super().__init__()
        self.linear = linear
        self.left, self.right = nn.Parameter(left, False), nn.Parameter(right, False)
        self.core = nn.Linear(right.shape[0], left.shape[1], bias=False)
        nn.init.zeros_(self.core.weight)

    def forward(self, inputs: Float[Tensor, "n t i"]) -> Float[Tensor, "n t o"]:
        change = F.linear(self.core(F.linear(inputs, self.right)), self.left)
        outputs: Tensor = self.linear(inputs) + change
        return outputs

    @torch.no_grad()
    def turn(self, left: Float[Tensor, "o r"], right: Float[Tensor, "r i"]) -> None:
        """Go on between other directions: what was learned goes into the matrix, and R is zero again."""
        self.linear.weight += self.left @ self.core.weight @ self.right
        self.core.weight.zero_()
        self.left.copy_(left)
        self.right.copy_(right)


def adapt(layers: nn.ModuleList, sides: dict[str, Tensor], rank: int) -> None:
    """Put R beside every matrix; nothing else of the layers trains.

    Args:
        layers: the upper ones of six.
        sides: what `sides` found.
        rank: r.
    """
    if not 1 <= rank <= KEPT:
        raise SystemExit(f"Expected a rank of 1 to {KEPT}, the directions that are kept, got {rank}.")
    layers.requires_grad_(False)
    first = LAYERS - len(layers)
    for place, layer in enumerate(layers, start=first):
        for name in MATRICES:
            left, right = sides[f"{place}.{name}.left"], sides[f"{place}.{name}.right"]
            within, _, last = name.rpartition(".")
            parent = layer.get_submodule(within)
            setattr(parent, last, Cored(getattr(parent, last), left[:, :rank], right[:rank]))


def renew(encoder: Any, weights: Float[Tensor, " d"], ids: Int64[Tensor, "n t"]) -> list[nn.Parameter]:
    """Find U and V anew for what the matrices have become; returns every R.

    Rank after rank is added so, as GaLore does (Zhao et al., ICML 2024), and noise goes to r² numbers all the same.

    Args:
        encoder: the whole model with its `Cored` layers.
        weights: as in `sides`.
        ids: as in `sides`.
    """
    found = sides(encoder, weights, ids)
    cored = {
        f"{place}.{name}": layer.get_submodule(name)
        for place, layer in enumerate(encoder.encoder.layer)
        for name in MATRICES
        if isinstance(layer.get_submodule(name), Cored)
    }
    for name, module in cored.items():
        rank = module.core.in_features
        module.turn(found[f"{name}.left"][:, :rank], found[f"{name}.right"][:rank])
    return [module.core.weight for module in cored.values()]


def sides(encoder: Any, weights: Float[Tensor, " d"], ids: Int64[Tensor, "n t"]) -> dict[str, Tensor]:
    """U and V of every matrix of every layer.

    Args:
        encoder: the whole model.
        weights: of the difference of the logits on the mean over the tokens at unit length.
        ids: public sentences by length.
    """
    matrices = {
        f"{place}.{name}": layer.get_submodule(name)
        for place, layer in enumerate(encoder.encoder.layer)
        for name in MATRICES
    }
    return {
        name: _leading(moment) if name.endswith("left") else _leading(moment).T.contiguous()
        for name, moment in moments(encoder, matrices, weights, ids).items()
    }


def moments(
    encoder: Any, matrices: dict[str, nn.Module], weights: Float[Tensor, " d"], ids: Int64[Tensor, "n t"]
) -> dict[str, Tensor]:
    """Σ M Mᵀ and Σ Mᵀ M, by way of products over tokens: M itself is never made."""
    seen: dict[str, Tensor] = {}
    sums: dict[str, Any] = defaultdict(float)

    def read(name: str) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor], outputs: Tensor) -> None:
            seen[name] = inputs[0].detach()
            outputs.register_hook(lambda gradient: add(name, gradient))

        return hook

    def add(name: str, gradient: Float[Tensor, "n t o"]) -> None:
        inputs = seen.pop(name)
        across = (inputs @ inputs.mT) @ gradient
        sums[f"{name}.left"] += gradient.flatten(0, 1).T @ across.flatten(0, 1)
        across = (gradient @ gradient.mT) @ inputs
        sums[f"{name}.right"] += inputs.flatten(0, 1).T @ across.flatten(0, 1)

    hooks = [module.register_forward_hook(read(name)) for name, module in matrices.items()]
    for few in ids.split(ROWS):
        few = few[:, : int(few.ne(0).sum(1).max())]
        real = few.ne(0)
        hidden = encoder(few, real.long()).last_hidden_state
        (F.normalize((hidden * real[:, :, None]).sum(1)) @ weights).sum().backward()
        encoder.zero_grad()
    for hook in hooks:
        hook.remove()
    return dict(sums)


def _leading(moment: Float[Tensor, "d d"]) -> Float[Tensor, "d r"]:
    _, vectors = torch.linalg.eigh((moment + moment.T).double())
    found: Tensor = vectors[:, -KEPT:].flip(1).float().contiguous()
    return found


def public_ids(folder: Path, tokens: int) -> Int64[Tensor, "n t"]:
    """Some of the public sentences by length; their ratings are not looked at."""
    texts = [rated.text for some in rated_sentences(folder).values() for rated in some]
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0))[:TEXTS].tolist()
    ids = torch.from_numpy(FolderTokens("minilm", tokens).encode([texts[place] for place in order]))
    by_length: Tensor = ids[ids.ne(0).sum(1).argsort(stable=True)]
    return by_length
