"""Records a model's calls through forward hooks and turns the losses of a batch into per-sample gradients."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from quietgrad.capture.adapters.base import Watch
from quietgrad.capture.backprops import Backward, foreign, mixed
from quietgrad.capture.call import Call, Hook, Unit, record, set_apart
from quietgrad.capture.dependence import Dependence
from quietgrad.capture.graph import Graph, Use, check_coverage, uses
from quietgrad.capture.layout import Placement
from quietgrad.capture.lent import MARK, accountable, accounted, borrowers, lent
from quietgrad.capture.registry import units
from quietgrad.capture.validation import check_norm, validate
from quietgrad.gradients.base import BlockGrads
from quietgrad.gradients.blocks import at_least_single
from quietgrad.gradients.combined import combine
from quietgrad.gradients.dense import ZeroGrad
from quietgrad.gradients.stages import BlockwiseGrads
from quietgrad.gradients.tuning import LayerReport, Tuner, for_rows, report

MOST_PENDING = 4096
"""Recorded calls that wait for their losses; older ones are given up, so that evaluating with grad on leaks nothing."""


Pool = Callable[[BlockwiseGrads], BlockwiseGrads]
"""From the gradients of records to those of people."""


class Pass:
    """The calls recorded since losses were last collected."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.counts: dict[str, int] = {}
        self.rng: dict[str, Tensor] = {}


class Watches(threading.local):
    """The watches that are open in this thread: another one may run the same model without gradients."""

    def __init__(self) -> None:
        self.opened: list[Watch | None] = []


