"""The embedding of each sample's gradient in a subspace chosen from public gradients: GEP's first release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from quietgrad._gradients.blocks import Blocks, DenseGrad
from quietgrad._gradients.space import Part, Space
from quietgrad._gradients.stages import BlockwiseGrads, PerSampleGrads, Released
from quietgrad._representations.base import Codec, GradientCache, Public, PublicLosses, Representation, State
from quietgrad._representations.public_gradients import refuse_private_inputs
from quietgrad._representations.subspace.bases import gram_eigenvectors, power_iteration, random_basis
from quietgrad._representations.subspace.basis import (
    Basis,
    Coordinates,
    GroupBasis,
    projectable,
)
from quietgrad._representations.subspace.orthonormal import NotFiniteError, orthonormality_bound
from quietgrad._representations.subspace.partition import ParameterGroups, group_sizes, partition, share_rank
from quietgrad._representations.subspace.public_matrix import PublicMatrix

Rule = Literal["power", "eigenvectors", "random"]
_SALT = 0x6E9


@dataclass(frozen=True)
class Embedded:
    """A micro-batch and its coordinates in the subspace: its gradients, ready to be projected and summed, and G Bᵀ."""

    grads: BlockwiseGrads
    coordinates: Coordinates


class SubspaceCodec(Codec):
    """w_i = B g_i, one block of coordinates a group; decodes to Bᵀw.

    Args:
        basis: this step's B.
        public_inputs: what the public losses fed the model, to refuse a private batch among it.
        since: the step that made the basis: coordinates in another basis mean something else.
    """

    def __init__(self, basis: Basis, public_inputs: list[Tensor], since: int = 0) -> None:
        self.basis, self.since = basis, since
        self.space = Space(
            {
                name: Part(group.rows.shape[:1], group.rows.device, group.rows.dtype)
                for name, group in basis.groups.items()
            }
        )
        self._public_inputs = public_inputs
        self._embedded: GradientCache[Embedded] = GradientCache()

    def embed(self, grads: PerSampleGrads) -> Embedded:
        """The micro-batch with its coordinates, computed once for embedding and residual."""
        return self._embedded(self._embed, grads)

    def encode(self, grads: PerSampleGrads) -> PerSampleGrads:
        coordinates = self.embed(grads).coordinates
        return BlockwiseGrads({name: DenseGrad(rows) for name, rows in coordinates.items()}, grads.samples)

    def encode_public(self, grads: PerSampleGrads) -> PerSampleGrads:
        coordinates = self.basis.project(projectable(grads))
        return BlockwiseGrads({name: DenseGrad(rows) for name, rows in coordinates.items()}, grads.samples)

    def decode(self, released: Released) -> Blocks:
        return self.basis.expand(released.blocks)

    def _embed(self, grads: PerSampleGrads) -> Embedded:
        refuse_private_inputs(grads, self._public_inputs)
        ready = projectable(grads)
        return Embedded(ready, self.basis.project(ready))


@dataclass(frozen=True, eq=False, kw_only=True)
class Subspace(Representation):
    """encode(g) = B g with orthonormal B (k×p) from public gradients.

    Args:
        public_losses: `model -> losses[m]` on public data; None for a random basis.
        rank: k, the number of basis vectors over all groups.
        groups: parameter groups with a basis each, see `ParameterGroups`.
        rule: "power" iteration, "eigenvectors" of the public second moment, or "random".
        refresh_every: steps between two bases; the one in between is kept.
        power_iterations: t, for rule "power".

    Raises:
        ValueError: a number is below 1, there is no such rule, or public losses are missing where it needs them.

    Example:
        subspace = qg.Subspace(public_losses=public_losses, rank=4)
        release = qg.Release(representation=subspace, clip=qg.FlatClip(1.0))
    """

    public_losses: PublicLosses | None
    rank: int
    groups: ParameterGroups = 1
    rule: Rule = "power"
    refresh_every: int = 1
    power_iterations: int = 1

    def __post_init__(self) -> None:
        for name in ("rank", "refresh_every", "power_iterations"):
            _check_count(name, getattr(self, name))
        if self.rule not in ("power", "eigenvectors", "random"):
            raise ValueError(f'Expected rule "power", "eigenvectors" or "random", got {self.rule!r}.')
        if self.rule != "random" and not callable(self.public_losses):
            raise ValueError(
                "Expected public_losses to be a function model -> losses[m] on public data, got "
                f"{self.public_losses!r}."
            )

    def refresh(self, public: Public, state: State) -> tuple[Codec, State]:
        last: int | None = state.get("refreshed")
        due = last is None or public.step >= last + self.refresh_every or last < public.since
        if last is not None and not due:
            return SubspaceCodec(_restore(state["basis"], public), [], last), state
        basis, inputs = self._new_basis(public)
        if self.refresh_every > 1:
            saved = {name: [group.rows, list(group.shapes)] for name, group in basis.groups.items()}
            state = {"refreshed": public.step, "basis": saved}
        return SubspaceCodec(basis, inputs, public.step), state

    def _new_basis(self, public: Public) -> tuple[Basis, list[Tensor]]:
        if next(iter(public.parameters.values())).device.type == "cpu":
            return self._basis_of(public)
        try:
            # Nearly always all of them are finite. To ask each time would make the host wait.
            return self._basis_of(public, drop_broken=False)
        except NotFiniteError:
            return self._basis_of(public)

    def _basis_of(self, public: Public, *, drop_broken: bool = True) -> tuple[Basis, list[Tensor]]:
        groups = partition(public.space, self.groups)
        ranks = share_rank(self.rank, group_sizes(public.space, groups))
        like = next(iter(public.parameters.values()))
        generator = public.generator(_SALT)
        if self.rule == "random":
            return random_basis(public.space, groups, ranks, like=like, generator=generator), []
        assert self.public_losses is not None
        matrix = PublicMatrix(public, self.public_losses, drop_broken=drop_broken)
        if self.rule == "eigenvectors":
            return gram_eigenvectors(matrix, public.space, groups, ranks, like=like), matrix.inputs
        iterations = self.power_iterations
        basis = power_iteration(
            matrix, public.space, groups, ranks, iterations=iterations, like=like, generator=generator
        )
        return basis, matrix.inputs


def _restore(saved: dict[str, Any], public: Public) -> Basis:
    shapes = {name: {block: public.space[block] for block in blocks} for name, (_, blocks) in saved.items()}
    return Basis(
        {
            name: GroupBasis(rows, orthonormality_bound(rows), shapes[name])
            for name, (rows, _) in saved.items()
        }
    )


def _check_count(name: str, value: int) -> None:
    if int(value) != value or value < 1:
        raise ValueError(f"Expected {name} to be a whole number >= 1, got {value!r}.")
