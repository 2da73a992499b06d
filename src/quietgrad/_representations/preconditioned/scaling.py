"""DP-SGD in coordinates w = P·v, with P from the second moments of public or made-up inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float64
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads, Blocks
from quietgrad._gradients.space import Part, Space, coordinates
from quietgrad._gradients.stages import BlockwiseGrads, PerSampleGrads, Released
from quietgrad._representations.base import Codec, Public, PublicLosses, Representation, State
from quietgrad._representations.preconditioned.input_map import input_map, output_root
from quietgrad._representations.preconditioned.layer_moments import (
    ChunkMoments,
    LayerMoments,
    decide_all,
    measure,
)
from quietgrad._representations.preconditioned.layer_scale import LayerScale, MatrixScale, TableScale, restore
from quietgrad._representations.public_gradients import refuse_private_inputs, stream_gradients
from quietgrad.rules import preconditioner_damping

Sides = Literal["input", "both"]
NOT_FINITE = "Inputs of a layer are NaN or infinite on the probes. Check the inputs of probes."


@dataclass(frozen=True, eq=False, kw_only=True)
class Preconditioned(Representation):
    """Scale each layer's gradient before the clip, and its noisy sum after it.

        encode(g) = c·P·g,   decode(s) = κ·P·s:   the update is κ·c·P²·g + κ·P·z, DP-SGD in coordinates w = P·v

    P acts on the input side of a matrix, P = (A/ā + d·I)^(-p): A is the second moment of the layer's inputs on the
    probes and ā its mean eigenvalue. A bias is one more input that is always 1. Rows of an embedding are scaled by how
    often probes read them. Parameters without inputs of their own, such as scales of norms, keep their coordinates.
    Inside another representation (`qg.Preconditioned(…) @ qg.Subspace(…)`), coordinates are scaled by their own second
    moment on the probes.
    c keeps the median length of the probes' gradients and κ the length of the noise, so that clip and learning rate
    mean what they mean in DP-SGD.

    Formal guarantee: P, c and κ are functions of probes, public randomness and past releases. The release has the
    clip's sensitivity, because the clip sees c·P·g; what decode does is post-processing.
    Checked by: tests/laws/test_law2_sensitivity.py, tests/representations/test_preconditioned.py

    Args:
        probes: `model -> losses[m]` on public or made-up inputs, as for `qg.Subspace`.
        power: p; ½ makes the scaled inputs as white as damping allows.
        damping: d, in units of the mean eigenvalue. None follows `qg.rules.preconditioner_damping` at the noise of
            the run, and is 1 where that is not known.
        sides: "input", or "both" to scale by the second moments of output gradients too.
        refresh_every: steps between two scalings; None makes one for the whole run.

    Raises:
        ValueError: a number is out of range, or probes are no function.

    Example:
        scaled = qg.Preconditioned(probes=public_losses)
        mechanism = qg.methods.dp_sgd(clip=1.0) @ scaled  # what qg.methods.preconditioned(public_losses) does
    """

    probes: PublicLosses
    power: float = 0.5
    damping: float | None = None
    sides: Sides = "input"
    refresh_every: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.probes):
            raise ValueError(
                "Expected probes to be a function model -> losses[m] on public or made-up inputs, got "
                f"{self.probes!r}. qg.public_losses.random_label_losses(inputs, classes) makes one."
            )
        if not 0.0 < self.power <= 1.0:
            raise ValueError(f"Expected 0 < power <= 1, got {self.power}.")
        if self.damping is not None and not 0.0 < self.damping < math.inf:
            raise ValueError(f"Expected a finite damping > 0 or None, got {self.damping}.")
        if self.sides not in get_args(Sides):
            raise ValueError(f'Expected sides "input" or "both", got {self.sides!r}.')
        if self.refresh_every is not None and self.refresh_every < 1:
            raise ValueError(f"Expected refresh_every >= 1 or None, got {self.refresh_every!r}.")

    def refresh(self, public: Public, state: State) -> tuple[Codec, State]:
        """Measure the probes where that is due, and return the codec of the step.

        Raises:
            ValueError: gradients of the probes are not finite.
        """
        inputs: list[Tensor] = []
        if self._is_due(public, state):
            moments, damping = self._moments(public, inputs), self.damping_at(public)
            on_host = {
                name: self._scale(each, damping, public.space.part(name).dtype)
                for name, each in moments.items()
            }
            scales = {name: scale.to(public.space.part(name).device) for name, scale in on_host.items()}
            # All that the host has to know, so that it waits for a device once.
            length, energy, *spreads = _read(
                [
                    _length_kept(stream_gradients(public, self.probes), scales),
                    _noise_energy(public.space, on_host),
                    *(number for scale in scales.values() for number in scale.spread),
                ]
            )
            if not all(map(math.isfinite, spreads)):
                raise ValueError(NOT_FINITE)
            saved = {name: scale.state() for name, scale in scales.items()}
            for number, each in enumerate(saved.values()):
                each["spread"] = spreads[2 * number : 2 * number + 2]
            state = {
                "since": public.step,
                "length": length,
                "noise_energy": energy,
                "damping": damping,
                "scales": saved,
            }
        scales = {name: restore(saved) for name, saved in state["scales"].items()}
        return PreconditionedCodec(public.space, scales, state, inputs), state

    def damping_at(self, public: Public) -> float:
        """The damping that is given, or the rule's for the noise of this run."""
        if self.damping is not None:
            return self.damping
        return preconditioner_damping(coordinates(public.space), public.noise)

    def _is_due(self, public: Public, state: State) -> bool:
        if not state or state["since"] < public.since:
            return True
        return self.refresh_every is not None and public.step >= state["since"] + self.refresh_every

    def _moments(self, public: Public, inputs: list[Tensor]) -> dict[str, LayerMoments]:
        """Measure all matrices; `inputs` receives what the probes fed the model."""
        found: dict[str, ChunkMoments] = {}
        for grads in stream_gradients(public, self.probes):
            if grads.first_inputs is not None:
                inputs.append(grads.first_inputs)
            for name, block, bias in _scaled_blocks(public, grads.blocks):
                moments = measure(block, bias)
                found[name] = found[name] + moments if name in found else moments
        if not found:
            raise ValueError("The probes reached no matrix. Return one loss per probe, at least one.")
        decided = decide_all(found)
        on_host = [each.inputs for each in decided.values() if each.inputs.device.type == "cpu"]
        if not all(bool(inputs.isfinite().all()) for inputs in on_host):  # eigenvalues need finite numbers
            raise ValueError(NOT_FINITE)
        return decided

    def _scale(self, moments: LayerMoments, damping: float, dtype: torch.dtype) -> LayerScale:
        """Make P where the moments are: matrices are on the CPU, where LAPACK is as fast as on any device."""
        like = torch.empty(0, dtype=dtype, device=moments.inputs.device)
        if moments.inputs.dim() == 1:
            return self._scale_each(moments.inputs, damping, like)
        inputs, spread = input_map(
            moments.inputs,
            power=self.power,
            damping=damping,
            with_bias=moments.with_bias,
            like=like,
        )
        both = self.sides == "both"
        outputs = output_root(moments.outputs, self.power, damping).to(like) if both else None
        return MatrixScale(inputs, outputs, moments.swapped, spread)

    def _scale_each(self, moments: Float64[Tensor, " v"], damping: float, like: Tensor) -> TableScale:
        """Scale by a diagonal: of a table, whose inputs are one-hot, and of coordinates."""
        often = moments / moments.mean().clamp_min(1e-300)
        rows = (often + damping) ** -self.power
        after = often * rows.square()
        return TableScale(rows.to(like), (often.max(), after.max() / after.mean()))


