"""Models of `transformers` by what they are for: detection, segmentation, speech, time series, experts, states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor, nn

from benchmarks.zoo_entries.base import Entry, Inputs
from benchmarks.zoo_entries.hugging_face import (
    GROUPED,
    LENGTH,
    PAIR,
    PICTURE,
    SMALL,
    SOUND,
    build,
    pairs,
    pictures,
    sounds,
    words,
)

HEADS = {**GROUPED, "head_dim": 8}
EXPERTS = {
    **HEADS, "use_cache": False, "num_experts": 3, "num_local_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 12, "moe_num_experts": 3, "moe_k": 2,
}  # fmt: skip
LATENT = {
    **SMALL, "num_key_value_heads": 2, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_group": 2,
    "topk_group": 1, "moe_intermediate_size": 12, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4,
}  # fmt: skip
SWITCH = {
    "vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2, "num_experts": 3, "expert_capacity": 64,
    "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "dropout_rate": 0.0, "router_jitter_noise": 0.0, "pad_token_id": 0, "decoder_start_token_id": 1,
}  # fmt: skip
MIXERS = {"mamba_d_state": 4, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_chunk_size": 4, "mamba_expand": 2, "mamba_d_conv": 2, "mamba_dt_rank": 2}  # fmt: skip

WORDED: dict[str, dict[str, Any]] = {
    "Gemma3Text": HEADS, "Cohere2": GROUPED, "GPTBigCode": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "Mpt": {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": 32}, "Olmo3": {**GROUPED, "sliding_window": 4}, "Arcee": HEADS, "Apertus": GROUPED, "SeedOss": {**HEADS, "residual_dropout": 0.0},
    "Exaone4": {**GROUPED, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}, "DiffLlama": {"num_key_value_heads": 2}, "Doge": GROUPED, "VaultGemma": HEADS, "HunYuanDenseV1": HEADS,
    "Ministral": HEADS, "Glm4": HEADS, "GPTNeoXJapanese": {"intermediate_multiple_size": 2}, "NanoChat": GROUPED, "MiniCPM3": {**LATENT}, "BitNet": GROUPED, "Jais2": GROUPED,
    "Longformer": {"attention_window": 4}, "BigBird": {"attention_type": "original_full"}, "IBert": {"quant_mode": False}, "XLMRobertaXL": {}, "EuroBert": GROUPED, "Lilt": {}, "Flaubert": {"emb_dim": 16, "n_layers": 2, "n_heads": 2, "dropout": 0.0},
    "RoCBert": {"pronunciation_embed_dim": 8, "shape_embed_dim": 8, "pronunciation_vocab_size": 40, "shape_vocab_size": 40}, "Tapas": {}, "MarkupLM": {}, "Mra": {"block_per_row": 1},
    "Canine": {"num_hash_buckets": 20, "downsampling_rate": 2, "upsampling_kernel_size": 2, "local_transformer_stride": 4}, "LayoutLMv3": {"visual_embed": False, "coordinate_size": 2, "shape_size": 4}, "NomicBert": {}, "BertGeneration": {},
    "Bros": {"dim_bbox_sinusoid_emb_2d": 8, "dim_bbox_sinusoid_emb_1d": 2, "dim_bbox_projection": 4},
}  # fmt: skip
EXPERT: dict[str, dict[str, Any]] = {
    "Qwen2Moe": EXPERTS, "Qwen3Moe": EXPERTS, "Olmoe": {**EXPERTS, "num_key_value_heads": 2}, "Phimoe": EXPERTS, "GraniteMoe": EXPERTS, "GptOss": {**EXPERTS, "sliding_window": 4}, "JetMoe": {**EXPERTS, "kv_channels": 8, "num_experts_per_tok": 2},
    "DeepseekV2": {**LATENT, "topk_method": "greedy"}, "DeepseekV3": LATENT, "Glm4Moe": {**EXPERTS, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1},
    "Dots1": {**EXPERTS, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1, "layer_types": ["full_attention"] * 2}, "Ernie4_5_Moe": {**EXPERTS, "moe_layer_start_index": 1}, "GraniteMoeShared": {**EXPERTS, "shared_intermediate_size": 12}, "FlexOlmo": {**EXPERTS, "num_key_value_heads": 2},
    "HunYuanMoEV1": EXPERTS, "MiniMax": {**EXPERTS, "block_size": 4, "layer_types": ["linear_attention", "full_attention"]}, "Lfm2Moe": {**EXPERTS, "num_experts": 3, "num_dense_layers": 1, "layer_types": ["conv", "full_attention"]},
}  # fmt: skip
STATES: dict[str, dict[str, Any]] = {
    "FalconMamba": {"state_size": 4, "intermediate_size": 32, "time_step_rank": 2, "use_cache": False}, "Bamba": {**HEADS, **MIXERS, "attn_layer_indices": [1], "num_key_value_heads": 2},
    "RecurrentGemma": {**HEADS, "lru_width": 16, "conv1d_width": 2, "attention_window_size": 4, "block_types": ["recurrent", "attention"]}, "FalconH1": {**HEADS, **MIXERS, "mamba_d_ssm": 32}, "Lfm2": {**HEADS, "layer_types": ["conv", "full_attention"], "block_ff_dim": 24},
    "xLSTM": {"num_heads": 2, "qk_dim_factor": 0.5, "num_blocks": 2, "embedding_dim": 16, "chunk_size": 4, "use_cache": False}, "Jamba": {**GROUPED, "num_experts": 2, "num_experts_per_tok": 1, "use_mamba_kernels": False, "mamba_d_state": 4, "mamba_dt_rank": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1, "use_cache": False},
    "GraniteMoeHybrid": {**EXPERTS, **MIXERS, "shared_intermediate_size": 12, "layer_types": ["mamba", "attention"]}, "Zamba2": {"num_key_value_heads": 2, "mamba_d_state": 4, "mamba_ngroups": 1, "n_mamba_heads": 4, "mamba_headdim": 8, "chunk_size": 4, "layers_block_type": ["mamba", "hybrid"], "hybrid_layer_ids": [1], "num_mem_blocks": 1, "use_cache": False},
    "Qwen3Next": {**EXPERTS, "linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 4, "linear_value_head_dim": 4, "layer_types": ["linear_attention", "full_attention"]},
}  # fmt: skip
SPOKEN: dict[str, dict[str, Any]] = {
    "UniSpeechSat": {}, "SEWD": {"squeeze_factor": 1, "pos_att_type": ["p2c", "c2p"]},
}  # fmt: skip
BACKBONE: dict[str, Any] = {
    "embedding_size": 8,
    "hidden_sizes": [8, 8, 12, 16],
    "depths": [1, 1, 1, 1],
    "out_features": ["stage4"],
}
LEVELS: dict[str, Any] = {**BACKBONE, "out_features": ["stage2", "stage3", "stage4"]}
FINDER: dict[str, Any] = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
    "num_queries": 5, "dropout": 0.0, "num_labels": 3, "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None,
}  # fmt: skip
DRAWN: dict[str, dict[str, Any]] = {
    "DINOv3ViT": {}, "VitDet": {"window_block_indices": [0], "window_size": 2}, "ViTMAE": {"decoder_hidden_size": 8, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2, "decoder_intermediate_size": 12, "mask_ratio": 0.0},
    "Aimv2Vision": {}, "Siglip2Vision": {}, "MobileViTV2": {"base_attn_unit_dims": [8, 8, 8], "width_multiplier": 0.25}, "SwiftFormer": {"depths": [1, 1, 1, 1], "embed_dims": [8, 8, 12, 16], "drop_path_rate": 0.0, "image_size": 64},
    "DINOv3ConvNext": {"hidden_sizes": [8, 8, 12, 16], "depths": [1, 1, 1, 1]}, "GLPN": {"hidden_sizes": [8, 8, 12, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2]}, "Pixio": {}, "Swin2SR": {"embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "patch_size": 1, "image_size": 16},
}  # fmt: skip


def recorded(*shape: int, name: str = "input_features") -> Any:
    return lambda n, g: {name: torch.randn(n, *shape, generator=g)}


def transcribed(n: int, g: Generator) -> Inputs:
    """Spectrograms and what was said so far."""
    return {
        "input_features": torch.randn(n, 4, 16, generator=g),
        "decoder_input_ids": torch.randint(4, 40, (n, 5), generator=g),
    }


def spoken_letters(n: int, g: Generator) -> Inputs:
    return {**sounds(n, g), "labels": torch.randint(4, 40, (n, 2), generator=g)}


def series(steps: int, channels: int) -> Any:
    return recorded(steps, channels, name="past_values")


def forecast(n: int, g: Generator) -> Inputs:
    """The past with lags, features of time, and the future that the decoder reads."""
    return {
        "past_values": torch.randn(n, 12, generator=g),
        "past_time_features": torch.randn(n, 12, 2, generator=g),
        "past_observed_mask": torch.ones(n, 12),
        "future_values": torch.randn(n, 4, generator=g),
        "future_time_features": torch.randn(n, 4, 2, generator=g),
    }


def boxed(side: int) -> Any:
    """Pictures with one to three boxes each: center, width and height, then which of them exist."""

    def made(n: int, g: Generator) -> Inputs:
        return {
            **pictures(side)(n, g),
            "boxes": torch.rand(n, 3, 4, generator=g) * 0.4 + 0.2,
            "classes": torch.randint(0, 3, (n, 3), generator=g),
            "count": torch.randint(1, 4, (n,), generator=g),
        }

    return made


def matching_losses(model: nn.Module, inputs: Inputs) -> Tensor:
    """The losses of each picture's boxes, after Hungarian matching within it."""
    from transformers.loss.loss_for_object_detection import ForObjectDetectionLoss

    outputs: Any = model(pixel_values=inputs["pixel_values"])
    found = []
    for i, count in enumerate(inputs["count"].tolist()):
        target = {"class_labels": inputs["classes"][i, :count], "boxes": inputs["boxes"][i, :count].float()}
        loss = ForObjectDetectionLoss(
            outputs.logits[i : i + 1].float(),  # the loss has constants in float32
            [target],
            outputs.logits.device,
            outputs.pred_boxes[i : i + 1].float(),
            getattr(model, "config"),  # noqa: B009
        )
        found.append(loss[0])
    return torch.stack(found)


