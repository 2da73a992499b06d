"""What a sharded model takes before its first step: refusals by name, agreement of the ranks, shared coins."""

from __future__ import annotations

import random
import secrets
import warnings
from collections.abc import Callable

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from quietgrad._capture.fsdp import ShardedParameters, is_fsdp
from quietgrad._collective import Facts, Reducer
from quietgrad._independence.in_loop import ONE_IN
from quietgrad._mechanism.clipping import RowClip
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._noise.gaussian import Gaussian
from quietgrad._representations.base import Identity
from quietgrad._representations.masks.mask import RandomMask
from quietgrad._representations.preconditioned.scaling import Preconditioned
from quietgrad._sampling.batches import PoissonBatches
from quietgrad._sampling.poisson import PoissonSampler

INSTEAD = "Use reducer=qg.distributed.AllReduce() with the bare model for it."


def unwrap(model: nn.Module, *, warn: bool = True) -> nn.Module:
    """Return the module inside DistributedDataParallel, which is told to send nothing from now on; others as they are.

    DDP would average raw gradients, and send buffers in forwards of which not all ranks run equally many.
    """
    if type(model) is not DistributedDataParallel:
        return model
    if warn:
        warnings.warn(
            "The model is wrapped in DistributedDataParallel, which averages raw gradients. The Privatizer works on "
            "the module inside and switches the wrapper's communication off: the reducer adds up private sums instead.",
            stacklevel=3,
        )
    model.require_backward_grad_sync = model.require_forward_param_sync = False
    inner: nn.Module = model.module
    return inner


def prepare_shards(
    model: nn.Module, mechanism: Mechanism, batches: PoissonBatches | PoissonSampler, reducer: Reducer
) -> ShardedParameters | None:
    """Check that the ranks can train this sharded model together, and gather its parameters once.

    Returns:
        None where every rank holds the whole model.

    Raises:
        ValueError: on every rank, if one of them shards other parameters, or the method needs whole layers.
    """
    if not reducer.lockstep:
        return None
    sharded, _ = reducer.make_together(lambda: _checked(model, mechanism, batches))
    assert sharded is not None
    reducer.agree(lambda: Facts(equal=sharded.describe()))
    sharded.make_leaves()
    return sharded


def _checked(
    model: nn.Module, mechanism: Mechanism, batches: PoissonBatches | PoissonSampler
) -> ShardedParameters:
    if not is_fsdp(model):
        raise ValueError(
            "Sharded() adds up shards, but fully_shard was not applied to the model as a whole. Call "
            "fully_shard(model) after its blocks, or use reducer=qg.distributed.AllReduce()."
        )
    _check_mechanism(mechanism)
    if not isinstance(batches, PoissonBatches):
        raise ValueError(
            "A sharded model takes PoissonBatches: ranks with fewer rows are handed stand-ins, which a DataLoader "
            "cannot do. Pass PoissonBatches(dataset, …) and iterate over batch.split(size)."
        )
    if batches.sampler.users is not None:
        raise ValueError(
            f"A sharded model protects records, not units: the records of a user may fill several passes. {INSTEAD}"
        )
    return ShardedParameters(model)


def _check_mechanism(mechanism: Mechanism) -> None:
    """Refuse what needs whole layers, or noise of all coordinates at once."""
    for release in mechanism.releases:
        kind = type(release.representation)
        if kind not in (Identity, RandomMask, Preconditioned):
            raise ValueError(
                f"{mechanism.name} cannot train a sharded model: {kind.__name__} maps whole layers, and each rank "
                f"holds some rows of them. Gradients as they are, random masks and preconditioned inputs can. {INSTEAD}"
            )
        if not isinstance(release.clip, RowClip):
            raise ValueError(
                f"{type(release.clip).__name__} cannot clip gradients of a sharded model; FlatClip and AutomaticClip "
                f"can. {INSTEAD}"
            )
    # The type itself: a subclass may draw noise that ranks would have to share, or remember it.
    if type(mechanism.noise) is not Gaussian:
        raise ValueError(
            f"{type(mechanism.noise).__name__} cannot be drawn shard by shard; Gaussian noise can. {INSTEAD}"
        )
    for post in mechanism.post:
        raise ValueError(f"{type(post).__name__} works on whole gradients. {INSTEAD}")


def shared_coin(reducer: Reducer) -> Callable[[], bool]:
    """Return coins that fall alike on all ranks, one in `ONE_IN` heads."""
    coins = random.Random(reducer.broadcast(lambda: secrets.randbits(128)))
    return lambda: coins.randrange(ONE_IN) == 0


def one_verdict(reducer: Reducer) -> Callable[[Exception | None], None]:
    """Return a function that raises what it is given, or what any other rank is given."""

    def verdict(error: Exception | None) -> None:
        def raise_mine() -> None:
            if error is not None:
                raise error

        reducer.make_together(raise_mine)

    return verdict
