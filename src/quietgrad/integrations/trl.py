"""TRL's trainers for supervised fine-tuning and direct preference optimization, with private gradients.

trainer = PrivateSFTTrainer(model, SFTConfig(...), privacy=PrivacyArguments(epsilon=8.0, delta=1e-5, pad_to=128), ...)
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from quietgrad._errors import PrivacyError
from quietgrad.integrations.hugging_face import PrivacyArguments, PrivateTraining, example_losses

try:
    from trl import DPOTrainer, SFTTrainer
except ImportError as error:
    raise ImportError("quietgrad.integrations.trl needs trl: pip install 'quietgrad[trl]'.") from error

__all__ = ["PrivateDPOTrainer", "PrivateSFTTrainer"]

ONE_RECORD = (
    "it joins several records to one row, in which they share positions and attention kernels, so that no gradient "
    "of one record exists."
)
"""Why rows must not be packed."""


def refuse_config(args: Any) -> None:
    """Refuse options of a TRL config under which ε would not hold.

    Raises:
        PrivacyError: the config has one of them.
    """
    kind = type(args).__name__
    for name in ("packing", "padding_free"):
        if getattr(args, name, False):
            raise PrivacyError(
                f"{kind}({name}=True) is refused: {ONE_RECORD} Leave it out, and state a length with "
                "PrivacyArguments(pad_to=…)."
            )
    if getattr(args, "activation_offloading", False):
        raise PrivacyError(
            f"{kind}(activation_offloading=True) is refused: per-example gradients are captured from activations "
            "where they are. Leave it out; gradient_checkpointing=True saves memory too."
        )


def refuse_router_loss(trainer: Any) -> None:
    """Refuse the auxiliary loss of a mixture of experts.

    Raises:
        PrivacyError: it would be added.
    """
    if trainer.aux_loss_enabled:
        raise PrivacyError(
            "The router's auxiliary loss is computed from all tokens of the batch, so that it mixes records. Pass "
            f"{type(trainer.args).__name__}(router_aux_loss_coef=0.0)."
        )


class PrivateSFTTrainer(PrivateTraining, SFTTrainer):  # type: ignore[misc]
    """`trl.SFTTrainer` with private gradients.

    The loss of a record is the mean over its labelled tokens: with completion-only or assistant-only loss, over those
    tokens alone.

    Args:
        privacy: budget and method; everything else is an SFTTrainer's.

    Example:
        trainer = PrivateSFTTrainer(
            model, args, privacy=PrivacyArguments(epsilon=8.0, delta=1e-5, pad_to=128), train_dataset=records
        )
    """

    def __init__(
        self, model: Any, args: Any = None, *rest: Any, privacy: PrivacyArguments, **options: Any
    ) -> None:
        refuse_config(args)
        if getattr(args, "loss_type", "nll") not in ("nll", "chunked_nll"):
            raise ValueError(
                f"SFTConfig(loss_type={args.loss_type!r}) has no loss per record here. Take 'nll', or override "
                "compute_losses(model, inputs) to return one loss per example: a vector [n]."
            )
        super().__init__(model, args, *rest, privacy=privacy, **options)
        refuse_router_loss(self)

    def compute_losses(self, model: nn.Module, inputs: MutableMapping[str, Any]) -> Float[Tensor, " n"]:
        """Return the mean loss of each record's labelled tokens."""
        labels = inputs.pop("labels")
        logits = model(**inputs, use_cache=False).logits[:, -labels.shape[1] :]
        return example_losses(logits, labels, "ForCausalLM", smoothing=self.args.label_smoothing_factor)


