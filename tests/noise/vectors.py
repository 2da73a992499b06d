"""Known answers of ChaCha20, from RFC 8439 sections 2.3.2 and A.1."""

from __future__ import annotations

from typing import NamedTuple


class Vector(NamedTuple):
    """A block of the key stream: of the state's last four words, two count blocks and two name the stream."""

    name: str
    key: bytes
    block: int
    stream: int
    made: str


VECTORS = [
    Vector(
        "section_2.3.2",
        bytes(range(32)),
        1 | 0x09000000 << 32,
        0x4A000000,
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    Vector(
        "A.1_1",
        bytes(32),
        0,
        0,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    Vector(
        "A.1_2",
        bytes(32),
        1,
        0,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
]
