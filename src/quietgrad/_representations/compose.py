"""One representation inside another: `outer @ inner` encodes with `inner` first."""

from __future__ import annotations

from dataclasses import dataclass, replace

from quietgrad._gradients.blocks import Blocks
from quietgrad._gradients.stages import PerSampleGrads, Released
from quietgrad._representations.base import Codec, Public, Representation, State


class ComposedCodec(Codec):
    def __init__(self, outer: Codec, inner: Codec) -> None:
        self.outer, self.inner, self.space = outer, inner, outer.space
        self.since = max(outer.since, inner.since)

    @property
    def remark(self) -> str:
        return "; ".join(part for part in (self.inner.remark, self.outer.remark) if part)

    def encode(self, grads: PerSampleGrads) -> PerSampleGrads:
        return self.outer.encode(self.inner.encode_once(grads))

    def decode(self, released: Released) -> Blocks | None:
        between = self.outer.decode(released)
        return None if between is None else self.inner.decode(replace(released, blocks=between))


@dataclass(frozen=True, eq=False)
class Composed(Representation):
    """encode(g) = outer.encode(inner.encode(g)). Public gradients pass through `inner` too."""

    outer: Representation
    inner: Representation

    @property
    def is_fixed(self) -> bool:
        return self.outer.is_fixed and self.inner.is_fixed

    def refresh(self, public: Public, state: State) -> tuple[Codec, State]:
        outer = public.inside(self.inner).codec(self.outer)
        return ComposedCodec(outer, public.codec(self.inner)), state

    def observe(self, public: Public, state: State, released: Released) -> State:
        """`outer` sees the release as it is, `inner` what `outer` makes of it."""
        view = public.inside(self.inner)
        view.observe(self.outer, released)
        between = view.codec(self.outer).decode(released)
        if between is not None:
            public.observe(self.inner, replace(released, blocks=between))
        return state
