"""The configs inside the package: the experiments of the papers, by name."""

from __future__ import annotations

from importlib.resources import files

from quietgrad.lab.errors import LabError, nearest

FOLDER = files("quietgrad.lab") / "configs"


def shipped_configs() -> dict[str, str]:
    """name → its first comment."""
    found = {
        entry.name.removesuffix(".toml"): entry for entry in FOLDER.iterdir() if entry.name.endswith(".toml")
    }
    return {name: _title(found[name].read_text(encoding="utf-8")) for name in sorted(found)}


def shipped_config(name: str) -> str:
    """The text of a config; the name may end in .toml."""
    known = shipped_configs()
    stem = name.removesuffix(".toml")
    if stem not in known:
        raise LabError(f"There is no config {name!r}{nearest(stem, known)}. quietgrad configs lists them.")
    return (FOLDER / f"{stem}.toml").read_text(encoding="utf-8")


def _title(text: str) -> str:
    first = text.splitlines()[0] if text else ""
    return first.removeprefix("#").strip() if first.startswith("#") else ""
