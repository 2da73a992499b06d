"""Run recurrent cells over time for a whole batch, and compute the gradients of their gates.

    pre_t = W_ih x_t + b_ih + W_hh h_{t−1} + b_hh,      d_t = ∂⟨outputs, their gradients⟩/∂pre_t

Every weight's gradient is a sum of outer products of d_t with what it was multiplied with. The forward keeps what the
backward needs: the gates after their nonlinearity, and all states. The backward through time goes from the last step to
the first. At each it multiplies the gradient of the state by the slopes of the gates, which gives d_t, and d_t by W_hh,
which gives the gradient of the state before. Only this product has to be done step by step: the slopes of all steps are
computed at once.

Rows are the entries of a batch, and nothing here mixes them. Sequences of several lengths are sorted, longest first:
step t is taken by the first `sizes[t]` entries, and the states of the others stay as they are.

Checked by: tests/capture/test_over_time.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

Steps = Float[Tensor, "t n _"]
"""One row of numbers for each step and entry."""
Arranged = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class CellWeights:
    """What one direction of one layer multiplies its states with; None where the module has no such thing."""

    w_hh: Float[Tensor, "g p"]
    b_hh: Float[Tensor, " g"] | None
    w_hr: Float[Tensor, "p h"] | None


@dataclass(frozen=True)
class GateGradients:
    """What a backward through time finds.

    Args:
        gates: d_t.
        start: at the states that the cell began with.
        projected: at each step's projected state.
    """

    gates: Steps
    start: tuple[Tensor, ...]
    projected: Steps | None = None


class RecurrentCell(ABC):
    """One direction of one layer, run forwards when it is made.

    Attributes:
        states: h_0 … h_T.
        unprojected: what the projection of an LSTM was given.
    """

    states: Float[Tensor, "t1 n p"]
    unprojected: Steps | None = None

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """The last states that the module returns beside h_T."""
        return ()

    def at_state(self, d: Float[Tensor, "*m g"], arranged: Arranged) -> Float[Tensor, "*m g"]:
        """d_t as it reaches the product with the state; `arranged` brings steps into the order of `d`."""
        return d

    @abstractmethod
    def backward(self, outputs: Steps, memory: tuple[Tensor, ...]) -> GateGradients:
        """From the gradients of h_1 … h_T and of `memory`."""


class LSTMCells(RecurrentCell):
    """i, f, o = σ(·), g = tanh(·);   c_t = f c_{t−1} + i g,   h_t = W_hr (o tanh c_t).

    Args:
        gates: the inputs' products, b_hh added; written over.
    """

    def __init__(
        self, gates: Steps, start: tuple[Tensor, ...], weights: CellWeights, sizes: list[int]
    ) -> None:
        self._w, self._sizes, h = weights, sizes, weights.w_hh.shape[0] // 4
        self.states = _with_start(start[0], len(gates))
        self._cells, self._squashed = _with_start(start[1], len(gates)), gates.new_zeros(*gates.shape[:2], h)
        out = self.states[1:] if weights.w_hr is None else torch.zeros_like(self._squashed)
        # Everything is written in place: `gates` begins as the products of the inputs and ends as the gates after
        # their nonlinearity, which is all that the backward needs.
        back = weights.w_hh.T
        for t, size in enumerate(sizes):
            pre, squashed, cell = gates[t, :size], self._squashed[t, :size], self._cells[t + 1, :size]
            pre.addmm_(self.states[t, :size], back)
            i, f, g, o = pre.chunk(4, 1)
            pre[:, : 2 * h].sigmoid_(), g.tanh_(), o.sigmoid_()
            torch.mul(f, self._cells[t, :size], out=cell)
            torch.tanh(cell.addcmul_(i, g), out=squashed)
            torch.mul(o, squashed, out=out[t, :size])
            if weights.w_hr is not None:
                torch.mm(out[t, :size], weights.w_hr.T, out=self.states[t + 1, :size])
            _stay(self.states, t, size)
            _stay(self._cells, t, size)
        self._gates = gates
        self.unprojected = None if weights.w_hr is None else out

    @property
    def memory(self) -> tuple[Tensor, ...]:
        return (self._cells[-1],)

    def backward(self, outputs: Steps, memory: tuple[Tensor, ...]) -> GateGradients:
        steps, n, h = self._squashed.shape
        i, f, g, o = self._gates.view(steps, n, 4, h).unbind(2)
        slopes = torch.empty_like(self._gates).view(steps, n, 4, h)
        torch.mul(g * i, 1 - i, out=slopes[:, :, 0])
        torch.mul(self._cells[:-1] * f, 1 - f, out=slopes[:, :, 1])
        torch.mul(i, 1 - g * g, out=slopes[:, :, 2])
        torch.mul(self._squashed * o, 1 - o, out=slopes[:, :, 3])
        # Slopes of all steps at once. Gates i, f and g reach the loss through the cell c_t, and o through tanh c_t
        # alone: ∂c/∂i = g·i(1 − i), ∂c/∂f = c_{t−1}·f(1 − f), ∂c/∂g = i(1 − g²), ∂h/∂o = tanh(c)·o(1 − o).
        to_cell = o * (1 - self._squashed * self._squashed)
        found, projected = slopes, None if self._w.w_hr is None else torch.empty_like(outputs)
        state, cell = outputs[-1], memory[0].clone()
        for t, size in reversed(list(enumerate(self._sizes))):
            moved, here, mine = state[:size], cell[:size], found[t, :size]
            if projected is not None and self._w.w_hr is not None:
                projected[t, :size] = moved
                projected[t, size:] = 0.0
                moved = moved @ self._w.w_hr
            # The gradient of c_t is what the next step left in `cell` plus what comes from h_t through the tanh.
            here.addcmul_(moved, to_cell[t, :size])
            mine[:, :3].mul_(here[:, None])  # the slopes are not needed again
            mine[:, 3].mul_(moved)
            # c_t = f·c_{t−1} + …, so the gradient goes on to the cell before through the forget gate.
            here.mul_(f[t, :size])
            found[t, size:] = 0.0
            state = _earlier(outputs, t, size, mine.view(size, 4 * h) @ self._w.w_hh, state)
        return GateGradients(found.view(steps, n, 4 * h), (state, cell), projected)


class GRUCells(RecurrentCell):
    """r, z = σ(·),   m = tanh(W_in x + b_in + r (W_hn h + b_hn)),   h_t = (1 − z) m + z h_{t−1}.

    Args:
        gates: the inputs' products; written over.
    """

    def __init__(
        self, gates: Steps, start: tuple[Tensor, ...], weights: CellWeights, sizes: list[int]
    ) -> None:
        self._w, self._gates, self._sizes, h = weights, gates, sizes, weights.w_hh.shape[1]
        self.states = _with_start(start[0], len(gates))
        self._inner = gates.new_zeros(*gates.shape[:2], h)
        shift = weights.w_hh.new_zeros(3 * h) if weights.b_hh is None else weights.b_hh
        for t, size in enumerate(sizes):
            pre, before = gates[t, :size], self.states[t, :size]
            product = torch.addmm(shift, before, weights.w_hh.T)
            both = pre[:, : 2 * h].add_(product[:, : 2 * h]).sigmoid_()
            self._inner[t, :size] = product[:, 2 * h :]
            m = pre[:, 2 * h :].addcmul_(both[:, :h], product[:, 2 * h :]).tanh_()
            torch.lerp(m, before, both[:, h:], out=self.states[t + 1, :size])
            _stay(self.states, t, size)

    def at_state(self, d: Float[Tensor, "*m g"], arranged: Arranged) -> Float[Tensor, "*m g"]:
        h = self._inner.shape[2]
        reached = d.clone()
        # The third part of W_hh h + b_hh is multiplied by the reset gate before it joins the gates.
        reached[..., 2 * h :].mul_(arranged(self._gates[:, :, :h]))
        return reached

    def backward(self, outputs: Steps, memory: tuple[Tensor, ...]) -> GateGradients:
        steps, n, h = self._inner.shape
        r, z, m = self._gates.view(steps, n, 3, h).unbind(2)
        # h = (1 − z)·m + z·h₋: ∂h/∂z = h₋ − m, ∂h/∂m = 1 − z, and m depends on r through r·(W_hn h₋ + b_hn).
        to_z = (self.states[:-1] - m) * z * (1 - z)
        to_m = (1 - z) * (1 - m * m)
        to_r = self._inner * r * (1 - r)
        found = torch.empty_like(self._gates).view(steps, n, 3, h)
        through = found.new_empty(n, 3, h)
        state = outputs[-1]
        for t, size in reversed(list(enumerate(self._sizes))):
            moved, mine, back = state[:size], found[t, :size], through[:size]
            torch.mul(moved, to_m[t, :size], out=mine[:, 2])
            torch.mul(moved, to_z[t, :size], out=mine[:, 1])
            torch.mul(mine[:, 2], to_r[t, :size], out=mine[:, 0])
            # `back` is d_t as W_hh sees it: the third part comes through the reset gate, as in `at_state`.
            back[:, :2] = mine[:, :2]
            torch.mul(mine[:, 2], r[t, :size], out=back[:, 2])
            found[t, size:] = 0.0
            direct = (moved * z[t, :size]).addmm_(back.view(size, 3 * h), self._w.w_hh)
            state = _earlier(outputs, t, size, direct, state)
        return GateGradients(found.flatten(2), (state,))


class RNNCells(RecurrentCell):
    """h_t = tanh(·) or max(·, 0).

    Args:
        gates: the inputs' products, b_hh added; written over.
    """

    def __init__(
        self, gates: Steps, start: tuple[Tensor, ...], weights: CellWeights, sizes: list[int], *, relu: bool
    ) -> None:
        self._w, self._sizes, self._relu = weights, sizes, relu
        self.states = _with_start(start[0], len(gates))
        for t, size in enumerate(sizes):
            pre = gates[t, :size].addmm_(self.states[t, :size], weights.w_hh.T)
            self.states[t + 1, :size] = pre.relu_() if relu else pre.tanh_()
            _stay(self.states, t, size)

    def backward(self, outputs: Steps, memory: tuple[Tensor, ...]) -> GateGradients:
        after = self.states[1:]
        slopes = (after > 0).to(after.dtype) if self._relu else 1 - after * after
        state = outputs[-1]
        for t, size in reversed(list(enumerate(self._sizes))):
            mine = slopes[t, :size].mul_(state[:size])  # not needed again
            slopes[t, size:] = 0.0
            state = _earlier(outputs, t, size, mine @ self._w.w_hh, state)
        return GateGradients(slopes, (state,))


def cells(
    module: nn.RNNBase, gates: Steps, start: tuple[Tensor, ...], weights: CellWeights, sizes: list[int]
) -> RecurrentCell:
    """The module's kind of cell, run over time on the products of its inputs."""
    if module.mode == "LSTM":
        return LSTMCells(gates, start, weights, sizes)
    if module.mode == "GRU":
        return GRUCells(gates, start, weights, sizes)
    return RNNCells(gates, start, weights, sizes, relu=module.mode == "RNN_RELU")


def _with_start(start: Float[Tensor, "n h"], steps: int) -> Float[Tensor, "t1 n h"]:
    states = start.new_empty(steps + 1, *start.shape)
    states[0] = start
    return states


def _stay(states: Float[Tensor, "t1 n h"], t: int, size: int) -> None:
    """Entries that have ended keep their state."""
    if size < states.shape[1]:
        states[t + 1, size:] = states[t, size:]


def _earlier(
    outputs: Steps, t: int, size: int, moved: Float[Tensor, "_ h"], state: Float[Tensor, "n h"]
) -> Float[Tensor, "n h"]:
    """The gradient of h_t from that of h_{t+1}: what came through the step, and what arrives at h_t from outside."""
    before = moved if size == len(state) else torch.cat([moved, state[size:]])
    return before.add_(outputs[t - 1]) if t else before