class Recorder:
    """Per-sample gradients of a plain module.

    Args:
        model: any module; hooks are put on by `attach` and taken off by `detach`, nothing else is touched.
        memory_budget: bytes that formed per-sample gradients may take at once.
        deterministic: choose ways by rule instead of by measurement.
        public_by_rule: do so for public losses at least: ranks that measured would round their bases differently.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        memory_budget: int | None = None,
        deterministic: bool = False,
        public_by_rule: bool = False,
    ) -> None:
        validate(model)
        self.model = model
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ValueError(
                "The model has no trainable parameters. Call requires_grad_(True) on those to train."
            )
        names = {id(p): name for name, p in self.parameters.items()}
        self._units = list(units(model, names))
        self._borrowers: list[Unit] | None = list(borrowers(model, names))
        """Modules that may use parameters of others, until the first losses show which of them do."""
        self._lending: dict[str, str] = {}
        self._accountable: set[int] = set()
        self._backward = Backward()
        self.dependence = Dependence(self._rehearsal)
        self._tuner = Tuner(memory_budget, deterministic)
        self._public_tuner = Tuner(memory_budget, True) if public_by_rule else self._tuner
        self._pass = Pass()
        self._serial = 0
        self._silent = self._rehearsing = False
        self.in_public = False
        """Whether a forward of public losses is under way."""
        self._handles: list[RemovableHandle] = []
        self._ways: dict[str, LayerReport] = {}
        """Of the parameters that are settled in the batch under way."""
        self._reports: tuple[LayerReport, ...] = ()

    # ---- hooks ----------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Put the hooks on."""
        if not self._handles:
            self._hook()

    def _hook(self) -> None:
        self._handles.append(self.model.register_forward_pre_hook(Hook(self._before_model), with_kwargs=True))
        self._handles.append(
            self.model.register_forward_hook(Hook(self._after_model), with_kwargs=True, always_call=True)
        )
        for unit in (*self._units, *(self._borrowers or ())):
            self._handles.extend(
                self._watch_functions(unit) if unit.adapter.watches_functions else self._watch(unit)
            )

    def detach(self) -> None:
        """Take the hooks off and forget what was recorded."""
        self._unhook()
        self._pass = Pass()
        self.dependence.end()

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _watch(self, unit: Unit) -> Iterator[RemovableHandle]:
        if unit.adapter.replays:
            yield unit.module.register_forward_pre_hook(Hook(self._remembering_rng(unit)))
        yield unit.module.register_forward_hook(Hook(self._recording(unit)), with_kwargs=True, prepend=True)

    def _watch_functions(self, unit: Unit) -> Iterator[RemovableHandle]:
        """A watch around the module's forward; taken off even if the forward fails."""
        watches, recording = Watches(), self._recording(unit)

        def report(use: Unit, given: Tensor, result: Tensor) -> None:
            if self._active():
                self._record(use, (given,), {}, result)

        def enter(_: nn.Module, __: Any) -> None:
            if self._active() or self._rehearsing:
                watches.opened.append(unit.adapter.watch(unit, report))
                if watches.opened[-1] is not None:
                    watches.opened[-1].__enter__()

        def leave(module: nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
            watch = watches.opened.pop() if watches.opened else None
            if watch is not None:
                watch.__exit__(None, None, None)
            seen = watch is not None and watch.complete
            return None if seen or result is None else recording(module, args, kwargs, result)

        if unit.adapter.replays:
            yield unit.module.register_forward_pre_hook(Hook(self._remembering_rng(unit)))
        yield unit.module.register_forward_pre_hook(Hook(enter))
        yield unit.module.register_forward_hook(Hook(leave), prepend=True, with_kwargs=True, always_call=True)

    def _before_model(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        for name, part in self.model.named_modules():
            check_norm(part, f"module {name!r}")
        if not self._silent and not self.in_public:
            self.dependence.enter_model(args, kwargs)

    def _after_model(self, module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        if not self._silent and not self.in_public:
            self.dependence.leave_model(module, args, kwargs, result)

    def _remembering_rng(self, unit: Unit) -> Any:
        """A replay must draw what the call drew."""

        def hook(_: nn.Module, __: Any) -> None:
            if self._active():
                self._pass.rng[unit.name] = torch.get_rng_state()

        return hook

    def _recording(self, unit: Unit) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
            if not self._active():
                return None
            if unit.adapter.replays:
                result = set_apart(result)
            self._record(unit, args, kwargs, result)
            return result

        return hook

    def _active(self) -> bool:
        return torch.is_grad_enabled() and not self._silent

    def _record(self, unit: Unit, args: Any, kwargs: Any, result: Any) -> None:
        index = self._pass.counts.get(unit.name, 0)
        call = record(unit, index, self._serial, args, kwargs, result, self._pass.rng.pop(unit.name, None))
        if call is None:
            return
        self._serial += 1
        self._pass.counts[unit.name] = index + 1
        self._pass.calls.append(call)
        del self._pass.calls[:-MOST_PENDING]

    @contextlib.contextmanager
    def nested(self) -> Iterator[None]:
        """Record a public forward apart from the private one around it."""
        outer, was_public = self._pass, self.in_public
        self._pass, self.in_public = Pass(), True
        try:
            with self.dependence.aside():
                yield
        finally:
            self._pass, self.in_public = outer, was_public

    # ---- losses to gradients --------------------------------------------------------------------------------

    def collect(
        self,
        losses: Float[Tensor, " n"] | Float[Tensor, "n views"],
        pool: Pool | None = None,
        *,
        only_summed: bool = False,
    ) -> BlockwiseGrads:
        """Per-sample gradients of the losses with respect to all of `parameters`, by one backward.

        Args:
            pool: makes the gradients of people of those of records, which were told apart before.
            only_summed: nobody will ask for more than norms and weighted sums, so that factors are let go of, during
                the backward, where gradients are formed.

        Formal guarantee: a record's views enter one row, ḡ_i = (1/K)·Σ_j g_ij, so the clip bounds the record and not
        each view.
        """
        self.dependence.close()
        given, losses = losses, losses.mean(1) if losses.dim() == 2 else losses
        self._check(losses)
        if len(losses) == 0:
            self._pass = Pass()
            return BlockwiseGrads({name: ZeroGrad(0, p) for name, p in self.parameters.items()}, 0)
        with self._quiet(), torch.no_grad():
            graph = Graph.of(losses)
            calls = [call for call in self._pass.calls if graph.reaches(call)]
            used = uses(graph, self.parameters)
            if self._borrowers is not None:
                self._settle_borrowing(graph, calls, used)
            calls = [kept for call in calls if (kept := self._accounted(call))]
            check_coverage(graph, calls, used)
            blocks = self._blocks(losses, calls, graph, condense=only_summed and pool is None)
            if not self.in_public:
                self._check_dependence(given, graph)
        assert {name for _, name in used} <= set(blocks), "a parameter that is used has no gradient"
        self._forget(calls)
        rows = {name: blocks.get(name) or ZeroGrad(len(losses), p) for name, p in self.parameters.items()}
        grads = BlockwiseGrads(rows, len(losses))
        grads = grads if pool is None else pool(grads)
        return BlockwiseGrads(self._settled(grads.blocks), grads.samples, first_inputs=grads.first_inputs)

    def _check_dependence(self, losses: Tensor, graph: Graph) -> None:
        """Refuse losses that depend on other records. Gradients that belong to several samples each are theirs in
        common (learned queries) only if that was tested in this very batch, and says something about gradients."""
        unsettled = self._backward.unsettled
        try:
            tested = self.dependence.check(losses, graph, again=bool(unsettled))
        except ValueError as error:
            if not unsettled:
                raise
            raise ValueError(mixed(unsettled[0])) from error
        if unsettled and graph.foreign:
            raise ValueError(foreign(unsettled[0], graph.foreign))
        if unsettled and not tested:
            raise ValueError(mixed(unsettled[0]))

    def _settle_borrowing(self, graph: Graph, calls: list[Call], used: set[Use]) -> None:
        """The first losses show which modules use parameters of others; the rest need no hooks."""
        borrowing = [call for call in calls if call.unit.name.endswith(MARK)]
        self._lending = lent(graph, [call for call in calls if call not in borrowing], borrowing, used)
        settled = (accountable(unit, self._lending) for unit in (*self._units, *(self._borrowers or ())))
        self._units, self._borrowers = [unit for unit in settled if unit is not None], None
        self._accountable = {id(unit) for unit in self._units}
        self._unhook()
        self._hook()

    def _accounted(self, call: Call) -> Call | None:
        """Only calls that were recorded before the first losses came need to be changed."""
        return call if id(call.unit) in self._accountable else accounted(call, self._lending)

    def _settled(self, blocks: dict[str, BlockGrads]) -> dict[str, BlockGrads]:
        """Every block on its best way, those that are not yet."""
        settled = {k: block if k in self._ways else self._settle(k, block) for k, block in blocks.items()}
        if not self.in_public:
            self._reports = tuple(self._ways[name] for name in blocks)
        return settled

    def _settle(self, name: str, block: BlockGrads) -> BlockGrads:
        settled, choice = self._current_tuner.settle(block)
        self._ways[name] = report(name, settled, choice)
        return settled

    @property
    def _current_tuner(self) -> Tuner:
        return self._public_tuner if self.in_public else self._tuner

    def _blocks(
        self, losses: Float[Tensor, " n"], calls: list[Call], graph: Graph, *, condense: bool
    ) -> dict[str, BlockGrads]:
        pieces: dict[str, list[BlockGrads]] = {}
        times_used = Counter(name for call in calls for name in call.unit.names.values())
        self._current_tuner.begin()
        self._ways = {}

        def take(call: Call, layouts: list[Placement | None], backprops: list[Tensor]) -> None:
            call.check_inputs()
            adapter = call.unit.adapter
            # Rows are normed, clipped and summed in float32 at least; a replay needs what its module works with.
            rows = backprops if adapter.replays else [at_least_single(b) for b in backprops]
            for local, piece in adapter.pieces(call, layouts, rows).items():
                name = call.unit.names[local]
                alone = condense and times_used[name] == 1
                pieces.setdefault(name, []).append(self._settle(name, piece).condensed() if alone else piece)
            call.let_go()

        self._backward(losses, calls, graph, take)
        return {name: self._checked(name, combine(parts)) for name, parts in pieces.items()}

    def _checked(self, name: str, block: BlockGrads) -> BlockGrads:
        assert block.shape == self.parameters[name].shape, (name, block.shape)
        return block

    def _forget(self, calls: list[Call]) -> None:
        """What the losses used is done with, and so is everything older than it."""
        newest = max((call.serial for call in calls), default=-1)
        self._pass.calls = [call for call in self._pass.calls if call.serial > newest]
        self._pass.counts = {}

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """No recording while replays and checkpoint recomputations run."""
        before, self._silent = self._silent, True
        try:
            yield
        finally:
            self._silent = before

    @contextlib.contextmanager
    def _rehearsal(self) -> Iterator[None]:
        """The model is run again for a test, and its buffers are what they were afterwards."""
        kept = [(buffer, buffer.clone(), buffer._version) for buffer in self.model.buffers()]
        with self._quiet():
            self._rehearsing = True
            try:
                yield
            finally:
                self._rehearsing = False
                for buffer, value, version in kept:
                    if buffer._version != version:
                        buffer.copy_(value)

    @property
    def independence(self) -> str:
        """What was proved about the samples: of the last batch's gradients, and of the losses so far."""
        return f"{self._backward.proofs}. {self.dependence}"

    def explain(self, rows: float) -> tuple[LayerReport, ...]:
        """Per parameter the way its gradients took in the last batch, its time, and its memory for so many rows."""
        return for_rows(self._reports, rows)

    # ---- what must not change -------------------------------------------------------------------------------

    def _check(self, losses: Tensor) -> None:
        if losses.dim() != 1:
            raise ValueError(
                f"Expected one loss per sample, a vector [n], got shape {tuple(losses.shape)}. "
                'Pass reduction="none" and reduce to one number per sample.'
            )
        if not self._handles:
            raise ValueError("The recorder is detached: call attach() before the forward.")
        now = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if now.keys() != self.parameters.keys() or any(now[k] is not p for k, p in self.parameters.items()):
            changed = sorted(now.keys() ^ self.parameters.keys()) or ["(replaced parameters)"]
            raise ValueError(
                f"The trainable parameters changed after set-up: {', '.join(changed)}. Freeze or unfreeze before "
                "making the model private, or make a new Privatizer."
            )
