"""Models of `transformers`, from configurations of a few thousand parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, nn

from benchmarks.zoo_entries.base import Entry, Inputs

WORDS, LENGTH, SIDE = 40, 8, 32
SMALL = {
    "vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 32, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "attention_dropout": 0.0, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
PICTURE = {
    "image_size": SIDE, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 24, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
SOUND = {
    **SMALL, "conv_dim": (8, 8), "conv_stride": (4, 4), "conv_kernel": (8, 8), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0, "layerdrop": 0.0,
    "feat_proj_dropout": 0.0, "activation_dropout": 0.0, "hidden_dropout": 0.0,
}  # fmt: skip
PAIR = {
    "vocab_size": WORDS, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 32,
    "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 1}

ENCODERS: dict[str, dict[str, Any]] = {
    "Bert": {}, "Roberta": {}, "XLMRoberta": {}, "Camembert": {}, "Electra": {"embedding_size": 16},
    "Albert": {"embedding_size": 8}, "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
    "MPNet": {}, "Deberta": {"pooler_hidden_size": 16, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "DebertaV2": {"pooler_hidden_size": 16, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "Ernie": {}, "RoFormer": {"embedding_size": 16}, "MegatronBert": {}, "ConvBert": {"embedding_size": 16, "head_ratio": 1},
    "SqueezeBert": {"embedding_size": 16}, "FNet": {}, "Nystromformer": {"num_landmarks": 4, "segment_means_seq_len": 8},
    "Esm": {"mask_token_id": 3, "position_embedding_type": "rotary"}, "LayoutLM": {}, "MobileBert": {"embedding_size": 16, "true_hidden_size": 16, "intra_bottleneck_size": 16},
    "XLNet": {"max_position_embeddings": ..., "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24, "dropout": 0.0}, "Funnel": {"num_hidden_layers": ..., "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24, "block_sizes": [1, 1], "num_decoder_layers": 1},
    "RemBert": {"input_embedding_size": 8, "output_embedding_size": 8}, "Splinter": {}, "Yoso": {}, "Data2VecText": {},
    "ModernBert": {"local_attention": 8, "global_attn_every_n_layers": 1, "reference_compile": False}, "XLM": {"emb_dim": 16, "n_layers": 2, "n_heads": 2, "dropout": 0.0},
    "Luke": {"entity_vocab_size": 10, "entity_emb_size": 8}, "RobertaPreLayerNorm": {},
}  # fmt: skip
DECODERS: dict[str, dict[str, Any]] = {
    "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "GPTNeo": {"num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "embed_dropout": 0.0, "resid_dropout": 0.0},
    "GPTNeoX": {}, "GPTJ": {"n_embd": 16, "n_layer": 2, "n_head": 2, "rotary_dim": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "OPT": {"ffn_dim": 24, "word_embed_proj_dim": 16, "dropout": 0.0}, "Bloom": {"n_layer": 2, "n_head": 2, "hidden_dropout": 0.0},
    "Llama": GROUPED, "Mistral": GROUPED, "Qwen2": GROUPED, "Qwen3": {**GROUPED, "head_dim": 8}, "Gemma": {**GROUPED, "head_dim": 8},
    "Gemma2": {**GROUPED, "head_dim": 8}, "Phi": {"resid_pdrop": 0.0}, "Phi3": {**GROUPED, "resid_pdrop": 0.0}, "Falcon": {"hidden_dropout": 0.0},
    "StableLm": {**GROUPED}, "Olmo": GROUPED, "Olmo2": GROUPED, "Starcoder2": {**GROUPED, "residual_dropout": 0.0, "embedding_dropout": 0.0}, "Cohere": GROUPED,
    "Granite": GROUPED, "CodeGen": {"n_embd": 16, "n_layer": 2, "n_head": 4, "num_attention_heads": 4, "rotary_dim": 4, "n_positions": 32, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "CTRL": {"n_embd": 16, "n_layer": 2, "n_head": 2, "dff": 24, "n_positions": 32, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
    "OpenAIGPT": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "Persimmon": {"hidden_dropout": 0.0}, "Mixtral": {**GROUPED, "num_local_experts": 2, "num_experts_per_tok": 1, "output_router_logits": False},
    "Mamba": {"state_size": 4, "num_hidden_layers": 2, "intermediate_size": 32, "time_step_rank": 2, "use_cache": False}, "BioGpt": {"layerdrop": 0.0},
    "Mamba2": {"num_heads": 4, "head_dim": 8, "state_size": 4, "n_groups": 1, "chunk_size": 4, "use_cache": False}, "Rwkv": {"attention_hidden_size": 16, "context_length": 16},
    "Nemotron": GROUPED, "Glm": {**GROUPED, "head_dim": 8}, "SmolLM3": GROUPED, "Helium": {**GROUPED, "head_dim": 8}, "XGLM": {"d_model": 16, "num_layers": 2, "attention_heads": 2, "ffn_dim": 24, "dropout": 0.0, "activation_dropout": 0.0},
}  # fmt: skip
PAIRS: dict[str, dict[str, Any]] = {
    "T5": {"d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}, "Bart": {}, "MBart": {}, "Pegasus": {}, "Marian": {}, "Blenderbot": {},
    "BlenderbotSmall": {}, "M2M100": {}, "LongT5": {"d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0, "local_radius": 3},
    "UMT5": {"d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}, "PLBart": {}, "MT5": {"d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0},
}  # fmt: skip
PICTURES: dict[str, dict[str, Any]] = {
    "ViT": {}, "DeiT": {}, "Beit": {"use_relative_position_bias": True, "vocab_size": 8}, "Data2VecVision": {"use_relative_position_bias": True},
    "Swin": {"patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}, "Swinv2": {"patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
    "ConvNext": {"hidden_sizes": [8, 8, 12, 16], "depths": [1, 1, 1, 1], "patch_size": 4}, "ConvNextV2": {"hidden_sizes": [8, 8, 12, 16], "depths": [1, 1, 1, 1], "patch_size": 4},
    "ResNet": {"embedding_size": 8, "hidden_sizes": [8, 8, 12, 16], "depths": [1, 1, 1, 1]}, "RegNet": {"embedding_size": 8, "hidden_sizes": [8, 8, 12, 16], "depths": [1, 1, 1, 1], "groups_width": 4},
    "PoolFormer": {"hidden_sizes": [8, 8, 12, 16], "depths": [1, 1, 1, 1]}, "Segformer": {"hidden_sizes": [8, 8, 12, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 8},
    "MobileNetV1": {"depth_multiplier": 0.25, "min_depth": 8}, "MobileNetV2": {"depth_multiplier": 0.25, "min_depth": 8}, "MobileViT": {"hidden_sizes": [12, 16, 20], "neck_hidden_sizes": [4, 8, 8, 12, 12, 16, 32]},
    "Dinov2": {}, "Pvt": {"hidden_sizes": [8, 8, 12, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2], "patch_sizes": [4, 2, 2, 2]},
    "Cvt": {"embed_dim": [8, 12, 16], "num_heads": [1, 2, 2], "depth": [1, 1, 1], "drop_rate": [0.0, 0.0, 0.0], "drop_path_rate": [0.0, 0.0, 0.0]},
    "Levit": {"image_size": 64, "hidden_sizes": [16, 24, 32], "depths": [1, 1, 1], "num_attention_heads": [2, 2, 2], "key_dim": [4, 4, 4]},
    "FocalNet": {"embed_dim": 8, "depths": [1, 1], "focal_levels": [2, 2], "focal_windows": [3, 3], "patch_size": 4, "hidden_sizes": [8, 16]}, "Bit": {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_groups": 2},
    "Van": {"hidden_sizes": [8, 8, 12, 16], "depths": [1, 1, 1, 1]}, "SiglipVision": {}, "CLIPVision": {}, "ViTMSN": {}, "PvtV2": {"hidden_sizes": [8, 8, 12, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2]},
    "EfficientNet": {"width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 64}, "Hiera": {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "image_size": [32, 32], "patch_size": [7, 7], "query_stride": [2, 2], "masked_unit_size": [4, 4], "num_query_pool": 1}, "Dinov2WithRegisters": {}, "IJepa": {},
}  # fmt: skip
SOUNDS: dict[str, dict[str, Any]] = {
    "Wav2Vec2": {}, "Hubert": {}, "WavLM": {}, "UniSpeech": {}, "Data2VecAudio": {}, "SEW": {"squeeze_factor": 1}, "Wav2Vec2Conformer": {},
}  # fmt: skip


WIDE: list[tuple[str, str, dict[str, Any]]] = [
    ("Bert", "ForSequenceClassification", {}), ("Roberta", "ForMaskedLM", {}), ("DebertaV2", "Model", {"pooler_hidden_size": 256, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    ("GPT2", "LMHeadModel", {"n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 128, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    ("Llama", "ForCausalLM", {"num_key_value_heads": 2}), ("Qwen3", "Model", {"num_key_value_heads": 2, "head_dim": 64}),
    ("T5", "Model", {"d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 4, "num_heads": 4, "dropout_rate": 0.0}),
]  # fmt: skip
"""Of 4 layers, 256 wide, on 64 of 1000 words: sizes at which the ratio says something."""


def long_words(n: int, g: Generator) -> Inputs:
    return {"input_ids": torch.randint(4, 1000, (n, 64), generator=g)}


def long_pairs(n: int, g: Generator) -> Inputs:
    return {**long_words(n, g), "decoder_input_ids": torch.randint(4, 1000, (n, 64), generator=g)}


def words(n: int, g: Generator) -> Inputs:
    return {"input_ids": torch.randint(4, WORDS, (n, LENGTH), generator=g)}


def padded_words(n: int, g: Generator) -> Inputs:
    """One text has but one word."""
    ids = torch.randint(4, WORDS, (n, LENGTH), generator=g)
    there = (
        torch.arange(LENGTH)[None] < torch.tensor([LENGTH - 2 * (i % 3) for i in range(n - 1)] + [1])[:, None]
    )
    return {"input_ids": torch.where(there, ids, 0), "attention_mask": there.long()}


def pairs(n: int, g: Generator) -> Inputs:
    return {
        "input_ids": torch.randint(4, WORDS, (n, LENGTH), generator=g),
        "decoder_input_ids": torch.randint(4, WORDS, (n, 5), generator=g),
    }


def sounds(n: int, g: Generator) -> Inputs:
    return {"input_values": torch.randn(n, 400, generator=g)}


def pictures(side: int) -> Callable[[int, Generator], Inputs]:
    return lambda n, g: {"pixel_values": torch.randn(n, 3, side, side, generator=g)}


def build(name: str, options: dict[str, Any], head: str) -> Callable[[], nn.Module]:
    """Make a model; options that are `...` are left out, as some configurations refuse them."""

    def make() -> nn.Module:
        import transformers

        given = {key: value for key, value in options.items() if value is not ...}
        config = getattr(transformers, f"{name}Config")(**given)
        if hasattr(config, "num_experts_per_tok"):
            config._experts_implementation = "eager"  # the default takes no float64
        model: nn.Module = getattr(transformers, f"{name}{head}")(config)
        return model.eval()

    return make


def entries() -> Iterator[Entry]:
    def entry(name: str, options: dict[str, Any], head: str, inputs: Any) -> Entry:
        return Entry("transformers", f"{name}{head}", build(name, options, head), inputs)

    for name, own in ENCODERS.items():
        texts = words if name in ("FNet", "XLNet", "Funnel", "XLM", "Luke") else padded_words
        yield entry(name, {**SMALL, **own}, "Model", texts)
    for name, own in DECODERS.items():
        yield entry(name, {**SMALL, **own}, "Model", words)
    for name in ("Bert", "Roberta"):
        yield entry(name, SMALL, "ForSequenceClassification", padded_words)
        yield entry(name, SMALL, "ForMaskedLM", words)
    for name, head in (("GPT2", "LMHeadModel"), ("Llama", "ForCausalLM"), ("OPT", "ForCausalLM"), ("GPTNeoX", "ForCausalLM"),
                       ("GPT2", "ForSequenceClassification")):  # fmt: skip
        yield entry(name, {**SMALL, **DECODERS[name]}, head, words)
    for name, own in PAIRS.items():
        yield entry(name, {**PAIR, **own}, "Model", pairs)
    yield entry("T5", {**PAIR, **PAIRS["T5"]}, "ForConditionalGeneration", pairs)
    for name, own in PICTURES.items():
        side = own.get("image_size", SIDE)
        yield entry(name, {**PICTURE, **own}, "Model", pictures(side if isinstance(side, int) else side[0]))
    for name, own in SOUNDS.items():
        yield entry(name, {**SOUND, **own}, "Model", sounds)
    wide = {
        **SMALL,
        "vocab_size": 1000,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
        "max_position_embeddings": 128,
    }
    for name, head, own in WIDE:
        inputs = long_pairs if name == "T5" else long_words
        yield Entry("transformers", f"{name}{head}, 4 × 256", build(name, {**wide, **own}, head), inputs)
    picture = {
        **PICTURE,
        "image_size": 64,
        "hidden_size": 192,
        "num_hidden_layers": 4,
        "num_attention_heads": 3,
        "intermediate_size": 768,
    }
    yield Entry("transformers", "ViTModel, 4 × 192", build("ViT", picture, "Model"), pictures(64))
