"""Models of `timm` (which needs torchvision), BatchNorm swapped by `quietgrad.fix`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import nn

import quietgrad as qg
from benchmarks.zoo_entries.base import Entry, real

NAMES: dict[str, int] = {
    "resnet18": 32, "resnet26d": 32, "resnetv2_50": 32, "seresnet18": 32, "ecaresnet26t": 32, "nf_resnet26": 32, "vgg11": 32,
    "densenet121": 32, "mobilenetv2_050": 32, "mobilenetv3_small_050": 32, "efficientnet_b0": 32, "regnetx_002": 32,
    "convnext_atto": 32, "convnextv2_atto": 32, "ghostnet_050": 32, "mixer_s32_224": 224, "resmlp_12_224": 224, "gmlp_ti16_224": 224,
    "vit_tiny_patch16_224": 224, "deit_tiny_patch16_224": 224, "beit_base_patch16_224": 224, "eva02_tiny_patch14_224": 224, "cait_xxs24_224": 224,
    "xcit_nano_12_p16_224": 224, "coat_tiny": 224, "pit_ti_224": 224, "levit_128s": 224, "poolformer_s12": 64, "swin_tiny_patch4_window7_224": 224,
    "tnt_s_patch16_224": 224, "mobilevit_xxs": 64, "edgenext_xx_small": 64, "fastvit_t8": 64, "repvit_m0_9": 64, "inception_next_atto": 64,
}  # fmt: skip


def build(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        options = (
            {}
            if "beit" not in name and "swin" not in name
            else {"depth": 2}
            if "beit" in name
            else {"depths": (1, 1, 1, 1)}
        )
        return qg.fix(timm.create_model(name, num_classes=5, **options)).eval()

    return make


def entries() -> Iterator[Entry]:
    for name, side in NAMES.items():
        yield Entry("timm", name, build(name), real(3, side, side), batch=4)