def letter_losses(model: nn.Module, inputs: Inputs) -> Tensor:
    """Connectionist temporal classification of each recording."""
    outputs: Any = model(input_values=inputs["input_values"])
    scores = outputs.logits.log_softmax(-1).transpose(0, 1)
    n, spoken = len(inputs["labels"]), inputs["labels"]
    lengths = torch.full((n,), scores.shape[0]), torch.full((n,), spoken.shape[1])
    return nn.functional.ctc_loss(scores, spoken, *lengths, blank=0, reduction="none")


def prediction(result: Any) -> Tensor:
    """What a model predicts; of several quantiles or parameters the first."""
    found: Any = getattr(result, "prediction_outputs", None)
    first: Tensor = found[0] if isinstance(found, tuple) else found
    return first


def entries() -> Iterator[Entry]:
    def entry(family: str, name: str, options: dict[str, Any], head: str, inputs: Any, **more: Any) -> Entry:
        return Entry(family, f"{name}{head}", build(name, options, head), inputs, **more)

    for name, own in WORDED.items():
        yield entry("transformers", name, {**SMALL, **own}, "Model", _words_of(name))
    for name, own in DRAWN.items():
        side = own.get("image_size", 32)
        yield entry("transformers", name, {**PICTURE, **own}, "Model", _pictures_of(name, side))

    for name, own in EXPERT.items():
        yield entry("experts", name, {**SMALL, **own}, "Model", words)
    yield entry(
        "experts",
        "Mixtral",
        {**SMALL, **GROUPED, "num_local_experts": 3, "num_experts_per_tok": 2},
        "ForCausalLM",
        words,
    )
    yield entry("experts", "SwitchTransformers", SWITCH, "Model", pairs)
    yield entry("experts", "SwitchTransformers", SWITCH, "ForConditionalGeneration", pairs)
    yield Entry(
        "experts",
        "SwitchTransformersModel, experts that are full",
        build("SwitchTransformers", {**SWITCH, "expert_capacity": 2}, "Model"),
        pairs,
    )
    yield entry(
        "experts",
        "NllbMoe",
        {
            **PAIR,
            "num_experts": 3,
            "expert_capacity": 64,
            "encoder_sparse_step": 1,
            "decoder_sparse_step": 1,
            "router_dtype": "float32",
        },
        "Model",
        pairs,
    )

    for name, own in STATES.items():
        yield entry("state space", name, {**SMALL, **own, "use_cache": False}, "Model", words)

    detr = {**FINDER, "backbone_config": _config("ResNet", BACKBONE)}
    levels = {
        **FINDER,
        "d_model": 32,
        "backbone_config": _config("ResNet", LEVELS),
        "num_feature_levels": 3,
        "encoder_n_points": 2,
        "decoder_n_points": 2,
    }
    for name in ("Detr", "ConditionalDetr", "TableTransformer"):
        yield entry(
            "detection",
            name,
            {**detr, "hidden_size": 16},
            "ForObjectDetection",
            pictures(64),
            output=lambda r: r.pred_boxes,
        )
    yield entry(
        "detection",
        "DeformableDetr",
        levels,
        "ForObjectDetection",
        pictures(64),
        output=lambda r: r.pred_boxes,
    )
    yield Entry(
        "detection",
        "Detr, Hungarian matching",
        build("Detr", detr, "ForObjectDetection"),
        boxed(64),
        losses_of=matching_losses,
    )
    yolos = {**PICTURE, "image_size": [32, 32], "num_detection_tokens": 5, "num_labels": 3}
    yield entry(
        "detection", "Yolos", yolos, "ForObjectDetection", pictures(32), output=lambda r: r.pred_boxes
    )
    yield Entry(
        "detection",
        "Yolos, Hungarian matching",
        build("Yolos", yolos, "ForObjectDetection"),
        boxed(32),
        losses_of=matching_losses,
    )

    stages = {
        "hidden_sizes": [8, 8, 12, 16],
        "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 1, 2, 2],
        "decoder_hidden_size": 8,
    }
    yield entry(
        "segmentation",
        "Segformer",
        {**PICTURE, **stages, "num_labels": 3},
        "ForSemanticSegmentation",
        pictures(32),
    )
    yield entry(
        "segmentation",
        "Beit",
        {
            **PICTURE,
            "num_hidden_layers": 4,
            "out_indices": [1, 2, 3, 4],
            "use_auxiliary_head": False,
            "num_labels": 3,
            "vocab_size": 8,
            "pool_scales": [1, 2],
        },
        "ForSemanticSegmentation",
        pictures(32),
    )
    yield entry(
        "segmentation",
        "DPT",
        {
            **PICTURE,
            "num_hidden_layers": 4,
            "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [8, 8, 8, 8],
            "fusion_hidden_size": 8,
            "num_labels": 3,
            "use_auxiliary_head": False,
            "is_hybrid": False,
        },
        "ForSemanticSegmentation",
        pictures(32),
    )
    yield entry(
        "segmentation",
        "DPT",
        {
            **PICTURE,
            "num_hidden_layers": 4,
            "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [8, 8, 8, 8],
            "fusion_hidden_size": 8,
            "is_hybrid": False,
        },
        "ForDepthEstimation",
        pictures(32),
    )
    yield entry(
        "segmentation",
        "MobileViT",
        {
            **PICTURE,
            "hidden_sizes": [12, 16, 20],
            "neck_hidden_sizes": [4, 8, 8, 12, 12, 16, 32],
            "num_labels": 3,
            "aspp_out_channels": 8,
            "aspp_dropout_prob": 0.0,
        },
        "ForSemanticSegmentation",
        pictures(64),
    )
    yield entry(
        "segmentation",
        "MobileNetV2",
        {"depth_multiplier": 0.25, "min_depth": 8, "num_labels": 3},
        "ForSemanticSegmentation",
        pictures(64),
    )
    swin = _config(
        "Swin",
        {
            "patch_size": 4,
            "embed_dim": 8,
            "depths": [1, 1, 1, 1],
            "num_heads": [2, 2, 2, 2],
            "window_size": 4,
            "image_size": 64,
            "drop_path_rate": 0.0,
            "out_features": ["stage1", "stage2", "stage3", "stage4"],
        },
    )
    yield entry(
        "segmentation",
        "UperNet",
        {
            "backbone_config": swin,
            "hidden_size": 8,
            "num_labels": 3,
            "use_auxiliary_head": False,
            "auxiliary_in_channels": 32,
            "pool_scales": [1, 2],
        },
        "ForSemanticSegmentation",
        pictures(64),
    )
    masks = {
        "backbone_config": swin,
        "num_queries": 4,
        "num_labels": 3,
        "feature_size": 32,
        "mask_feature_size": 32,
        "hidden_dim": 32,
        "encoder_feedforward_dim": 24,
        "dim_feedforward": 24,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "num_attention_heads": 2,
        "dropout": 0.0,
    }
    yield entry(
        "segmentation",
        "Mask2Former",
        masks,
        "ForUniversalSegmentation",
        pictures(64),
        output=lambda r: r.masks_queries_logits,
    )
    former = {
        "backbone_config": swin,
        "decoder_config": _config("Detr", {**FINDER, "backbone_config": _config("ResNet", BACKBONE)}),
        "num_queries": 4,
        "fpn_feature_size": 32,
        "mask_feature_size": 32,
        "num_labels": 3,
    }
    yield entry(
        "segmentation",
        "MaskFormer",
        former,
        "ForInstanceSegmentation",
        pictures(64),
        output=lambda r: r.masks_queries_logits,
    )
    yield entry(
        "segmentation",
        "Eomt",
        {**PICTURE, "num_queries": 4, "num_blocks": 1, "num_upscale_blocks": 1, "num_labels": 3},
        "ForUniversalSegmentation",
        pictures(32),
        output=lambda r: r.masks_queries_logits,
    )

    for name, own in SPOKEN.items():
        yield entry("speech", name, {**SOUND, **own}, "Model", sounds)
    pair = {key: value for key, value in PAIR.items() if key != "max_position_embeddings"}
    ears = {**pair, "num_mel_bins": 4, "max_source_positions": 8, "max_target_positions": 8}
    yield entry("speech", "Whisper", ears, "Model", transcribed)
    yield entry("speech", "Whisper", ears, "ForConditionalGeneration", transcribed)
    yield entry(
        "speech",
        "Speech2Text",
        {**ears, "input_feat_per_channel": 4, "max_source_positions": 20, "conv_channels": 8},
        "Model",
        lambda n, g: {
            "input_features": torch.randn(n, 16, 4, generator=g),
            "decoder_input_ids": torch.randint(4, 40, (n, 5), generator=g),
        },
    )
    yield entry(
        "speech",
        "AST",
        {
            **PICTURE,
            "max_length": 24,
            "num_mel_bins": 16,
            "patch_size": 8,
            "frequency_stride": 8,
            "time_stride": 8,
        },
        "Model",
        recorded(24, 16, name="input_values"),
    )
    yield entry(
        "speech",
        "Wav2Vec2Bert",
        {
            **SMALL,
            "feature_projection_input_dim": 8,
            "conv_depthwise_kernel_size": 3,
            "feat_proj_dropout": 0.0,
            "hidden_dropout": 0.0,
            "activation_dropout": 0.0,
            "conformer_conv_dropout": 0.0,
            "layerdrop": 0.0,
            "mask_time_prob": 0.0,
        },
        "Model",
        recorded(10, 8),
    )
    yield entry(
        "speech",
        "Moonshine",
        {
            **SMALL,
            **GROUPED,
            "encoder_num_hidden_layers": 1,
            "decoder_num_hidden_layers": 1,
            "encoder_num_attention_heads": 2,
            "decoder_num_attention_heads": 2,
            "encoder_num_key_value_heads": 2,
            "decoder_num_key_value_heads": 2,
        },
        "Model",
        lambda n, g: {
            "input_values": torch.randn(n, 1600, generator=g),
            "decoder_input_ids": torch.randint(4, 40, (n, 5), generator=g),
        },
    )
    yield entry(
        "speech",
        "Encodec",
        {
            "num_filters": 2,
            "upsampling_ratios": [2, 2],
            "codebook_size": 8,
            "hidden_size": 8,
            "codebook_dim": 8,
            "num_lstm_layers": 1,
            "use_conv_shortcut": False,
        },
        "Model",
        recorded(1, 64, name="input_values"),
        output=lambda r: r.audio_values,
    )
    yield entry(
        "speech",
        "UnivNet",
        {
            "model_in_channels": 4,
            "model_hidden_channels": 4,
            "num_mel_bins": 4,
            "resblock_stride_sizes": [2, 2],
            "resblock_kernel_sizes": [3, 3],
            "resblock_dilation_sizes": [[1], [1]],
            "kernel_predictor_hidden_channels": 4,
        },
        "Model",
        lambda n, g: {
            "input_features": torch.randn(n, 6, 4, generator=g),
            "noise_sequence": torch.randn(n, 6, 4, generator=g),
        },
        output=lambda r: r.waveforms,
    )
    for name in ("Wav2Vec2", "Hubert"):
        yield Entry(
            "speech",
            f"{name}ForCTC, letters",
            build(name, {**SOUND, "ctc_zero_infinity": True}, "ForCTC"),
            spoken_letters,
            losses_of=letter_losses,
        )
    yield entry("speech", "Wav2Vec2", {**SOUND, "num_labels": 3}, "ForSequenceClassification", sounds)

    patch = {
        "num_input_channels": 2,
        "context_length": 16,
        "patch_length": 4,
        "patch_stride": 4,
        "d_model": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "ffn_dim": 12,
        "prediction_length": 4,
        "norm_type": "layernorm",
        "attention_dropout": 0.0,
        "dropout": 0.0,
        "head_dropout": 0.0,
        "ff_dropout": 0.0,
        "path_dropout": 0.0,
        "positional_dropout": 0.0,
        "scaling": None,
    }
    yield entry("time series", "PatchTST", patch, "Model", series(16, 2))
    yield entry(
        "time series", "PatchTST", {**patch, "loss": "mse"}, "ForPrediction", series(16, 2), output=prediction
    )
    yield Entry(
        "time series",
        "PatchTSTForPrediction, scaled",
        build("PatchTST", {**patch, "scaling": "std", "loss": "mse"}, "ForPrediction"),
        series(16, 2),
        output=prediction,
    )
    mixer = {**patch, "num_layers": 1, "norm_mlp": "LayerNorm"}
    yield entry("time series", "PatchTSMixer", mixer, "Model", series(16, 2))
    yield entry(
        "time series",
        "PatchTSMixer",
        {**mixer, "loss": "mse"},
        "ForPrediction",
        series(16, 2),
        output=prediction,
    )
    lags = {
        **pair,
        "prediction_length": 4,
        "context_length": 8,
        "lags_sequence": [1, 2, 3, 4],
        "num_time_features": 2,
        "scaling": "mean",
        "decoder_start_token_id": None,
        "vocab_size": None,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
    }
    lags = {key: value for key, value in lags.items() if not key.endswith("_id") and key != "vocab_size"}
    for name in ("TimeSeriesTransformer", "Informer"):
        yield entry(
            "time series", name, {**lags, "distil": False} if name == "Informer" else lags, "Model", forecast
        )
    yield entry(
        "time series",
        "TimesFm",
        {
            **SMALL,
            **HEADS,
            "patch_length": 4,
            "context_length": 16,
            "horizon_length": 4,
            "quantiles": [0.1, 0.9],
            "freq_size": 3,
        },
        "ModelForPrediction",
        lambda n, g: {
            "past_values": torch.randn(n, 16, generator=g),
            "freq": torch.zeros(n, dtype=torch.long),
        },
        output=lambda r: r.mean_predictions,
    )


def _config(name: str, options: dict[str, Any]) -> Any:
    try:
        import transformers
    except ImportError:  # the family is left out
        return None
    return getattr(transformers, f"{name}Config")(**options)


def _words_of(name: str) -> Any:
    if name != "Bros":
        return words
    return lambda n, g: {**words(n, g), "bbox": torch.rand(n, LENGTH, 8, generator=g)}


def _pictures_of(name: str, side: int) -> Any:
    if name == "ViTMAE":
        return lambda n, g: {**pictures(side)(n, g), "noise": torch.rand(n, 16, generator=g)}
    return pictures(side)
