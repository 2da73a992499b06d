"""Recurrent cells over time: run for a whole batch, then the gradients of their gates by one backward through time.

    pre_t = W_ih x_t + b_ih + W_hh h_{t−1} + b_hh,      d_t = ∂⟨outputs, their gradients⟩/∂pre_t

Every weight's gradient is a sum of outer products of d_t with what it was multiplied with. Rows are the entries of a
batch; nothing here mixes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

Steps = Float[Tensor, "t n _"]
"""One row of numbers for each step and entry."""


@dataclass(frozen=True)
class Weights:
    """Of one direction of one layer; biases are zero and the projection None where the module has none."""

    w_ih: Float[Tensor, "g i"]
    w_hh: Float[Tensor, "g h"]
    b_ih: Float[Tensor, " g"]
    b_hh: Float[Tensor, " g"]
    w_hr: Float[Tensor, "p h"] | None


@dataclass(frozen=True)
class GateGradients:
    """What the weights' gradients are made of.

    Args:
        from_input, from_state: d_t as it reaches the input's and the state's product; a GRU's differ.
        projected: the gradient at each step's projected state.
    """

    from_input: Steps
    from_state: Steps
    projected: Steps | None = None


class Cell(ABC):
    """One direction of one layer, run forwards when it is made.

    Attributes:
        states: h_0 … h_T.
        unprojected: what the projection of an LSTM was given.
    """

    states: Float[Tensor, "t1 n p"]
    unprojected: Steps | None = None

    @property
    def last(self) -> tuple[Tensor, ...]:
        """The states that the module returns."""
        return (self.states[-1],)

    @abstractmethod
    def backward(self, outputs: Steps, ends: tuple[Tensor, ...]) -> GateGradients:
        """From the gradients of h_1 … h_T and of `last`."""


class LSTMCells(Cell):
    """i, f, o = σ(·), g = tanh(·);   c_t = f c_{t−1} + i g,   h_t = W_hr (o tanh c_t)."""

    def __init__(self, x: Steps, start: tuple[Tensor, ...], weights: Weights) -> None:
        self._w, h = weights, weights.w_hh.shape[0] // 4
        gates = _input_products(x, weights.w_ih, weights.b_ih + weights.b_hh)
        self.states = _with_start(start[0], len(x))
        self._cells, self._squashed = _with_start(start[1], len(x)), x.new_empty(*x.shape[:2], h)
        out = self.states[1:] if weights.w_hr is None else torch.empty_like(self._squashed)
        back = weights.w_hh.T
        for t, pre in enumerate(gates):
            pre.addmm_(self.states[t], back)
            i, f, g, o = pre.chunk(4, 1)
            pre[:, : 2 * h].sigmoid_(), g.tanh_(), o.sigmoid_()
            torch.mul(f, self._cells[t], out=self._cells[t + 1])
            torch.tanh(self._cells[t + 1].addcmul_(i, g), out=self._squashed[t])
            torch.mul(o, self._squashed[t], out=out[t])
            if weights.w_hr is not None:
                torch.mm(out[t], weights.w_hr.T, out=self.states[t + 1])
        self._gates = gates
        self.unprojected = None if weights.w_hr is None else out

    @property
    def last(self) -> tuple[Tensor, ...]:
        return self.states[-1], self._cells[-1]

    def backward(self, outputs: Steps, ends: tuple[Tensor, ...]) -> GateGradients:
        steps, n, h = self._squashed.shape
        i, f, g, o = self._gates.view(steps, n, 4, h).unbind(2)
        slopes = torch.empty_like(self._gates).view(steps, n, 4, h)
        torch.mul(g * i, 1 - i, out=slopes[:, :, 0])
        torch.mul(self._cells[:-1] * f, 1 - f, out=slopes[:, :, 1])
        torch.mul(i, 1 - g * g, out=slopes[:, :, 2])
        torch.mul(self._squashed * o, 1 - o, out=slopes[:, :, 3])
        to_cell = o * (1 - self._squashed * self._squashed)
        found, projected = slopes, None if self._w.w_hr is None else torch.empty_like(outputs)
        state, cell = outputs[-1] + ends[0], ends[1].clone()
        for t in reversed(range(steps)):
            if projected is not None and self._w.w_hr is not None:
                projected[t] = state
                state = state @ self._w.w_hr
            cell.addcmul_(state, to_cell[t])
            found[t, :, :3].mul_(cell[:, None])  # the slopes are not needed again
            found[t, :, 3].mul_(state)
            cell.mul_(f[t])
            if t:
                state = torch.addmm(outputs[t - 1], found[t].view(n, 4 * h), self._w.w_hh)
        gates = found.view(steps, n, 4 * h)
        return GateGradients(gates, gates, projected)


class GRUCells(Cell):
    """r, z = σ(·),   m = tanh(W_in x + b_in + r (W_hn h + b_hn)),   h_t = (1 − z) m + z h_{t−1}."""

    def __init__(self, x: Steps, start: tuple[Tensor, ...], weights: Weights) -> None:
        self._w, h = weights, weights.w_hh.shape[1]
        self._gates = _input_products(x, weights.w_ih, weights.b_ih)
        self.states = _with_start(start[0], len(x))
        self._inner = x.new_empty(*x.shape[:2], h)
        for t, pre in enumerate(self._gates):
            product = torch.addmm(weights.b_hh, self.states[t], weights.w_hh.T)
            both = pre[:, : 2 * h].add_(product[:, : 2 * h]).sigmoid_()
            self._inner[t] = product[:, 2 * h :]
            m = pre[:, 2 * h :].addcmul_(both[:, :h], self._inner[t]).tanh_()
            torch.lerp(m, self.states[t], both[:, h:], out=self.states[t + 1])

    def backward(self, outputs: Steps, ends: tuple[Tensor, ...]) -> GateGradients:
        steps, n, h = self._inner.shape
        r, z, m = self._gates.view(steps, n, 3, h).unbind(2)
        to_z = (self.states[:-1] - m) * z * (1 - z)
        to_m = (1 - z) * (1 - m * m)
        to_r = self._inner * r * (1 - r)
        found = torch.empty_like(self._gates).view(steps, n, 3, h)
        through = torch.empty_like(found)
        state = outputs[-1] + ends[0]
        for t in reversed(range(steps)):
            torch.mul(state, to_m[t], out=found[t, :, 2])
            torch.mul(state, to_z[t], out=found[t, :, 1])
            torch.mul(found[t, :, 2], to_r[t], out=found[t, :, 0])
            through[t, :, :2] = found[t, :, :2]
            torch.mul(found[t, :, 2], r[t], out=through[t, :, 2])
            if t:
                direct = torch.addcmul(outputs[t - 1], state, z[t])
                state = direct.addmm_(through[t].view(n, 3 * h), self._w.w_hh)
        return GateGradients(found.flatten(2), through.flatten(2))


class RNNCells(Cell):
    """h_t = tanh(·) or max(·, 0)."""

    def __init__(self, x: Steps, start: tuple[Tensor, ...], weights: Weights, *, relu: bool) -> None:
        self._w, self._relu = weights, relu
        gates = _input_products(x, weights.w_ih, weights.b_ih + weights.b_hh)
        self.states = _with_start(start[0], len(x))
        for t, pre in enumerate(gates):
            pre.addmm_(self.states[t], weights.w_hh.T)
            self.states[t + 1] = pre.relu_() if relu else pre.tanh_()

    def backward(self, outputs: Steps, ends: tuple[Tensor, ...]) -> GateGradients:
        after = self.states[1:]
        slopes = (after > 0).to(after.dtype) if self._relu else 1 - after * after
        state = outputs[-1] + ends[0]
        for t in reversed(range(len(slopes))):
            slopes[t].mul_(state)  # not needed again
            if t:
                state = torch.addmm(outputs[t - 1], slopes[t], self._w.w_hh)
        return GateGradients(slopes, slopes)


def cells(module: nn.RNNBase, x: Steps, start: tuple[Tensor, ...], weights: Weights) -> Cell:
    """The module's kind of cell, run over time."""
    if module.mode == "LSTM":
        return LSTMCells(x, start, weights)
    if module.mode == "GRU":
        return GRUCells(x, start, weights)
    return RNNCells(x, start, weights, relu=module.mode == "RNN_RELU")


def _input_products(x: Steps, w_ih: Float[Tensor, "g i"], bias: Float[Tensor, " g"]) -> Steps:
    """W_ih x_t + b for all steps at once."""
    return torch.addmm(bias, x.reshape(-1, x.shape[2]), w_ih.T).view(*x.shape[:2], -1)


def _with_start(start: Float[Tensor, "n h"], steps: int) -> Float[Tensor, "t1 n h"]:
    states = start.new_empty(steps + 1, *start.shape)
    states[0] = start
    return states