class PrivateDPOTrainer(PrivateTraining, DPOTrainer):  # type: ignore[misc]
    """`trl.DPOTrainer` with private gradients.

    A record is a prompt with its chosen and its rejected completion.

    Args:
        privacy: budget and method; everything else is a DPOTrainer's.

    Example:
        trainer = PrivateDPOTrainer(
            model, args=args, privacy=PrivacyArguments(epsilon=8.0, delta=1e-5, pad_to=128), train_dataset=pairs
        )
    """

    def __init__(
        self,
        model: Any,
        ref_model: Any = None,
        args: Any = None,
        *,
        privacy: PrivacyArguments,
        **options: Any,
    ) -> None:
        refuse_config(args)
        refuse_preference_losses(args)
        super().__init__(model, args, ref_model=ref_model, privacy=privacy, **options)
        refuse_router_loss(self)

    def compute_losses(self, model: nn.Module, inputs: MutableMapping[str, Any]) -> Float[Tensor, " n"]:
        """Return the loss of each pair."""
        chosen, rejected = self._log_probabilities(model, inputs)
        if self.precompute_ref_logps:
            reference = inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]
        else:
            reference = self.compute_ref_log_probs(self.ref_model or self.model, inputs)
        gains = chosen - reference[0], rejected - reference[1]
        lengths = inputs["completion_mask"].sum(1).clamp_min(1).chunk(2)
        total: Tensor = chosen.new_zeros(len(chosen))
        for name, weight in zip(self.loss_types, self.loss_weights, strict=True):
            total = total + weight * PREFERENCE_LOSSES[name](self, gains, lengths)
        return total

    def _log_probabilities(
        self, model: nn.Module, inputs: MutableMapping[str, Any]
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """Return the log-probabilities of the chosen and of the rejected completions."""
        read = {
            name: value
            for name, value in inputs.items()
            if name not in ("completion_mask", "ref_chosen_logps", "ref_rejected_logps")
        }
        ids, counts = inputs["input_ids"][:, 1:], inputs["completion_mask"][:, 1:]
        logits = model(**read, use_cache=False).logits[:, -ids.shape[1] - 1 : -1].float()
        each = -F.cross_entropy(logits.transpose(1, 2), ids, reduction="none")
        chosen, rejected = (each * counts).sum(1).chunk(2)
        return chosen, rejected


Pair = tuple[Tensor, Tensor]
"""Something of the chosen and of the rejected completions."""


def _sigmoid(trainer: Any, gains: Pair, _: Pair) -> Tensor:
    return -F.logsigmoid(trainer.beta * (gains[0] - gains[1]))


def _hinge(trainer: Any, gains: Pair, _: Pair) -> Tensor:
    return torch.relu(1 - trainer.beta * (gains[0] - gains[1]))


def _ipo(trainer: Any, gains: Pair, lengths: Pair) -> Tensor:
    """(h − 1/(2β))², where h is the gain per token."""
    gain = gains[0] / lengths[0] - gains[1] / lengths[1]
    return (gain - 1 / (2 * float(trainer.beta))).square()


def _robust(trainer: Any, gains: Pair, _: Pair) -> Tensor:
    margin, s = trainer.beta * (gains[0] - gains[1]), float(trainer.label_smoothing)
    return (-(1 - s) * F.logsigmoid(margin) + s * F.logsigmoid(-margin)) / (1 - 2 * s)


def _apo_zero(trainer: Any, gains: Pair, _: Pair) -> Tensor:
    return 1 - torch.sigmoid(trainer.beta * gains[0]) + torch.sigmoid(trainer.beta * gains[1])


PREFERENCE_LOSSES: dict[str, Callable[[Any, Pair, Pair], Tensor]] = {
    "sigmoid": _sigmoid,
    "hinge": _hinge,
    "ipo": _ipo,
    "robust": _robust,
    "apo_zero": _apo_zero,
}
"""Losses of a pair by their name in `DPOConfig(loss_type=…)`."""


def refuse_preference_losses(args: Any) -> None:
    """Refuse losses that compare pairs with each other, and those that have no loss of a pair here.

    Raises:
        ValueError: the config names one.
    """
    names = getattr(args, "loss_type", ["sigmoid"])
    for name in [names] if isinstance(names, str) else names:
        if name.startswith("aot"):
            raise PrivacyError(
                f"DPOConfig(loss_type={name!r}) is refused: it sorts the pairs of a batch and compares them with each "
                "other. Take 'sigmoid'."
            )
        if name not in PREFERENCE_LOSSES:
            raise ValueError(
                f"DPOConfig(loss_type={name!r}) has no loss per pair here. Take one of "
                f"{', '.join(map(repr, PREFERENCE_LOSSES))}."
            )
    for name, plain in (("use_weighting", False), ("ld_alpha", None), ("f_divergence_type", "reverse_kl")):
        if getattr(args, name, plain) != plain:
            raise ValueError(
                f"DPOConfig({name}={getattr(args, name)!r}) has no loss per pair here. Leave it out."
            )
