"""Models by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

from torch import nn

from quietgrad.lab.errors import nearest
from quietgrad.lab.models.bert import bert
from quietgrad.lab.models.gep_cnn import gep_cnn
from quietgrad.lab.models.handcrafted import feature_cnn, feature_linear, scatter_cnn, scatter_linear
from quietgrad.lab.models.hf_folder import PREFIX, hf_folder
from quietgrad.lab.models.perceptrons import linear, mlp
from quietgrad.lab.models.resnets import resnet20, wrn_16_4, wrn_28_4
from quietgrad.lab.models.tanh_cnn import end_to_end_cnn, tanh_cnn
from quietgrad.lab.models.text import transformer

MODELS: dict[str, Callable[..., nn.Module]] = {
    "tanh_cnn": tanh_cnn,
    "end_to_end_cnn": end_to_end_cnn,
    "gep_cnn": gep_cnn,
    "resnet20": resnet20,
    "wrn_16_4": wrn_16_4,
    "wrn_28_4": wrn_28_4,
    "linear": linear,
    "mlp": mlp,
    "scatter_linear": scatter_linear,
    "scatter_cnn": scatter_cnn,
    "feature_linear": feature_linear,
    "feature_cnn": feature_cnn,
    "transformer": transformer,
    "bert": bert,
}


def build(name: str, input_shape: tuple[int, ...], num_classes: int, **options: object) -> nn.Module:
    """A freshly initialised model.

    Args:
        name: a key of `MODELS`, or hf:PATH for a folder in Hugging Face's format.
        input_shape: shape of one input, without the batch.
        num_classes: number of outputs.
        options: keywords of the model's own function.
    """
    if name not in MODELS and not name.startswith(PREFIX):
        raise ValueError(
            f"Unknown model={name!r}{nearest(name, MODELS)}. Known: {', '.join(sorted(MODELS))}, hf:PATH."
        )
    if num_classes < 2:
        raise ValueError(f"Expected num_classes >= 2, got {num_classes}. Check the labels of the data.")
    make = partial(hf_folder, name) if name.startswith(PREFIX) else MODELS[name]
    known = set(inspect.signature(make).parameters) - {"input_shape", "num_classes"}
    for option in options:
        if option not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise ValueError(
                f"Unknown option {option!r} of model {name!r}{nearest(option, known)}. Known: {listed}."
            )
    return make(input_shape, num_classes, **options)
