"""What representations remember between steps, and the codecs that one step makes of it."""

from __future__ import annotations

from collections.abc import Mapping

from quietgrad.gradients.stages import Released
from quietgrad.representations.base import Codec, Representation, State
from quietgrad.representations.public import Public

Place = tuple[Representation, ...]
"""A representation, and before it those that it is inside of."""


class States:
    """The states of a run's representations, each a value that is replaced and never changed in place.

    Representations are told apart by identity and by what they live inside, so GEP's embedding and residual share
    one basis while the same mask used at two depths has two states. Places are numbered in the order of first use,
    which is fixed by the mechanism; a saved state therefore fits the same mechanism built again.

    Args:
        saved: what `state_dict` gave.
    """

    def __init__(self, saved: Mapping[str, State] | None = None) -> None:
        self._places: list[Place] = []
        self._states = {int(number): state for number, state in (saved or {}).items()}

    def number(self, place: Place) -> int:
        """Of a place, given out at its first use."""
        for number, known in enumerate(self._places):
            if len(known) == len(place) and all(a is b for a, b in zip(known, place, strict=True)):
                return number
        self._places.append(place)
        return len(self._places) - 1

    def get(self, number: int) -> State | None:
        """The state at a place; None before the first step."""
        return self._states.get(number)

    def put(self, number: int, state: State) -> None:
        """Replace the state at a place."""
        self._states[number] = state

    def copy(self) -> States:
        """To look at a step without taking it."""
        other = States(self.state_dict())
        other._places = list(self._places)
        return other

    def state_dict(self) -> dict[str, State]:
        """For a checkpoint."""
        return {str(number): state for number, state in self._states.items()}


class Codecs:
    """One step's codecs, each made once.

    Args:
        states: where representations find what they remember, and leave what they learn.
    """

    def __init__(self, states: States) -> None:
        self._states = states
        self._made: dict[int, Codec] = {}

    def codec(self, representation: Representation, public: Public) -> Codec:
        """The codec of a representation at the view's place."""
        number = self._states.number((*public.place, representation))
        if number not in self._made:
            state = self._states.get(number)
            if state is None:
                state = representation.init(public)
            self._made[number], state = representation.refresh(public, state)
            self._states.put(number, state)
        return self._made[number]

    def observe(self, representation: Representation, public: Public, released: Released) -> None:
        """Let the representation at the view's place learn from a release; its codec has been made."""
        number = self._states.number((*public.place, representation))
        state = self._states.get(number)
        assert state is not None, "a representation observes what its codec encoded"
        self._states.put(number, representation.observe(public, state, released))
