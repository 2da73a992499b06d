"""How well a subspace holds the private gradients. NOT PRIVATE: for research runs, never covered by ε.

    private = qg.Privatizer(model, mechanism, batches, research=True)
    error = ProjectionError(mechanism)
    private.watch(error)
    ...
    error.draw(axes)                      # a matplotlib axes, or read error.curves()

`ProjectionError` draws figures 4 and 7 of GEP, `StableRanks` figures 2 and 5, `EigenvalueSpectrum` figure 1 of PDP-SGD.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

import quietgrad as qg
from quietgrad._gradients.blocks import Blocks, flatten_rows
from quietgrad._mechanism.post import ProjectOnto
from quietgrad._representations.subspace.basis import Basis
from quietgrad._representations.subspace.joint import JointSubspace
from quietgrad._representations.subspace.subspace import SubspaceCodec

Curves = dict[str, tuple[list[float], list[float]]]
"""Label → (x, y)."""


class Figure(qg.Observer):
    """An observer whose findings are curves. NOT PRIVATE."""

    x_label = "step"
    y_label: str
    logarithmic = False

    @abstractmethod
    def curves(self) -> Curves:
        """What was seen, ready to be drawn or tabulated. Not private."""

    def draw(self, axes: Any) -> None:
        """Put the curves on a matplotlib axes, marked as not private."""
        for label, (x, y) in self.curves().items():
            axes.plot(x, y, label=label)
        axes.set(xlabel=self.x_label, ylabel=self.y_label, title="not private, not covered by ε")
        if self.logarithmic:
            axes.set_yscale("log")
        axes.legend()


class ProjectionError(Figure):
    """‖Σ r_i‖/‖Σ g_i‖ of each step's batch, per group and in all. NOT PRIVATE.

    Args:
        mechanism: the one that is run; it must hold a subspace (GEP, B-GEP, PDP-SGD).
    """

    y_label = "relative projection error"

    def __init__(self, mechanism: qg.Mechanism) -> None:
        self._subspace = subspace_of(mechanism)
        self._errors: dict[str, list[tuple[int, float]]] = {}
        self._sum: Blocks = {}
        self._basis: Basis | None = None

    def micro_batch(self, grads: qg.PerSampleGrads, public: qg.Public, mechanism: qg.Mechanism) -> None:
        self._basis = _basis(self._subspace, public)
        for name, block in grads.weighted_sum(torch.ones(grads.samples)).items():
            self._sum[name] = self._sum[name] + block if name in self._sum else block

    def step(self, step: int, released: list[qg.Released], update: Blocks) -> None:
        if self._basis is not None:
            for label, error in _projection_errors(self._basis, self._sum).items():
                self._errors.setdefault(label, []).append((step, error))
        self._sum, self._basis = {}, None

    def curves(self) -> Curves:
        return _over_steps(self._errors)


class StableRanks(Figure):
    """‖·‖_F²/‖·‖² of the gradients and of their residuals, per group, for each step's first micro-batch. NOT PRIVATE.

    Args:
        mechanism: the one that is run; it must hold a subspace.
    """

    y_label = "stable rank"

    def __init__(self, mechanism: qg.Mechanism) -> None:
        self._subspace = subspace_of(mechanism)
        self._ranks: dict[str, list[tuple[int, float]]] = {}
        self._seen: int | None = None

    def micro_batch(self, grads: qg.PerSampleGrads, public: qg.Public, mechanism: qg.Mechanism) -> None:
        if self._seen == public.step:
            return
        self._seen = public.step
        dense = grads.dense()
        for name, group in _basis(self._subspace, public).groups.items():
            rows = flatten_rows({block: dense[block] for block in group.shapes})
            residual = rows - rows @ group.rows.T @ group.rows
            for label, matrix in ((f"{name}: gradients", rows), (f"{name}: residuals", residual)):
                self._ranks.setdefault(label, []).append((public.step, stable_rank(matrix)))

    def curves(self) -> Curves:
        return _over_steps(self._ranks)


class EigenvalueSpectrum(Figure):
    """The largest eigenvalues of (1/n) Σ g_i g_iᵀ, at chosen steps, from their first micro-batch. NOT PRIVATE.

    Args:
        steps: when to look.
        largest: how many eigenvalues.
    """

    x_label = "order of the eigenvalue"
    y_label = "eigenvalue of the second moment"
    logarithmic = True

    def __init__(self, steps: tuple[int, ...], largest: int = 500) -> None:
        self._steps, self._largest = steps, largest
        self._spectra: dict[int, Float64[Tensor, " k"]] = {}

    def micro_batch(self, grads: qg.PerSampleGrads, public: qg.Public, mechanism: qg.Mechanism) -> None:
        if public.step in self._steps and public.step not in self._spectra and grads.samples:
            rows = flatten_rows(grads.dense()).double()
            values = torch.linalg.eigvalsh(rows @ rows.T / len(rows)).flip(0)
            self._spectra[public.step] = values[: self._largest].clamp_min(0.0)

    def curves(self) -> Curves:
        return {
            f"step {step}": ([float(i + 1) for i in range(len(values))], [float(v) for v in values])
            for step, values in self._spectra.items()
        }


def _over_steps(seen: dict[str, list[tuple[int, float]]]) -> Curves:
    """(step, value) pairs as curves."""
    return {
        label: ([float(step) for step, _ in pairs], [value for _, value in pairs])
        for label, pairs in seen.items()
    }


def stable_rank(matrix: Float[Tensor, "n p"]) -> float:
    """‖M‖_F²/‖M‖², between 1 and the rank; 0 for a zero matrix."""
    values = torch.linalg.eigvalsh(matrix.double() @ matrix.double().T).clamp_min(0.0)
    return float(values.sum() / values[-1]) if len(values) and values[-1] > 0 else 0.0


def subspace_of(mechanism: qg.Mechanism) -> qg.Subspace:
    """The subspace that a mechanism releases in or projects onto."""
    for release in mechanism.releases:
        if isinstance(release.representation, qg.Subspace):
            return release.representation
        if isinstance(release.representation, JointSubspace):
            return release.representation.subspace
    for post in mechanism.post:
        if isinstance(post, ProjectOnto):
            return post.subspace
    raise ValueError(
        f"{mechanism.name} holds no subspace. Watch a gep, biased_gep, pdp_sgd or rpdp_sgd mechanism."
    )


def _basis(subspace: qg.Subspace, public: qg.Public) -> Basis:
    codec = public.codec(subspace)
    assert isinstance(codec, SubspaceCodec)
    return codec.basis


def _projection_errors(basis: Basis, total: Blocks) -> dict[str, float]:
    errors, missed, whole = {}, 0.0, 0.0
    inside = basis.expand(basis.coordinates(total))
    for name, group in basis.groups.items():
        outside = sum(float((total[block] - inside[block]).double().square().sum()) for block in group.shapes)
        length = sum(float(total[block].double().square().sum()) for block in group.shapes)
        errors[name] = (outside / length) ** 0.5 if length > 0 else 0.0
        missed, whole = missed + outside, whole + length
    return {**errors, "all": (missed / whole) ** 0.5 if whole > 0 else 0.0}
