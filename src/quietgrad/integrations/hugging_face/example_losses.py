"""Compute one loss per example from a model's logits.

It is the model's own loss of that example alone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

CLASSES = frozenset(
    {
        "ForSequenceClassification",
        "ForImageClassification",
        "ForVideoClassification",
        "ForAudioClassification",
    }
)
TOKENS = frozenset({"ForTokenClassification", "ForMaskedLM"})
CAUSAL = frozenset({"ForCausalLM"})
IGNORED = -100
"""The label of tokens that do not count, as everywhere in transformers."""


def example_losses(
    logits: Float[Tensor, "n ..."], labels: Tensor, kind: str | None, *, smoothing: float = 0.0
) -> Float[Tensor, " n"]:
    """Compute the loss of each example on its own.

    Token losses are averaged over the example's own labelled tokens. Their sum would weigh long texts more where
    nothing is clipped. For the guarantee it makes no difference: the clip bounds every example's gradient.

    A label that is none of the classes does not count: whether a step is refused must not depend on one example.

    Args:
        logits: [n, classes] or [n, tokens, vocabulary].
        labels: [n], [n, tokens], or one target per output; −100 does not count.
        kind: what labels mean, a `loss_type` of transformers: "ForCausalLM" compares the logits at a token with the
            next label, "ForMaskedLM" and "ForTokenClassification" with the label of the same place.
        smoothing: of labels: (1 − s)·nll + s·mean over classes.

    Raises:
        ValueError: the kind of loss is not known.
    """
    if kind in CAUSAL:
        return _tokens(logits[:, :-1], labels[:, 1:], smoothing)
    if kind in TOKENS:
        return _tokens(logits, labels, smoothing)
    if kind in CLASSES:
        return _classes(logits, labels, smoothing)
    raise ValueError(
        f"No loss per example is known for {'this model' if kind is None else f'models of the kind {kind}'}. Pass "
        "compute_loss_func=, or override compute_losses(model, inputs), to return one loss per example: a vector [n]."
    )


def _classes(logits: Float[Tensor, "n o"], labels: Tensor, smoothing: float) -> Float[Tensor, " n"]:
    if labels.shape == logits.shape and logits.shape[1] > 1:
        # Also of whole numbers: a micro-batch without a fraction must not have another loss.
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none").mean(1)
    if labels.is_floating_point() or logits.shape[1] == 1:
        return F.mse_loss(logits.view(len(labels), -1), labels.view(len(labels), -1), reduction="none").mean(
            1
        )
    counted = _counted(labels, logits.shape[1])
    return F.cross_entropy(logits, counted, reduction="none", label_smoothing=smoothing)


def _tokens(
    logits: Float[Tensor, "n t v"], labels: Int64[Tensor, "n t"], smoothing: float
) -> Float[Tensor, " n"]:
    """Average over labelled tokens; an example without any has loss 0."""
    counted = _counted(labels, logits.shape[2])
    each = F.cross_entropy(
        logits.transpose(1, 2).float(),
        counted,
        reduction="none",
        ignore_index=IGNORED,
        label_smoothing=smoothing,
    )
    return each.sum(1) / counted.ne(IGNORED).sum(1).clamp_min(1)


def _counted(labels: Tensor, classes: int) -> Tensor:
    """Return the labels, and −100 in the place of those that are none of the classes."""
    return torch.where((labels >= 0) & (labels < classes), labels, IGNORED)
