"""A convolution as a matrix product: its patches, and their Gram matrix without unfolding them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Window:
    """How a kernel `[o, i/groups, *k]` moves. Inputs are already padded where padding is not zeros."""

    kernel: torch.Size
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def dims(self) -> int:
        return len(self.stride)

    @property
    def taps(self) -> int:
        """Count the inputs of one output channel."""
        return math.prod(self.kernel[1:])

    def with_outputs(self, outputs: int) -> Window:
        """Return the same movement of a kernel with other output channels."""
        return replace(self, kernel=torch.Size((outputs, *self.kernel[1:])))


def pad_pictures(inputs: Float[Tensor, "n m i *space"], window: Window) -> Float[Tensor, "n m i *wide"]:
    """Pad with zeros."""
    if not any(window.padding):
        return inputs
    return F.pad(inputs, [side for pad in reversed(window.padding) for side in (pad, pad)])


def unfold(inputs: Float[Tensor, "n m i *space"], window: Window) -> Float[Tensor, "n t taps"]:
    """Unfold patches, taps in the kernel's own order (channel, then space)."""
    patches = pad_pictures(inputs, window)
    for axis in range(window.dims):
        # A window of `reach` pixels holds all taps of the axis; with dilation only every so-many-th pixel is one.
        reach = (window.kernel[2 + axis] - 1) * window.dilation[axis] + 1
        patches = patches.unfold(3 + axis, reach, window.stride[axis])[..., :: window.dilation[axis]]
    space = range(3, 3 + window.dims)
    taps = range(3 + window.dims, 3 + 2 * window.dims)
    return patches.permute(0, 1, *space, 2, *taps).reshape(len(inputs), -1, window.taps)


def unfold_rows(inputs: Float[Tensor, "n m i h w"], window: Window) -> Float[Tensor, "n t taps"]:
    """Unfold 2-D patches with channels last (taps: height, width, channel).

    Whole stretches of memory are copied, which is several times faster than `unfold`.
    """
    view = _rows_view(inputs, window)
    return view.reshape(len(view), math.prod(view.shape[1:4]), window.taps)


def _rows_view(inputs: Float[Tensor, "n m i h w"], window: Window) -> Float[Tensor, "n m h2 w2 kh kw i"]:
    """View the same patches where they lie, overlapping, in one picture with channels last."""
    wide = pad_pictures(inputs, window).permute(0, 1, 3, 4, 2).contiguous()
    (kh, kw), (sh, sw), (dh, dw) = window.kernel[2:], window.stride, window.dilation
    n, m, rows, columns, channels = wide.shape
    height, width = (rows - (kh - 1) * dh - 1) // sh + 1, (columns - (kw - 1) * dw - 1) // sw + 1
    # Neighbouring patches overlap, so the view has the same pixel several times and copies nothing. Moving the patch
    # by one steps over `stride` pixels, moving within it over `dilation`.
    a, b, c, d, e = wide.stride()
    return wide.as_strided((n, m, height, width, kh, kw, channels), (a, b, c * sh, d * sw, c * dh, d * dw, e))


def strips(inputs: Float[Tensor, "n 1 i h w"], window: Window) -> list[Float[Tensor, "n h2 w2 taps"]]:
    """View the taps of `unfold_rows` in parts that lie side by side in the picture, a row of the kernel each.

    Nothing is unfolded. There must be one image a sample and no dilation along the rows.
    """
    assert inputs.shape[1] == 1
    assert window.dilation[1] == 1
    return [row.flatten(3) for row in _rows_view(inputs, window)[:, 0].unbind(3)]


def from_rows(gradient: Float[Tensor, "... taps"], window: Window) -> Float[Tensor, "... i kh kw"]:
    """Put a kernel's gradient back from the taps of `unfold_rows` into its own order."""
    channels, kh, kw = window.kernel[1:]
    return torch.unflatten(gradient, -1, (kh, kw, channels)).movedim(-1, -3)


def positions_first(maps: Float[Tensor, "n m c *space"]) -> Float[Tensor, "n t c"]:
    """Lay all positions of a sample one after the other."""
    return maps.flatten(3).permute(0, 1, 3, 2).reshape(len(maps), -1, maps.shape[2])


def pixel_gram(inputs: Float[Tensor, "n 1 i h w"], window: Window) -> Float[Tensor, "n t t"]:
    """Compute inner products of patches from inner products of pixels.

    ⟨patch_t, patch_s⟩ = Σ_taps ⟨x[t+tap], x[s+tap]⟩: the pixels' Gram matrix has k² times fewer multiplications,
    and its diagonals add up one axis at a time.
    """
    n, _, _, rows, columns = inputs.shape
    pixels = inputs[:, 0].flatten(2)
    gram = torch.bmm(pixels.transpose(1, 2), pixels).view(n, rows, columns, rows, columns)
    # The sum over taps (y, x) is one over x of one over y. Done one after the other, kh·kw additions become kh + kw.
    for axis in (1, 0):
        gram = _diagonal_sums(gram, window, axis)
    return gram.flatten(3, 4).flatten(1, 2)


def _diagonal_sums(gram: Float[Tensor, "n h w h2 w2"], window: Window, axis: int) -> Tensor:
    """Add up the taps of one axis, the same tap on both sides; taps on the zero padding add nothing."""
    dim, size = 1 + axis, gram.shape[1 + axis]
    step, spread = window.stride[axis], window.dilation[axis]
    pad, taps = window.padding[axis], window.kernel[2 + axis]
    count = (size + 2 * pad - (taps - 1) * spread - 1) // step + 1
    shape = list(gram.shape)
    shape[dim] = shape[dim + 2] = count
    total = gram.new_zeros(shape)
    for tap in range(taps):
        offset = tap * spread - pad
        # Patch number p touches pixel p·step + offset with this tap. `first` and `last` are the patches for which
        # that pixel is inside the picture; outside it there is padding, and nothing to add.
        first = max(0, -(offset // step))
        last = min(count - 1, (size - 1 - offset) // step)
        if first > last:
            continue
        start = first * step + offset
        targets, sources = slice(first, last + 1), slice(start, start + (last - first) * step + 1, step)
        _along(total, dim, targets).add_(_along(gram, dim, sources))
    return total


def _along(gram: Tensor, dim: int, places: slice) -> Tensor:
    """Take the same places of one axis on both sides."""
    index = [slice(None)] * 5
    index[dim] = index[dim + 2] = places
    return gram[tuple(index)]
