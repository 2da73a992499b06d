"""Models of `timm` (which needs torchvision), BatchNorm swapped by `quietgrad.fix`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

import quietgrad as qg
from benchmarks.zoo_entries.base import Entry, real

NAMES: dict[str, int] = {
    "resnet10t": 32, "resnet18": 32, "seresnet18": 32, "mobilenetv2_035": 32, "mobilenetv3_small_050": 32, "regnetx_002": 32,
    "convnext_atto": 32, "convnextv2_atto": 32, "ghostnet_050": 32, "inception_next_atto": 64, "mobilevit_xxs": 64, "edgenext_xx_small": 64,
    "repvit_m0_9": 64, "vit_tiny_patch16_224": 64, "deit_tiny_patch16_224": 64, "eva02_tiny_patch14_224": 56, "beit_base_patch16_224": 64,
    "cait_xxs24_224": 64, "xcit_nano_12_p16_224": 64, "gmlp_ti16_224": 64, "mixer_s32_224": 64, "nf_resnet26": 32, "poolformer_s12": 64,
    "efficientnet_b0": 32, "levit_128s": 224,
}  # fmt: skip


def build(name: str, side: int) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        options: dict[str, Any] = {"depth": 2} if "beit" in name else {}
        if name.endswith("_224"):
            options["img_size"] = side
        return qg.fix(timm.create_model(name, num_classes=5, **options)).eval()

    return make


def entries() -> Iterator[Entry]:
    for name, side in NAMES.items():
        yield Entry("timm", name, build(name, side), real(3, side, side), batch=4)
