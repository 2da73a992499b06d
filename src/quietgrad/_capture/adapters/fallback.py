"""Any other module: run it again for each sample under `vmap(grad)`, and check that it did what it did before."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils import _pytree as pytree

from quietgrad._capture.adapter import Adapter, Pieces
from quietgrad._capture.adapters.replay import Arrangement, Attempt, Replay, is_too_small, not_reproduced
from quietgrad._capture.call import Call
from quietgrad._capture.layout import Owners, Placement, spread_rows
from quietgrad._gradients.blocks import DenseGrad
from quietgrad._gradients.row_arithmetic import at_least_single


class FallbackAdapter(Adapter):
    """Per-sample gradients of ⟨module(x_i), b_i⟩ by `torch.func`; one object per module.

    The replay must reproduce the recorded outputs, which proves the arrangement of the inputs, the random numbers
    and the buffers to be those of the recorded call.
    """

    replays = True
    reads_parameters = True

    def __init__(self, chunk: int | None = None) -> None:
        self.chunk = chunk
        self._known: dict[int, Arrangement] = {}

    def arguments(self, call: Call) -> tuple[Any, Any]:
        """The call's (args, kwargs), completed where a module's own defaults would not be per sample."""
        return call.args, call.kwargs

    def pieces(
        self, call: Call, layouts: list[Placement | None], backprops: list[Float[Tensor, "n ..."]]
    ) -> Pieces:
        regular = not any(isinstance(layout, Owners) for layout in layouts)
        apart = self._taken_apart(call, layouts, backprops) if regular else None
        together = None
        # A module of numbers alone has no reason to need other samples: one that does not give most outputs sample by
        # sample mixes them, and is refused here, whatever asking the loop would find.
        most_apart = apart is not None and apart.share >= 0.5
        may_share = not regular or most_apart or not takes_numbers_alone(self.arguments(call))
        if (
            may_share
            and (apart is None or apart.share < 1.0)
            and any(layout is not None for layout in layouts)
        ):
            together = self._taken_together(call, layouts, backprops)
        # One record may overflow, or round by more than others do. Its row is dropped then: whether the run is refused
        # must not depend on it. A module that draws random numbers is wrong for most of them.
        possible = [found for found in (together, apart) if found is not None]
        best = max(possible, key=lambda found: found.share, default=None)
        if best is None or is_too_small(best.reproduced):
            raise not_reproduced(call)
        # Where most samples come out alone, one odd record may be why the others had to be taken together.
        call.is_shared = best is together and not most_apart
        call.is_odd = (best is together and most_apart) or best.share < 1.0
        return {name: DenseGrad(at_least_single(rows)) for name, rows in best.rows().items()}

    def _taken_apart(
        self, call: Call, layouts: list[Placement | None], backprops: list[Float[Tensor, "n ..."]]
    ) -> Attempt | None:
        """Run the module again for each sample alone."""
        replay = Replay(call, layouts, backprops, self.arguments(call), self.chunk)
        # What worked for the k-th call in the last batch is tried alone in the next. It is checked against the
        # outputs again, like any other.
        known = self._known.get(call.index)
        best: Attempt | None = None
        for arrangement in [known] if known is not None and replay.fits(known) else replay.arrangements():
            attempt = replay.attempt(arrangement)
            if attempt is not None and (best is None or attempt.share > best.share):
                best = attempt
                if best.share == 1.0:
                    self._known[call.index] = arrangement
                    break
        return best

    def _taken_together(
        self, call: Call, layouts: list[Placement | None], backprops: list[Float[Tensor, "n ..."]]
    ) -> Attempt | None:
        """Run the module again on all samples at once, and send back the output gradients of each sample alone.

        This is how graphs are taken, whose rows belong to samples by an index: no sample can be cut out of the inputs.
        The row of sample i is right, ⟨module(x), b_i⟩ differentiated. But that module(x) mixes no samples is not
        proved by it, so the loop is asked (`Call.is_shared`).
        """
        spread = [
            b if layout is None else spread_rows(b, layout, output.shape)
            for b, layout, output in zip(backprops, layouts, call.outputs, strict=True)
        ]
        replay = Replay(call, [None] * len(layouts), spread, self.arguments(call), self.chunk)
        return replay.attempt((None,) * len(replay.tensors))


def takes_numbers_alone(arguments: tuple[Any, Any]) -> bool:
    """Ask whether tensors come in and none holds integers.

    Integers tell layers of graphs which rows belong together.
    """
    tensors = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor)]
    return bool(tensors) and not any(tensor.dtype in (torch.int64, torch.int32) for tensor in tensors)
