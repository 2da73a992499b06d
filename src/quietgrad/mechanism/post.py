"""What may be done to a gradient after it was released: anything, free of privacy cost."""

from __future__ import annotations

from abc import ABC, abstractmethod

from quietgrad.gradients.blocks import Blocks
from quietgrad.representations.base import State
from quietgrad.representations.public import Public


class Post(ABC):
    """A function of what is already public.

    Example:
        class Sign(qg.Post):
            def apply(self, blocks, public, state):
                return {name: block.sign() for name, block in blocks.items()}, state
    """

    def init(self, public: Public) -> State:
        """The state before the first step."""
        return {}

    @abstractmethod
    def apply(self, blocks: Blocks, public: Public, state: State) -> tuple[Blocks, State]:
        """The released gradient made better, and the state from here on; neither is changed in place."""
