"""Which version of the kernels is used, and that a test or a user can choose."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._kernels import library


def chosen(monkeypatch: pytest.MonkeyPatch, value: str | None) -> str:
    """The level under this setting of the environment, read afresh."""
    monkeypatch.delenv(library.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(library.VARIABLE, value)
    library._usual.cache_clear()
    try:
        return library.level()
    finally:
        monkeypatch.undo()
        library._usual.cache_clear()


def test_the_fastest_level_is_the_default_and_the_environment_chooses_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    best = library.levels()[-1] if library.levels() else "off"
    assert chosen(monkeypatch, None) == best
    for level in ("off", *library.levels()):
        assert chosen(monkeypatch, level) == level


def test_a_level_that_is_not_there_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="Expected QUIETGRAD_KERNELS to be one of off"):
        chosen(monkeypatch, "fast")


def test_levels_can_be_changed_for_a_while() -> None:
    before = library.level()
    with library.at("off"):
        assert library.in_use() is None
        assert library.described().startswith("torch")
    assert library.level() == before


@pytest.mark.parametrize("level", ["off", *library.levels()])
def test_explain_says_what_is_used(level: str) -> None:
    model = nn.Linear(3, 2)
    batches = qg.PoissonBatches(TensorDataset(torch.randn(8, 3)), rate=0.5, steps=2)
    with library.at(level):
        private = qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches)
        assert f"kernels: {library.described()}" in str(private.explain())
        assert ("torch" in library.described()) == (level == "off")
        private.close()


@pytest.mark.skipif(not library.levels(), reason="the C library was not built")
def test_a_library_of_older_sources_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "KERNELS", (*library.KERNELS, "qg_not_built_yet"))
    forget = (library.native.cache_clear, library._usual.cache_clear)
    for each in forget:
        each()
    try:
        assert library.native() is None
        assert library.level() == "off"
    finally:
        monkeypatch.undo()
        for each in forget:
            each()
