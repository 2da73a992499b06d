"""Public gradients for a representation: errors that name the remedy, and a private batch among them refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from quietgrad._gradients.stages import PerSampleGrads
from quietgrad._representations.base import Public, PublicLosses


def stream_gradients(public: Public, losses: PublicLosses) -> Iterator[PerSampleGrads]:
    """Yield the gradients of public losses in chunks.

    Raises:
        ValueError: the losses fail on the model, or do not depend on it.
    """
    gradients = public.gradients(losses)
    while True:
        try:
            chunk = next(gradients)
        except StopIteration:
            return
        except (RuntimeError, TypeError) as error:
            raise ValueError(
                f"public_losses failed on the model: {error}. Public inputs need the shape and type that the "
                "model takes, and public_losses(model) returns one loss per public sample."
            ) from error
        if all(block.is_zero for block in chunk.blocks.values()):
            raise ValueError(
                "public_losses do not depend on the model's parameters. Compute them by calling the model that is "
                "given to the function, on public data, with gradients enabled."
            )
        yield chunk
        del chunk


def refuse_private_inputs(grads: PerSampleGrads, public_inputs: Sequence[Tensor]) -> None:
    """Refuse a private batch whose memory public losses fed to the model.

    The same memory, not equal values: whether this raises must not depend on private data. Sees a private batch that
    public losses fed to the model as it is (a loop variable in a closure). Cannot see copies, labels, or public data
    that was once private.

    Raises:
        ValueError: it was fed to the model.
    """
    public = {tensor.untyped_storage().data_ptr() for tensor in public_inputs if tensor.numel()}
    private = grads.first_inputs
    if private is not None and private.untyped_storage().data_ptr() in public:
        raise ValueError(
            "public_losses fed the private batch to the model, so the representation would leak it. Compute it from "
            "public data only; look for a variable of the training loop inside it."
        )
