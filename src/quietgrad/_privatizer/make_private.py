"""From a model, an optimizer and a DataLoader to a private run in one call."""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._privatizer.privatizer import Privatizer
from quietgrad._sampling.batches import PoissonBatches
from quietgrad._sampling.padding import PadTo
from quietgrad.accounting.calibrate import calibrate
from quietgrad.methods.dp_sgd import dp_sgd


def make_private(
    model: nn.Module,
    optimizer: Optimizer,
    data_loader: DataLoader[Any],
    *,
    epsilon: float,
    delta: float,
    epochs: float,
    method: Mechanism | None = None,
    pad_to: PadTo | None = None,
    **options: Any,
) -> tuple[PoissonBatches, Privatizer]:
    """Replace a loader by Poisson batches and calibrate a Privatizer to (ε, δ).

        batches, private = qg.make_private(model, optimizer, loader, epsilon=3.0, delta=1e-5, epochs=10)
        for batch in batches:
            for x, y in batch.split(256):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
            optimizer.step()

    Args:
        model: stays as it is.
        optimizer: stays as it is; it must train parameters of this model only.
        data_loader: its data set, batch size (now the expected one), workers and collate_fn are taken over.
        epsilon: the budget of the whole run.
        delta: below 1 / records.
        epochs: expected passes over the data.
        method: any mechanism, `qg.methods.dp_sgd(clip=1.0)` if left out; its noise is calibrated.
        pad_to: length to which records are padded or cut, as of `PoissonBatches`; "longest" states that the loader's
            collate_fn pads to the longest record.
        options: of the Privatizer: `ledger=`, `memory_budget=`, ….

    Returns:
        the batches to iterate over, and the Privatizer, which is to be closed.

    Raises:
        ValueError: the loader cannot be replaced by Poisson draws, or the optimizer trains something else too.
    """
    _check_optimizer(optimizer, model)
    batches = _poisson(data_loader, epochs, pad_to)
    mechanism = calibrate(
        dp_sgd(clip=1.0) if method is None else method, batches, epsilon=epsilon, delta=delta
    )
    return batches, Privatizer(model, mechanism, batches, **options)


def _poisson(loader: DataLoader[Any], epochs: float, pad_to: PadTo | None) -> PoissonBatches:
    size, sampler = _size_and_sampler(loader)
    if size is None or isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            "The data_loader has no batch size, or a data set that can only be read in order: records cannot be drawn "
            "from it. Give a map-style data set and batch_size=."
        )
    if not isinstance(sampler, RandomSampler | SequentialSampler):
        raise ValueError(
            f"The data_loader draws with a {type(sampler).__name__}, but ε counts on every record being drawn "
            "with the same probability. Leave sampler= out; for several ranks see docs/distributed.md."
        )
    if not epochs > 0:
        raise ValueError(f"Expected epochs > 0, got {epochs}.")
    rate = min(1.0, size / len(loader.dataset))  # type: ignore[arg-type]
    return PoissonBatches(
        loader.dataset,
        rate=rate,
        steps=math.ceil(epochs / rate - 1e-9),
        workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pad_to=pad_to,
        device=getattr(loader, "device", None),  # where accelerate hands out batches
    )


def _size_and_sampler(loader: DataLoader[Any]) -> tuple[int | None, Any]:
    """Return the batch size and what draws the records.

    `accelerator.prepare` makes a loader of the old one's batch sampler: the size is there alone.
    """
    inner = loader.batch_sampler
    if loader.batch_size is None and type(inner) is BatchSampler:
        return inner.batch_size, inner.sampler
    return loader.batch_size, loader.sampler


def _check_optimizer(optimizer: Optimizer, model: nn.Module) -> None:
    known = {id(parameter) for parameter in model.parameters()}
    if any(id(p) not in known for group in optimizer.param_groups for p in group["params"]):
        raise ValueError(
            "The optimizer trains parameters that are not of this model, whose gradients would not be private. Make "
            "one module of all that is trained, or a second optimizer for what sees no private data."
        )
