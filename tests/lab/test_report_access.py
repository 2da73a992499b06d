"""The report can be read by everybody: described pictures, headings in order, contrast, on a telephone, in the dark."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from quietgrad.lab.report import write_report
from quietgrad.lab.report.style import STYLE
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.train import train
from tests.lab.browser import look
from tests.lab.tiny import write_config


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("access")
    train(load_config(write_config(folder), ["training.epochs=0.5"]), folder / "run")
    return write_report([folder / "run"])


def test_every_picture_is_described_and_every_column_has_a_title(page: Path) -> None:
    text = page.read_text()
    pictures = re.findall(r"<svg[^>]*>", text)
    assert len(pictures) == 3
    assert all(re.search(r'role="img" aria-label="[^"]{40,}"', picture) for picture in pictures)
    assert not re.search(r"<th(?![^>]* scope=)[ >]", text)
    assert "of the members are found, whatever the attack" in text


def test_headings_come_in_order(page: Path) -> None:
    levels = [int(level) for level in re.findall(r"<h(\d)", page.read_text())]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def luminance(colour: str) -> float:
    """Of #rrggbb, as WCAG defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_ink_has_contrast_to_every_ground() -> None:
    schemes = [
        dict(re.findall(r"--(\w+): (#\w{6})", part)) for part in STYLE.split("prefers-color-scheme: dark")
    ]
    assert len(schemes) == 2
    for colours in schemes:
        for ink in ("ink", "soft", "accent", "good", "bad"):
            for ground in ("paper", "panel"):
                light, dark = sorted((luminance(colours[ink]), luminance(colours[ground])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (ink, ground)


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_a_browser_finds_nothing_wrong_and_cuts_nothing(
    page: Path, width: int, scheme: str, tmp_path: Path
) -> None:
    seen = look(page, tmp_path, width=width, scheme=scheme)
    assert seen["paper"] == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 29)")
    assert seen["violations"] == []
    assert seen["cut"] == []
    assert seen["sideways"] <= 0, "no sideways scroll"
