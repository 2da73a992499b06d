"""Models of `diffusers`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, nn

from benchmarks.zoo_entries.base import Entry, Inputs

BLOCKS = {"block_out_channels": (8, 8), "norm_num_groups": 4, "layers_per_block": 1}


def noisy(*shape: int) -> Callable[[int, Generator], Inputs]:
    return lambda n, g: {
        "sample": torch.randn(n, *shape, generator=g),
        "timestep": torch.randint(0, 100, (n,), generator=g),
    }


def conditioned(n: int, g: Generator) -> Inputs:
    return {**noisy(4, 8, 8)(n, g), "encoder_hidden_states": torch.randn(n, 5, 8, generator=g)}


def patches(n: int, g: Generator) -> Inputs:
    return {"hidden_states": torch.randn(n, 4, 8, 8, generator=g), "timestep": torch.randint(0, 100, (n,), generator=g), "class_labels": torch.randint(0, 5, (n,), generator=g)}  # fmt: skip


def picture(n: int, g: Generator) -> Inputs:
    return {"sample": torch.randn(n, 3, 16, 16, generator=g)}


def build(kind: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import diffusers

        model: nn.Module = getattr(diffusers, kind)(**options)
        return model.eval()

    return make


def entries() -> Iterator[Entry]:
    down, up = ("DownBlock2D", "AttnDownBlock2D"), ("AttnUpBlock2D", "UpBlock2D")
    cross_down, cross_up = ("CrossAttnDownBlock2D", "DownBlock2D"), ("UpBlock2D", "CrossAttnUpBlock2D")
    unet = build("UNet2DModel", sample_size=8, in_channels=3, out_channels=3, down_block_types=down, up_block_types=up, attention_head_dim=4, **BLOCKS)  # fmt: skip
    yield Entry("diffusers", "UNet2DModel", unet, noisy(3, 8, 8))
    cross = build("UNet2DConditionModel", sample_size=8, down_block_types=cross_down, up_block_types=cross_up, cross_attention_dim=8, attention_head_dim=2, **BLOCKS)  # fmt: skip
    yield Entry("diffusers", "UNet2DConditionModel", cross, conditioned)
    yield Entry("diffusers", "DiTTransformer2DModel", build("DiTTransformer2DModel", num_attention_heads=2, attention_head_dim=4, in_channels=4, out_channels=4, num_layers=2, norm_num_groups=4, sample_size=8, num_embeds_ada_norm=5), patches)  # fmt: skip
    yield Entry("diffusers", "AutoencoderKL", build("AutoencoderKL", latent_channels=4, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, **BLOCKS), picture)  # fmt: skip
    yield Entry("diffusers", "AutoencoderTiny", build("AutoencoderTiny", encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8, 8), num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1)), picture)  # fmt: skip
    yield Entry("diffusers", "VQModel", build("VQModel", latent_channels=3, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, num_vq_embeddings=8, **BLOCKS), picture)  # fmt: skip
    yield Entry("diffusers", "UNet1DModel", build("UNet1DModel", sample_size=16, in_channels=2, out_channels=2, extra_in_channels=16, block_out_channels=(8, 8), down_block_types=("DownBlock1DNoSkip", "DownBlock1D"), up_block_types=("UpBlock1D", "UpBlock1DNoSkip"), mid_block_type="UNetMidBlock1D", time_embedding_type="fourier", use_timestep_embedding=False), noisy(2, 64))  # fmt: skip
    yield Entry("diffusers", "PriorTransformer", build("PriorTransformer", num_attention_heads=2, attention_head_dim=4, num_layers=1, embedding_dim=8, num_embeddings=5, additional_embeddings=4), lambda n, g: {"hidden_states": torch.randn(n, 8, generator=g), "timestep": torch.randint(0, 100, (n,), generator=g), "proj_embedding": torch.randn(n, 8, generator=g), "encoder_hidden_states": torch.randn(n, 5, 8, generator=g)})  # fmt: skip