class PreconditionedCodec(Codec):
    """One scaling of all blocks; they keep their names and shapes.

    Args:
        scales: P of each matrix; other blocks keep their coordinates.
        state: c, the energy of scaled noise, and the step that made them.
        public_inputs: what probes fed the model, to refuse a private batch among it.
    """

    def __init__(
        self,
        space: Space,
        scales: Mapping[str, LayerScale],
        state: State,
        public_inputs: list[Tensor],
    ) -> None:
        self.space, self.scales = space, scales
        self.length, self.since = state["length"], state["since"]
        self._lengthened = {name: scale.times(self.length) for name, scale in scales.items()}
        self._public_inputs = public_inputs
        self._damping = state.get("damping")
        # Computed once: on a device the host waits for it. Checkpoints of earlier versions do not have it.
        energy = state.get("noise_energy") or _noise_energy(space, scales)
        self._noise_kept = math.sqrt(coordinates(space) / energy)
        self._of_release = {
            name: _of_part(scale, space.part(name)).times(self._noise_kept) for name, scale in scales.items()
        }

    def encode(self, grads: PerSampleGrads) -> PerSampleGrads:
        refuse_private_inputs(grads, self._public_inputs)
        return self.encode_public(grads)

    def encode_public(self, grads: PerSampleGrads) -> PerSampleGrads:
        return _encode(self._lengthened, grads, self.length)

    def decode(self, released: Released) -> Blocks:
        scaled = apply_scales(self._of_release, released.blocks)
        for name in scaled.keys() - _with_scale(self._of_release):
            scaled[name] = self._noise_kept * scaled[name]
        return scaled

    @property
    def remark(self) -> str:
        before, after = (max(scale.spread[k] for scale in self.scales.values()) for k in (0, 1))
        return (
            f"largest over mean eigenvalue of layer inputs {before:.3g}, after scaling {after:.3g}"
            f"{'' if self._damping is None else f' with damping {self._damping:.3g}'}; "
            "decoded noise is as long as DP-SGD's and shorter along large eigenvalues"
        )


