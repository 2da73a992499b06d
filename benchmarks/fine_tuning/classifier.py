"""MiniLM's upper layers under a linear head, and what of them trains in each variant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from benchmarks.fine_tuning import cores
from benchmarks.fine_tuning.directions import leading, second_moments
from quietgrad.integrations.pretrained import model_folder

TOKENS = 48
WIDTH, LAYERS = 384, 6
RANK = 8
CORE = 32
"""The rank of `core` unless said, which has its square of numbers for each matrix."""
TARGETS = {
    "lora": ["query", "key", "value", "dense"],
    "lora_b": ["query", "key", "value", "dense"],
    "lora_public": ["value", "dense"],
}
"""What LoRA adapts. Queries and keys have 2% of the first gradient's squared length, and 22% of the trained numbers."""
HEAD_RATE = 3e-4
"""The head's learning rate, the same for every variant; that of the rest is what a search chooses."""


class Classifier(nn.Module):
    """MiniLM's upper layers and the head; sentences come as their numbers in a table of what lies below.

    Args:
        variant: what of the layers trains.
        top: how many layers.
        name: of the encoder.
    """

    def __init__(self, variant: str, top: int, name: str) -> None:
        super().__init__()
        whole = encoder(name)
        self.layers: Any = whole.encoder.layer[-top:]
        if variant in TARGETS:
            _adapt(self.layers, variant)
        if variant == "lora_public":
            _set_directions(self.layers, whole)
        if variant == "bitfit":
            for name, parameter in self.layers.named_parameters():
                parameter.requires_grad_("bias" in name)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, hidden: Float[Tensor, "n t d"], real: Bool[Tensor, "n t"]) -> Float[Tensor, "n 2"]:
        mask = real[:, None, None, :].expand(-1, 1, real.shape[1], -1)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        # At unit length, as MiniLM's sentences are compared: else the head's gradients would fill the clip.
        logits: Tensor = self.head(F.normalize((hidden * real[:, :, None]).sum(1)))
        return logits

    def groups(self, lr: float) -> list[dict[str, Any]]:
        """For an optimizer: what is trained of the layers, and the head."""
        inner = [p for p in self.layers.parameters() if p.requires_grad]
        return [{"params": inner, "lr": lr}, {"params": list(self.head.parameters()), "lr": HEAD_RATE}]


def encoder(name: str = "minilm") -> Any:
    """All of MiniLM, as it comes or as a warm start left it."""
    import transformers

    return transformers.AutoModel.from_pretrained(
        model_folder(name),
        add_pooling_layer=False,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def _adapt(layers: nn.ModuleList, variant: str) -> None:
    """Add LoRA, in all variants but `lora` of B alone; nothing else of the layers trains.

    Above B = 0 A gets no gradient, only noise, which Adam would turn into steps of full length.
    """
    import peft

    layers.requires_grad_(False)
    config = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=TARGETS[variant])
    peft.inject_adapter_in_model(config, layers)
    for name, parameter in layers.named_parameters():
        if variant != "lora" and "lora_A" in name:
            parameter.requires_grad_(False)


def _set_directions(layers: nn.ModuleList, whole: Any) -> None:
    """Every A by what public text sends into it; B = 0, so that the adapters change nothing of that yet."""
    adapters = {name: module for name, module in layers.named_modules() if name.endswith("lora_A.default")}
    for name, second in second_moments(whole, adapters, TOKENS).items():
        layers.get_parameter(f"{name}.weight").data.copy_(leading(second, RANK))


def add_cores(model: Classifier, name: str, public: Path, rank: int) -> None:
    """Once there is a head: where gradients lie depends on it. It is released, and the texts are public."""
    found = cores.sides(encoder(name), _weights(model), cores.public_ids(public, TOKENS))
    cores.adapt(model.layers, found, rank)


def turn_cores(model: Classifier, optimizer: torch.optim.Optimizer, name: str, public: Path) -> None:
    """Under the present head and weights, both released."""
    whole = encoder(name)
    for place, layer in enumerate(model.layers, start=LAYERS - len(model.layers)):
        whole.encoder.layer[place] = layer
    for core in cores.renew(whole, _weights(model), cores.public_ids(public, TOKENS)):
        # What had gathered there points elsewhere now; how long steps are stays as it was.
        optimizer.state[core]["exp_avg"].zero_()


def _weights(model: Classifier) -> Float[Tensor, " d"]:
    """Of the difference of the logits."""
    return (model.head.weight[1] - model.head.weight[0]).detach()
