"""Turns the losses of a batch into per-sample gradients, from the recorded calls of the model's modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from quietgrad._capture.adapter import trained_pieces
from quietgrad._capture.backprops import Backward, Verdict
from quietgrad._capture.call import Call
from quietgrad._capture.call_recorder import CallRecorder
from quietgrad._capture.compiled import CompiledModel, allow_several_backwards
from quietgrad._capture.fsdp import ShardedParameters
from quietgrad._capture.graph import Graph, GraphShape, check_coverage, uses
from quietgrad._capture.hooks import ForwardObserver, ModelHooks
from quietgrad._capture.layout import Placement
from quietgrad._capture.losses import check_vector, mark_rows
from quietgrad._capture.ownership import ParameterOwnership
from quietgrad._capture.validation import validate
from quietgrad._gradients.blocks import BlockGrads
from quietgrad._gradients.combined import combine
from quietgrad._gradients.row_arithmetic import at_least_single
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._gradients.tuning import LayerReport, Tuner, for_rows
from quietgrad._gradients.zero import ZeroGrad

Pool = Callable[[BlockwiseGrads], BlockwiseGrads]
"""From the gradients of records to those of users."""

Visit = Callable[[str, BlockGrads], None]
"""Looks at the block of a parameter while it still has its factors."""


class Recorder:
    """Take per-sample gradients of a plain module.

    Args:
        model: any module; hooks are put on by `attach` and taken off by `detach`, nothing else is touched.
        memory_budget: bytes that formed per-sample gradients may take at once.
        deterministic: choose algorithms by rule instead of by measurement.
        public_by_rule: do so for public losses at least: ranks that measured would round their bases differently.
        sharded: the parameters of a model under `fully_shard`.
        one_pass: called before each backward with what would take more than one of them, or None. Ranks in lockstep
            come to one verdict there.
        compile_options: of torch.compile, with which the model then runs; None: uncompiled.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        memory_budget: int | None = None,
        deterministic: bool = False,
        public_by_rule: bool = False,
        sharded: ShardedParameters | None = None,
        one_pass: Verdict | None = None,
        compile_options: Mapping[str, Any] | None = None,
    ) -> None:
        validate(model, sharded=sharded is not None)
        self.model = model
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ValueError(
                "The model has no trainable parameters. Call requires_grad_(True) on those to train."
            )
        self._sharded = sharded
        names = {id(p): name for name, p in [*self.parameters.items(), *self.leaves.items()]}
        self._ownership = ParameterOwnership(model, names)
        self._calls = CallRecorder(model)
        self._compiled = None
        if compile_options is not None and sharded is not None:
            raise ValueError("A model under fully_shard cannot be compiled here. Leave compile out.")
        if compile_options is not None:
            self._compiled = CompiledModel(model, self._ownership.holders, self._calls, compile_options)
        self.hooks = ModelHooks(model, self._calls, model_only=self._compiled is not None)
        self._backward = Backward(one_pass)
        self.met_odd_rows = False
        """Whether the last micro-batch had some rows that a replay of samples alone did not give again."""
        self._tuner = Tuner(memory_budget, deterministic)
        self._public_tuner = Tuner(memory_budget, True) if public_by_rule else self._tuner
        self._algorithms: dict[str, LayerReport] = {}
        """Of the parameters whose algorithm is selected in the batch under way."""
        self._reports: tuple[LayerReport, ...] = ()
        self.graph_shape: GraphShape = frozenset()
        """Which kinds of operations follow which in the graph of the last private losses."""

        self.precision = torch.float32
        """The lowest precision in which the last private losses were computed."""

    def modules(self) -> list[tuple[str, nn.Module]]:
        """Return every module that the model has now, with its name."""
        return self._calls.parts.modules()

    @property
    def leaves(self) -> Mapping[str, nn.Parameter]:
        """The tensors that the graph holds for the trained parameters."""
        return self.parameters if self._sharded is None else self._sharded.leaves(self.parameters)

    def leaf_forms(self) -> dict[str, nn.Parameter]:
        """Return every tensor to which a graph could send a gradient of a trained parameter: leaves and shards."""
        if self._sharded is None:
            return self.parameters
        return self.parameters | {f"{name} as a whole": leaf for name, leaf in self.leaves.items()}

    # ---- recording ------------------------------------------------------------------------------------------

    def attach(self, observer: ForwardObserver | None = None) -> None:
        """Put the hooks on.

        Args:
            observer: asked before every forward; see `ModelHooks`.
        """
        if self._compiled is not None and not self.hooks.is_attached:
            self._compiled.attach()
        self.hooks.attach(self._ownership.units, observer)

    def detach(self) -> None:
        """Take the hooks off and forget what was recorded."""
        self.hooks.detach()
        if self._compiled is not None:
            self._compiled.detach()
        self._calls.forget_all()

    def public_forward(self) -> AbstractContextManager[None]:
        """Record forwards of public losses, whose inputs must not be private."""
        return self._calls.public_forward()

    @property
    def pending(self) -> int:
        """How many calls wait for their losses."""
        return len(self._calls.calls)

    @property
    def in_public(self) -> bool:
        """Whether a forward of public losses is under way."""
        return self._calls.in_public

    # ---- losses to gradients --------------------------------------------------------------------------------

    def collect(
        self,
        losses: Float[Tensor, " n"] | Float[Tensor, "n views"],
        pool: Pool | None = None,
        *,
        keep_factors: bool = True,
        stand_ins: int = 0,
        visit: Visit | None = None,
    ) -> BlockwiseGrads:
        """Take per-sample gradients of the losses for all of `parameters`, by one backward.

        Args:
            pool: turns the gradients of records into those of users.
            stand_ins: so many rows at the end become NaN, which every clip drops: exactly zero of them is added.
            keep_factors: False if nobody will ask for more than norms and weighted sums. Factors are then freed during
                the backward, where gradients are formed.
            visit: called with each block of records once, whether or not its factors are kept.

        Formal guarantee: a record's views enter one row, ḡ_i = (1/K)·Σ_j g_ij, so the clip bounds the record and not
        each view.
        """
        # The mean over views is part of the graph. Its backward brings 1/K of each view into the row of the record.
        losses = losses.mean(1) if losses.dim() == 2 else losses
        self._check(losses)
        # A Poisson draw may be empty. The step still happens, with noise on a sum of zeros, or its absence would be
        # seen.
        if len(losses) == 0:
            self._calls.forget_all()
            return BlockwiseGrads({name: ZeroGrad(0, p) for name, p in self.leaves.items()}, 0)
        with self._calls.pause(), torch.no_grad():
            graph = Graph.of(losses)
            calls = [call for call in self._calls.calls if graph.reaches(call)]
            used = uses(graph, self.leaves)
            # Ownership is decided once, on the first losses. Afterwards only modules that own something are recorded.
            # Compiled layers own what they hold: other uses of a parameter are refused below.
            if self._compiled is not None:
                allow_several_backwards(graph)
            else:
                if not self._ownership.is_resolved:
                    self.hooks.record(self._ownership.resolve(graph, calls, used))
                calls = [kept for call in calls if (kept := self._ownership.restrict(call))]
            check_coverage(graph, calls, used)
            bad = ~losses.detach().isfinite()
            bad[len(losses) - stand_ins :] = True
            keep_factors = keep_factors or pool is not None
            blocks = self._blocks(losses, bad, calls, graph, keep_factors=keep_factors, visit=visit)
            if not self.in_public:
                self.graph_shape, self.precision = graph.shape, _lowest_precision(calls)
        assert {name for _, name in used} <= set(blocks), "a parameter that is used has no gradient"
        self._calls.forget(calls)
        # A parameter that these losses do not use has the gradient zero, and noise is added to it like to all others.
        # Leaving it out would show which parameters the batch has used.
        rows = {name: blocks.get(name) or ZeroGrad(len(losses), p) for name, p in self.leaves.items()}
        grads = BlockwiseGrads(rows, len(losses))
        grads = grads if pool is None else pool(grads)
        return BlockwiseGrads(
            self._with_algorithms(grads.blocks), grads.samples, first_inputs=grads.first_inputs
        )

    def _with_algorithms(self, blocks: dict[str, BlockGrads]) -> dict[str, BlockGrads]:
        """Select an algorithm for every block that has none yet."""
        selected = {
            k: block if k in self._algorithms else self._select_algorithm(k, block)
            for k, block in blocks.items()
        }
        if not self.in_public:
            self._reports = tuple(self._algorithms[name] for name in blocks)
        return selected

    def _select_algorithm(self, name: str, block: BlockGrads) -> BlockGrads:
        selected, self._algorithms[name] = self._current_tuner.select_algorithm(name, block)
        return selected

    @property
    def _current_tuner(self) -> Tuner:
        return self._public_tuner if self.in_public else self._tuner

    def _blocks(
        self,
        losses: Float[Tensor, " n"],
        bad: Bool[Tensor, " n"],
        calls: list[Call],
        graph: Graph,
        *,
        keep_factors: bool,
        visit: Visit | None,
    ) -> dict[str, BlockGrads]:
        pieces: dict[str, list[BlockGrads]] = {}
        times_used = Counter(name for call in calls for name in call.unit.names.values())
        # Only losses that are not finite are marked here, and stand-ins. A gradient that is not finite, of a finite
        # loss, makes its own norm NaN, and the clip drops that row as well.
        any_bad = losses.device.type != "cpu" or bool(bad.any())  # a device is not asked: the host would wait
        self._current_tuner.begin()
        self._algorithms = {}
        self.met_odd_rows = False

        def take(call: Call, layouts: list[Placement | None], backprops: list[Tensor]) -> None:
            call.check_inputs()
            adapter = call.unit.adapter
            # Rows are normed, clipped and summed in float32 at least; a replay needs what its module works with.
            rows = backprops if adapter.replays else [at_least_single(b) for b in backprops]
            if any_bad:
                rows = [mark_rows(b, bad) for b in rows]
            for local, piece in trained_pieces(call, layouts, rows).items():
                name = call.unit.names[local]
                if visit is not None and times_used[name] == 1:
                    visit(name, piece)
                # Pieces of a parameter that is used several times are combined first, and need their factors.
                if not keep_factors and times_used[name] == 1:
                    piece = self._select_algorithm(name, piece).drop_factors()
                pieces.setdefault(name, []).append(piece)
            if call.is_shared:
                self._backward.unattributed.append(call)
            self.met_odd_rows |= call.is_odd
            call.free()

        self._backward(losses, calls, graph, take)
        blocks = {
            name: self._checked(name, parts[0] if len(parts) == 1 else combine(parts))
            for name, parts in pieces.items()
        }
        if visit is not None:
            for name in (name for name in blocks if times_used[name] > 1):
                visit(name, blocks[name])
        return blocks

    def _checked(self, name: str, block: BlockGrads) -> BlockGrads:
        assert block.shape == self.parameters[name].shape, (name, block.shape)
        return block

    @property
    def independence(self) -> str:
        """How the samples of the last batch's gradients were attributed."""
        return str(self._backward.attribution)

    @property
    def unattributed(self) -> Call | None:
        """A call whose output gradient belongs to several samples by the graph and by probing; None if there is none.

        Learned queries are like that, and so is mixing. Only asking about the micro-batch tells one from the other.
        """
        found = self._backward.unattributed
        return found[0] if found else None

    @property
    def met_not_finite(self) -> bool:
        """Whether the last batch held a number that is not finite where it may have reached the rows of others."""
        return self._backward.met_not_finite

    def pause(self) -> AbstractContextManager[None]:
        """Record nothing of the forwards inside."""
        return self._calls.pause()

    def explain(self, rows: float) -> tuple[LayerReport, ...]:
        """Report the algorithm of each parameter in the last batch, its time, and its memory for so many rows."""
        return for_rows(self._reports, rows)

    # ---- what must not change -------------------------------------------------------------------------------

    def _check(self, losses: Tensor) -> None:
        check_vector(losses)
        if not self.hooks.is_attached:
            raise ValueError("The recorder is detached: call attach() before the forward.")
        now = self._calls.parts.trained()
        leaves = self.leaves
        # Under `fully_shard` modules hold the whole parameters in a forward and their shards at other times.
        if now.keys() != self.parameters.keys() or any(
            now[k] is not p and now[k] is not leaves[k] for k, p in self.parameters.items()
        ):
            changed = sorted(now.keys() ^ self.parameters.keys()) or ["(replaced parameters)"]
            raise ValueError(
                f"The trainable parameters changed after set-up: {', '.join(changed)}. Freeze or unfreeze before "
                "making the model private, or make a new Privatizer."
            )


def _lowest_precision(calls: list[Call]) -> torch.dtype:
    used = [
        call.autocast[1] if call.autocast[0] else parameter.dtype
        for call in calls
        for parameter in _own_parameters(call.unit.module)
    ]
    return min(used, key=lambda dtype: dtype.itemsize, default=torch.float32)


def _own_parameters(module: nn.Module) -> Iterable[nn.Parameter]:
    """All parameters of a module. Most modules hold no others, and torch's walk takes longer than reading a table."""
    if module._modules:
        return module.parameters()
    return [parameter for parameter in module._parameters.values() if parameter is not None]