def _of_part(scale: LayerScale, part: Part) -> LayerScale:
    """The scaling of the rows of a release that this process holds."""
    return scale if part.rows is None else scale.for_rows(part.rows)


def partner_of(name: str) -> str:
    """What the bias of a matrix is called: `0.bias` for `0.weight`, `bias_ih_l0` for `weight_ih_l0`."""
    return "bias".join(name.rsplit("weight", 1))


def _with_scale(scales: Mapping[str, LayerScale]) -> set[str]:
    """What is scaled: matrices, and the biases that go with them."""
    return scales.keys() | {partner_of(name) for name, scale in scales.items() if scale.with_bias}


def apply_scales(scales: Mapping[str, LayerScale], blocks: Blocks) -> Blocks:
    """Scale a release; blocks without a scale stay as they are."""
    scaled = dict(blocks)
    for name, scale in scales.items():
        partner = partner_of(name)
        scaled[name], bias = scale.apply(scaled[name], scaled.get(partner))
        if scale.with_bias and bias is not None:
            scaled[partner] = bias
    return scaled


def _encode(scales: Mapping[str, LayerScale], grads: PerSampleGrads, length: float) -> BlockwiseGrads:
    """Scale each sample's gradient; blocks without a scale get `length` times longer."""
    encoded = dict(grads.blocks)
    alone = set(encoded)
    for name, scale in scales.items():
        partner = partner_of(name)
        encoded[name], bias = scale.encode(encoded[name], encoded.get(partner))
        alone.discard(name)
        if scale.with_bias and bias is not None:
            encoded[partner] = bias
            alone.discard(partner)
    for name in alone:
        block = encoded[name]
        encoded[name] = block.scale(left=torch.full(block.shape[:1] or (1,), length, device=block.device))
    return BlockwiseGrads(encoded, grads.samples, first_inputs=grads.first_inputs)


def _length_kept(chunks: Iterator[PerSampleGrads], scales: Mapping[str, LayerScale]) -> Tensor:
    """c: the median length of the probes' gradients is the same before and after scaling."""
    before, after = [], []
    for grads in chunks:
        before.append(grads.squared_norms())
        after.append(_encode(scales, grads, 1.0).squared_norms())
    shorter = torch.cat(after).median()
    return torch.where(shorter > 0, (torch.cat(before).median() / shorter).sqrt(), 1.0)


def _read(numbers: Sequence[float | Tensor]) -> list[float]:
    """The numbers, of which those on a device come in one download."""
    on_device = {
        i: n.double() for i, n in enumerate(numbers) if isinstance(n, Tensor) and n.device.type != "cpu"
    }
    known = (
        dict(zip(on_device, torch.stack(list(on_device.values())).tolist(), strict=True)) if on_device else {}
    )
    return [known[i] if i in known else float(number) for i, number in enumerate(numbers)]


def _noise_energy(space: Space, scales: Mapping[str, LayerScale]) -> float | Tensor:
    """‖P·z‖² in expectation, for noise z of one unit a coordinate."""
    paired = {partner_of(name) for name, scale in scales.items() if scale.with_bias}
    scaled = {name: scale.noise_energy(space[name]) for name, scale in scales.items()}
    return sum(scaled.get(name, float(shape.numel())) for name, shape in space.items() if name not in paired)


def _scaled_blocks(
    public: Public, blocks: Mapping[str, BlockGrads]
) -> Iterator[tuple[str, BlockGrads, BlockGrads | None]]:
    """Matrices, each with the block that may be its bias, and coordinates that another representation made."""
    for name, shape in public.space.items():
        is_coordinates = len(shape) == 1 and name not in public.parameters
        if (len(shape) > 1 or is_coordinates) and not blocks[name].is_zero:
            yield name, blocks[name], None if is_coordinates else blocks.get(partner_of(name))
