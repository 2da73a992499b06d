"""Models of `torchvision`, BatchNorm swapped by `quietgrad.fix`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import nn

import quietgrad as qg
from benchmarks.zoo_entries.base import Entry, real

NAMES: dict[str, int] = {
    "resnet18": 32, "resnext50_32x4d": 32, "squeezenet1_1": 64, "shufflenet_v2_x0_5": 32, "mobilenet_v2": 32,
    "mobilenet_v3_small": 32, "mnasnet0_5": 32, "efficientnet_b0": 32, "regnet_y_400mf": 32, "densenet121": 32,
    "googlenet": 64, "convnext_tiny": 32, "swin_t": 64,
}  # fmt: skip


def build(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import torchvision

        options = {"init_weights": True, "aux_logits": False} if name == "googlenet" else {}
        model: nn.Module = torchvision.models.get_model(name, num_classes=5, **options)
        return qg.fix(model).eval()

    return make


def entries() -> Iterator[Entry]:
    for name, side in NAMES.items():
        yield Entry("torchvision", name, build(name), real(3, side, side), batch=8)
