"""Commands of the pages that are not `quietgrad`'s: targets, extras, paths and options that they name exist."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.pages import PAGES, ROOT, commands, title

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

USER_PAGES = [page for page in PAGES if page.name != "CHANGELOG.md" and "notes" not in page.parts]
PYTHON = r"(?:PEERS/bin/)?python -m (benchmarks\.\S+|scripts\.\S+|tests\.\S+)(.*)"


def written(*starts: str) -> list[tuple[str, str]]:
    return [(title(page), line) for page in USER_PAGES for line in commands(page, *starts)]


MODULES = sorted(
    {
        (found[1], found[2].strip())
        for _, line in written("python -m ")
        if (found := re.fullmatch(PYTHON, line))
    }
)


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = {line.split()[1] for _, line in written("make ")}
    assert named >= {"demo", "test"}
    assert named <= targets


def test_extras_that_pip_is_asked_for_exist() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    named = {
        extra
        for _, line in written("pip install ")
        for group in re.findall(r"quietgrad\[([\w,-]+)\]", line)
        for extra in group.split(",")
    }
    assert {"sklearn", "lab", "tables", "hugging-face"} <= named <= extras


def test_paths_that_pytest_is_given_exist() -> None:
    paths = {word for _, line in written("pytest ") for word in line.split() if word.startswith("tests/")}
    assert len(paths) >= 4
    assert [path for path in paths if not (ROOT / path.split("::")[0]).exists()] == []


def test_scripts_that_python_is_given_exist() -> None:
    named = {
        word
        for _, line in written("python ", "PEERS/bin/python ", "accelerate launch ")
        for word in line.split()
        if word.startswith(("examples/", "benchmarks/", "scripts/"))
    }
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_modules_are_found() -> None:
    assert len(MODULES) > 30


@pytest.mark.slow  # imports what the benchmarks import
@pytest.mark.parametrize(("module", "options"), MODULES)
def test_a_benchmark_knows_its_options(
    module: str, options: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its help names every option that a page passes; benchmarks take minutes to hours and are not run here."""
    words = [word for word in shlex.split(options, comments=True) if not word.startswith("$")]
    name = f"{module}.__main__" if (ROOT / Path(*module.split(".")) / "__main__.py").exists() else module
    try:
        imported = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        pytest.skip(f"needs {missing.name}")
    wanted = {word.split("=")[0] for word in words if word.startswith("--")}
    if not wanted:
        assert 'if __name__ == "__main__":' in Path(str(imported.__file__)).read_text()
        return
    main = imported.main
    begin = words[: next(place for place, word in enumerate(words) if word.startswith("--"))]
    monkeypatch.setattr(sys, "argv", [module, *begin[:1], "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert wanted <= set(re.findall(r"--[\w-]+", said)), said
