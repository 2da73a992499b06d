"""Keeps every representation's state and refreshes each one once per step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from quietgrad.gradients.stages import PerSampleGrads, Released
from quietgrad.representations.base import Codec, Representation, State
from quietgrad.representations.public import Public, PublicLosses


@dataclass(frozen=True)
class Site:
    """Where a representation is used: inside which others. The same object inside another mask is another site."""

    path: tuple[int, ...]


class Refresher:
    """The states of all representations, and this step's codecs, each made once.

    Representations are told apart by identity and by what they live inside, so GEP's embedding and residual share
    one basis while the same mask used at two depths has two states. Keys are numbered in the order of first use,
    which is fixed by the mechanism; a saved state therefore fits the same mechanism built again.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[Site, int], int] = {}
        self._kept: list[Representation] = []  # so that an id is never reused by another object
        self._states: dict[int, State] = {}
        self._codecs: dict[int, Codec] = {}
        self._views: dict[int, Public] = {}

    def begin(self, public: Public) -> Public:
        """Start a step: forget the last step's codecs and return the public view with sharing wired in."""
        self._codecs.clear()
        self._views.clear()
        return self._wired(public, Site(()))

    def state_dict(self) -> dict[str, Any]:
        return {str(number): state for number, state in self._states.items()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self._states = {int(number): state for number, state in saved.items()}

    def _wired(self, public: Public, site: Site) -> Public:
        view = replace(
            public,
            codec=lambda representation: self._codec(representation, view, site),
            observe=lambda representation, released: self._observe(representation, view, site, released),
            inside=lambda representation: self._inside(representation, view, site),
        )
        return view

    def _number(self, representation: Representation, site: Site) -> int:
        key = (site, id(representation))
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self._kept.append(representation)
        return self._numbers[key]

    def _codec(self, representation: Representation, public: Public, site: Site) -> Codec:
        number = self._number(representation, site)
        if number not in self._codecs:
            if number not in self._states:
                self._states[number] = representation.init(public)
            self._codecs[number] = representation.refresh(public, self._states[number])
        return self._codecs[number]

    def _observe(
        self, representation: Representation, public: Public, site: Site, released: Released
    ) -> None:
        representation.observe(public, self._states[self._number(representation, site)], released)

    def _inside(self, representation: Representation, public: Public, site: Site) -> Public:
        number = self._number(representation, site)
        if number not in self._views:
            codec = self._codec(representation, public, site)

            def encoded(public_losses: PublicLosses) -> Iterator[PerSampleGrads]:
                return (codec.encode(grads) for grads in public.gradients(public_losses))

            inner = replace(
                public, space=codec.space, gradients=encoded, since=max(public.since, codec.since)
            )
            self._views[number] = self._wired(inner, Site((*site.path, number)))
        return self._views[number]
