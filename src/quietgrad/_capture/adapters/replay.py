"""Run a recorded call of a module again, sample by sample, and compare its outputs with the recorded ones."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.utils import _pytree as pytree

from quietgrad._capture.adapters.functional import called_with
from quietgrad._capture.call import Call
from quietgrad._capture.finite import all_finite, finite_gradients
from quietgrad._capture.graph import Graph
from quietgrad._capture.layout import Layout, Placement, candidates
from quietgrad._errors import PrivacyError
from quietgrad._gradients.row_arithmetic import zero_rows
from quietgrad._kernels.generators import fork_generators

Arrangement = tuple[Layout | None, ...]
"""How each tensor among the inputs holds the samples; None: all samples share it."""

MOST_ARRANGEMENTS = 64

REFUSALS = (RuntimeError, ValueError, TypeError, IndexError)
"""What torch raises for shapes that a module does not take, and for operations that vmap does not know."""


@dataclass(frozen=True)
class Attempt:
    """Gradients under one arrangement, and which samples have the recorded outputs under it (on the CPU)."""

    arrangement: Arrangement
    gradients: dict[str, Float[Tensor, "n ..."]]
    reproduced: Bool[Tensor, " n"]

    @property
    def share(self) -> float:
        """The part of the samples that have the recorded outputs."""
        return float(self.reproduced.double().mean())

    def rows(self) -> dict[str, Float[Tensor, "n ..."]]:
        """Return the gradients; NaN, which the clip drops, for samples with other outputs than recorded."""
        if bool(self.reproduced.all()):
            return self.gradients
        others = ~self.reproduced
        return {
            name: rows.masked_fill(others.to(rows.device).view(-1, *[1] * (rows.dim() - 1)), torch.nan)
            for name, rows in self.gradients.items()
        }


class Replay:
    """One recorded call, run again."""

    def __init__(
        self,
        call: Call,
        layouts: list[Placement | None],
        backprops: list[Tensor],
        arguments: tuple[Any, Any],
        chunk: int | None,
    ) -> None:
        self.call, self.layouts, self.backprops, self.chunk = call, layouts, backprops, chunk
        self.n = len(backprops[0])
        leaves, self.spec = pytree.tree_flatten(arguments)
        self.places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.leaves, self.tensors = leaves, [leaves[place] for place in self.places]
        named = dict(call.unit.module.named_parameters(remove_duplicate=False))
        self.parameters = {name: named[name].detach() for name in call.unit.names}

    def fits(self, arrangement: Arrangement) -> bool:
        return len(arrangement) == len(self.tensors) and all(
            layout is None or layout.fits(tensor.shape, self.n)
            for layout, tensor in zip(arrangement, self.tensors, strict=True)
        )

    def arrangements(self) -> Iterator[Arrangement]:
        """Likely ones first: inputs laid out like the output, then any other way, then shared."""
        if all(layout is None for layout in self.layouts):
            yield (None,) * len(self.tensors)
            return
        # Which inputs hold samples, and along which dimension, is not known. So possibilities are tried until a
        # replay gives the recorded outputs. Their number is bounded: each costs a run of the module.
        options = [self._options(tensor) for tensor in self.tensors]
        yield from itertools.islice(itertools.product(*options), MOST_ARRANGEMENTS)

    def _options(self, tensor: Tensor) -> list[Layout | None]:
        like = next(layout for layout in self.layouts if layout is not None)
        found = list(candidates(tensor.shape, self.n, tensor.dim()))
        found.sort(key=lambda layout: (layout != like, layout.inner > 1))
        return [*found, None]

    def attempt(self, arrangement: Arrangement) -> Attempt | None:
        """Take the gradients under this arrangement; None if the module does not take it."""
        inputs = [
            tensor if layout is None else layout.samples_first(tensor, self.n)
            for layout, tensor in zip(arrangement, self.tensors, strict=True)
        ]
        dims = tuple(None if layout is None else 0 for layout in arrangement)
        try:
            gradients, outputs = self._run(inputs, dims)
        except REFUSALS:
            return None  # the module does not take inputs of this shape
        reproduced = self._reproduced(outputs)
        if reproduced is None:
            return None
        if not any(layout is not None for layout in self.layouts):
            gradients = self._apart(gradients)
        return Attempt(arrangement, gradients, reproduced)

    def _apart(self, gradients: dict[str, Float[Tensor, "n ..."]]) -> dict[str, Float[Tensor, "n ..."]]:
        """Keep what is not finite in an input that all samples share from the rows of those it does not belong to."""
        if not all_finite(gradients.values()):
            with surroundings(self.call):
                gradients, _ = self._rerun_in_loop(self.tensors, (None,) * len(self.tensors), finite=True)
        unreached = torch.stack([(b == 0).flatten(1).all(1) for b in self.backprops]).all(0)
        return {name: zero_rows(rows, unreached) for name, rows in gradients.items()}

    def _run(
        self, inputs: list[Tensor], dims: tuple[int | None, ...]
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        with surroundings(self.call):
            try:
                return self._rerun_with_vmap(inputs, dims)
            except REFUSALS:
                return self._rerun_in_loop(inputs, dims)

    def _rerun_with_vmap(
        self, inputs: list[Tensor], dims: tuple[int | None, ...]
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        mapped = vmap(
            grad(self._scalar, has_aux=True),
            in_dims=(None, tuple(0 for _ in self.backprops), *dims),
            # Each sample draws its own dropout mask. vmap draws them as one tensor, in the order of the batch, as the
            # recorded call did.
            randomness="different",
            chunk_size=self.chunk,
        )
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "There is a performance drop", UserWarning
            )  # it is known to be slow
            gradients, outputs = mapped(self.parameters, tuple(self.backprops), *inputs)
        return gradients, list(outputs)

    def _rerun_in_loop(
        self, inputs: list[Tensor], dims: tuple[int | None, ...], *, finite: bool = False
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """For modules that vmap cannot run.

        Args:
            finite: let nothing pass that is not finite (`finite_gradients`).
        """
        rows: list[dict[str, Tensor]] = []
        outputs: list[tuple[Tensor, ...]] = []
        for i in range(self.n):
            sample = [x if dim is None else x[i] for x, dim in zip(inputs, dims, strict=True)]
            parameters = {name: p.clone().requires_grad_() for name, p in self.parameters.items()}
            with torch.enable_grad():
                value, outs = self._scalar(parameters, tuple(b[i] for b in self.backprops), *sample)
                with finite_gradients(Graph.of(value).order) if finite else contextlib.nullcontext():
                    found = torch.autograd.grad(
                        value, list(parameters.values()), allow_unused=True, materialize_grads=True
                    )
            rows.append(dict(zip(parameters, found, strict=True)))
            outputs.append(tuple(out.detach() for out in outs))
        stacked = {name: torch.stack([row[name] for row in rows]) for name in self.parameters}
        return stacked, [torch.stack(outs) for outs in zip(*outputs, strict=True)]

    def _scalar(
        self, parameters: dict[str, Tensor], backprops: tuple[Tensor, ...], *inputs: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, inputs, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        result = called_with(self.call.unit.module, parameters, args, kwargs)
        tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        chosen = tuple(tensors[output.position] for output in self.call.outputs)
        # The derivative of ⟨module(x_i), b_i⟩ in the parameters is the row of sample i, by the chain rule: b_i is
        # constant here.
        products = [(out * b).sum() for out, b in zip(chosen, backprops, strict=True)]
        return torch.stack(products).sum(), chosen

    def _reproduced(self, outputs: list[Tensor]) -> Bool[Tensor, " n"] | None:
        """Return which samples have the recorded outputs; None if shapes differ."""
        same = torch.ones(self.n, dtype=torch.bool, device=outputs[0].device)
        for output, layout, found in zip(self.call.outputs, self.layouts, outputs, strict=True):
            recorded = self.call.results[output.position]
            expected = (
                recorded.expand(found.shape) if layout is None else layout.samples_first(recorded, self.n)
            )
            if expected.shape != found.shape:
                return None
            same &= rows_alike(self.call, found.to(expected.dtype), expected)
        return same.cpu()  # the only time that a device is waited for


@contextlib.contextmanager
def surroundings(call: Call) -> Iterator[None]:
    """The random numbers and the autocast state that the recorded call had."""
    enabled, dtype = call.autocast
    frozen = [part for part in call.unit.module.modules() if _is_spectral(part) and part.training]
    for part in frozen:  # a replay divides by what the call has divided by, and estimates nothing anew
        part.training = False
    try:
        yield from _with_state(call, enabled, dtype)
    finally:
        for part in frozen:
            part.training = True


def _with_state(call: Call, enabled: bool, dtype: torch.dtype) -> Iterator[None]:
    device = next(call.unit.module.parameters()).device
    with fork_generators(device), torch.autocast(device.type, dtype=dtype, enabled=enabled):
        if call.rng is not None:
            call.rng.restore()
        yield


def _is_spectral(module: nn.Module) -> bool:
    """Whether a module divides a weight by an estimate of its largest singular value, which training improves at each
    call."""
    hooks = module._forward_pre_hooks.values()
    return isinstance(module, _SpectralNorm) or any(isinstance(hook, SpectralNorm) for hook in hooks)


def is_too_small(reproduced: Bool[Tensor, " n"]) -> bool:
    """Ask whether a replay failed for more samples than odd records explain."""
    return len(reproduced) > 1 and float(reproduced.double().mean()) < 0.5


def rows_alike(
    call: Call, found: Float[Tensor, "n ..."], expected: Float[Tensor, "n ..."]
) -> Bool[Tensor, " n"]:
    """Compare what a replay gave with what was recorded."""
    if found.device.type == "cpu" and torch.equal(found, expected):  # mostly, and many times as fast
        return torch.ones(len(found), dtype=torch.bool, device=found.device)
    tolerance = 1e-2 if call.autocast[0] or expected.dtype.itemsize == 2 else 1e-4
    close = torch.isclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    # What overflows may be infinite in one order of operations and NaN in another.
    close |= ~found.isfinite() & ~expected.isfinite()
    return close.reshape(len(found), -1).all(1)


def not_reproduced(call: Call) -> PrivacyError:
    """Return what is raised of a module that cannot be run again."""
    if any(type(value).__name__.endswith("Cache") for value in (*call.args, *call.kwargs.values())):
        return PrivacyError(
            f"Module {call.module_name!r} ({type(call.unit.module).__name__}) was given a cache and changed it, so it "
            "cannot be run again sample by sample. Train without a cache: use_cache=False, in the call of the model or "
            "in its config."
        )
    return PrivacyError(
        f"Module {call.module_name!r} ({type(call.unit.module).__name__}) does not give the same output when it is run "
        "again sample by sample. It mixes samples, draws random numbers in a way that cannot be replayed, or changes "
        "its state: freeze its parameters, or write it with layers that quietgrad knows."
    )
