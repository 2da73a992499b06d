"""The gradient as it is, of a size that was fixed beforehand."""

from __future__ import annotations

from dataclasses import dataclass

from quietgrad._gradients.space import coordinates
from quietgrad._representations.base import Codec, IdentityCodec, Public, Representation, State


@dataclass(frozen=True)
class Counted(Representation):
    """encode(g) = g, for a mechanism whose event depends on the number of coordinates.

    Args:
        coordinates: p that the mechanism was made for.
    """

    coordinates: int

    def refresh(self, public: Public, state: State) -> tuple[Codec, State]:
        found = coordinates(public.space)
        if found != self.coordinates:
            raise ValueError(
                f"The mechanism was made for {self.coordinates} coordinates, but {found} are trained. Freeze "
                "parameters before making the mechanism, and pass it the model that is trained."
            )
        return IdentityCodec(public), state
