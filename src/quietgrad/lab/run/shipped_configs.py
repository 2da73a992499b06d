"""The configs inside the package: the experiments of the papers, by name."""

from __future__ import annotations

from importlib.resources import files

from quietgrad.lab.errors import LabError, nearest

FOLDER = files("quietgrad.lab") / "configs"


GROUPS = {
    "Embedded data: run at once": ("embedded",),
    "Private linear probe": ("quiet_",),
    "GEP and its baselines": ("gep_", "resnet20_"),
    "RGP and its baselines": ("rgp_", "power_sgd_", "_wrn_28_4_"),
    "PDP-SGD and its baselines": ("_sigma",),
    "Random Freeze and its baselines": ("_freeze_", "end_to_end_", "_scatter_"),
    "GIP and its baselines": ("gip_", "random_k_", "datalens_"),
    "Others": ("",),
}
"""Parts of the names of the configs in each group; the first group that fits counts."""


def grouped_configs() -> dict[str, dict[str, str]]:
    """Group → name → its first comment."""
    groups: dict[str, dict[str, str]] = {group: {} for group in GROUPS}
    for name, title in shipped_configs().items():
        group = next(group for group, parts in GROUPS.items() if any(part in name for part in parts))
        groups[group][name] = title
    return groups


def shipped_configs() -> dict[str, str]:
    """name → its first comment."""
    found = {
        entry.name.removesuffix(".toml"): entry for entry in FOLDER.iterdir() if entry.name.endswith(".toml")
    }
    return {name: _title(found[name].read_text(encoding="utf-8")) for name in sorted(found)}


def shipped_config(name: str) -> str:
    """Return the text of a config; the name may end in .toml."""
    known = shipped_configs()
    stem = name.removesuffix(".toml")
    if stem not in known:
        raise LabError(f"There is no config {name!r}{nearest(stem, known)}. quietgrad configs lists them.")
    return (FOLDER / f"{stem}.toml").read_text(encoding="utf-8")


def _title(text: str) -> str:
    first = text.splitlines()[0] if text else ""
    return first.removeprefix("#").strip() if first.startswith("#") else ""
