"""Adapters of `peft` on a small Llama: only what the adapter adds is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from benchmarks.zoo_entries.base import Entry
from benchmarks.zoo_entries.hugging_face import DECODERS, SMALL, build, words

PROJECTIONS = ["q_proj", "v_proj"]
ADAPTERS: dict[str, dict[str, Any]] = {
    "LoraConfig": {"r": 2, "lora_dropout": 0.0},
    "LoraConfig (dora)": {"r": 2, "use_dora": True},
    "LoraConfig (rslora)": {"r": 2, "use_rslora": True},
    "LoraConfig (embeddings)": {"r": 2, "target_modules": ["q_proj", "embed_tokens"]},
    "IA3Config": {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
    "AdaLoraConfig": {"init_r": 3, "target_r": 2, "total_step": 10},
    "LoHaConfig": {"r": 2},
    "LoKrConfig": {"r": 2},
    "OFTConfig": {"oft_block_size": 4, "r": 0},
    "BOFTConfig": {"boft_block_size": 4},
    "VeraConfig": {"r": 2},
    "HRAConfig": {"r": 2},
    "FourierFTConfig": {"n_frequency": 10},
    "LNTuningConfig": {"target_modules": ["input_layernorm"]},
    "PromptTuningConfig": {"num_virtual_tokens": 3, "target_modules": None},
    "PrefixTuningConfig": {"num_virtual_tokens": 3, "target_modules": None},
    "VBLoRAConfig": {"r": 2, "num_vectors": 4, "vector_length": 4, "topk": 2},
    "MissConfig": {"r": 2},
    "RandLoraConfig": {"r": 2},
    "ShiraConfig": {"r": 2},
    "RoadConfig": {"group_size": 4},
    "C3AConfig": {"block_size": 4},
    "TrainableTokensConfig": {"token_indices": [4, 5, 6], "target_modules": ["embed_tokens"]},
}


def adapted(kind: str, options: dict[str, Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import peft

        base = build("Llama", {**SMALL, **DECODERS["Llama"], "num_key_value_heads": 2}, "ForCausalLM")()
        settings = {"target_modules": PROJECTIONS, "task_type": "CAUSAL_LM", **options}
        if settings["target_modules"] is None:
            del settings["target_modules"]
        config = getattr(peft, kind.split(" ")[0])(**settings)
        model: nn.Module = peft.get_peft_model(base, config)
        for parameter in model.parameters():
            if parameter.requires_grad:  # adapters that start at zero would have no gradients to compare
                nn.init.normal_(parameter, std=0.1) if parameter.is_floating_point() else None
        return model.eval()

    return make


def entries() -> Iterator[Entry]:
    for kind, options in ADAPTERS.items():
        yield Entry("peft", kind.replace("Config", ""), adapted(kind, options), words)
