"""Find which loss per example is a model's own.

Names do not tell: GPT2LMHeadModel and LlamaForCausalLM compare the logits at a token with the next label,
BartForCausalLM and T5ForConditionalGeneration with the label of that place. So a language model is asked: its own
loss of one made-up record is compared with both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from quietgrad.integrations.hugging_face.example_losses import CAUSAL, IGNORED, TOKENS, example_losses

TOLERANCE = 0.02
"""Some models take the logarithm in bfloat16, whose numbers are 0.8% apart."""


def loss_kind(model: nn.Module) -> str | None:
    """Return the kind for `example_losses`; None where the model's own loss is no mean over labelled tokens.

    Args:
        model: of transformers, without wrappers.
    """
    named: str | None = getattr(model, "loss_type", None)
    if not is_language_model(model):
        return named
    return _compared(model) or (named if named in CAUSAL | TOKENS else None)


def is_language_model(model: nn.Module) -> bool:
    """Ask whether the logits of a model are of the tokens of a vocabulary."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    return head is not None and vocabulary(model) is not None


def vocabulary(model: nn.Module) -> int | None:
    """Return how many tokens a label may be of."""
    config = getattr(model, "config", None)
    size = getattr(config.get_text_config(decoder=True), "vocab_size", None) if config is not None else None
    return None if size is None else int(size)


def is_sequence_to_sequence(model: nn.Module) -> bool:
    """Ask whether the labels are a sequence of their own, which the decoder reads too."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def _compared(model: nn.Module) -> str | None:
    """Return the kind whose loss of a made-up record is nearest to the model's own, if it is near at all."""
    record = _made_up(model)
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.no_grad():
            outputs = model(**record)
            own, logits = outputs["loss"], outputs["logits"]
            found = {
                kind: _distance(logits, record["labels"], kind, own)
                for kind in ("ForCausalLM", "ForMaskedLM")
            }
    except Exception:  # it needs more than token numbers, such as images; what it raises then is its own
        return None
    finally:
        for module, mode in modes.items():
            module.training = mode
    nearest = min(found, key=lambda kind: found[kind])
    return nearest if found[nearest] <= TOLERANCE else None


def _made_up(model: nn.Module) -> dict[str, Tensor]:
    """Make two rows of random tokens, one label of which does not count."""
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    ids, labels = torch.randint(0, vocabulary(model) or 1, (2, 1, 8), generator=generator)
    labels[0, 3] = IGNORED
    return {"input_ids": ids.to(device), "labels": labels.to(device)}


def _distance(logits: Any, labels: Tensor, kind: str, own: Any) -> float:
    """Return the relative distance of a kind's loss from the model's own."""
    return float((example_losses(logits, labels, kind)[0] - own.float()).abs() / own.float().abs())
