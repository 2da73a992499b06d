"""Post-processing inside a representation: `pdp_sgd(…) @ RandomMask(…)` projects the kept coordinates alone."""

from __future__ import annotations

from dataclasses import dataclass

from quietgrad.gradients.blocks import Blocks
from quietgrad.gradients.dense import DenseGrad
from quietgrad.gradients.stages import BlockwiseGrads, Released
from quietgrad.mechanism.post import Post
from quietgrad.representations.base import Representation, State
from quietgrad.representations.public import Public


@dataclass(frozen=True, eq=False)
class Inside(Post):
    """decode(post(encode(g̃))): subspaces and bases shrink to the representation's space, and the update stays in it.

    Args:
        post: works in the encoded space, with public gradients encoded too.
        representation: linear, as masks are.
    """

    post: Post
    representation: Representation

    def init(self, public: Public) -> State:
        return self.post.init(public.inside(self.representation))

    def apply(self, blocks: Blocks, public: Public, state: State) -> tuple[Blocks, State]:
        codec = public.codec(self.representation)
        one = BlockwiseGrads({name: DenseGrad(block[None]) for name, block in blocks.items()}, 1)
        encoded = {name: rows[0] for name, rows in codec.encode(one).dense().items()}
        processed, state = self.post.apply(encoded, public.inside(self.representation), state)
        decoded = codec.decode(Released(blocks=processed, std=0.0, sensitivity=0.0))
        assert decoded is not None, "a representation that a mechanism lives in decodes to a gradient"
        return decoded, state
