"""The page of all config keys, made from the code that reads them.

python -m scripts.config_page       writes docs/configuration.md
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

import quietgrad as qg
from quietgrad.lab.models.registry import MODELS
from quietgrad.lab.run.config import Config
from quietgrad.lab.run.linear_probe import LinearProbeOptions
from quietgrad.lab.run.methods import PROVIDED
from quietgrad.tables import Schema

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
HEAD = """# Config keys

All keys of a TOML file for `quietgrad train`, `explain`, `compare` and `tune`. A key that is left out has the
default shown; a misspelt key is refused, with the nearest name. `--set section.key=value` changes one for a single run.
This page is made by `python -m scripts.config_page`; a test keeps it current.
"""

COLUMNS = """## `[columns]`

What is known about a table's columns without looking at its rows ([tables](tables.md)). With this section,
`method.name` is `quiet` by default.

| key | meaning |
|---|---|
| `age = [0, 110]` | a number and its bounds; a value beyond them counts as the bound |
| `sugar = { number = [0, 400], unit = "mg/dl" }` | the same, with its unit of measurement |
| `ward = ["er", "icu"]` | categories; any other value is "other" |
| `grade = { category = [1, 2] }` | categories that are numbers (a plain `[1, 2]` would be bounds) |
| `smoker = "boolean"` | yes or no, true or false, 1 or 0 |
| `admitted = [2015-01-01, 2024-12-31]` | a date and its range |
| `born = { date = ["1900-01-01", "2024-12-31"], format = "%d.%m.%Y" }` | the same in another format |
| `notes = "skip"` | left out, as are columns that are not named |
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, *_sections(), *_methods(), *_models()]
    return "\n".join(parts).rstrip() + "\n"


def _sections() -> Iterator[str]:
    for name, field in Config.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            said = (inspect.getdoc(kind) or "").splitlines()[0]
            yield f"## `[{name}]`\n\n{said}\n"
            yield _table([_key(key, own) for key, own in kind.model_fields.items()])
        elif kind is Schema:
            yield COLUMNS


def _key(name: str, field: FieldInfo) -> tuple[str, str, str, str]:
    return name, _kind(field.annotation), _default(field.default), field.description or ""


def _methods() -> Iterator[str]:
    yield '## Options of methods\n\nKeys of `[method]` beside `name`; a schedule is written as a table: `clip = {schedule = "Cooling", …}`.\n'  # noqa: E501
    yield f"### quiet\n\n{(inspect.getdoc(LinearProbeOptions) or '').splitlines()[0]}\n"
    said = described(inspect.getdoc(LinearProbeOptions) or "")
    yield _table(
        [
            (key, _kind(field.annotation), _default(field.default), said.get(key, ""))
            for key, field in LinearProbeOptions.model_fields.items()
        ]
    )
    for name in qg.methods.__all__:
        yield _function(name, getattr(qg.methods, name), PROVIDED)


def _models() -> Iterator[str]:
    yield "## Options of models\n\nKeys of `[model]` beside `name`.\n"
    for name, make in MODELS.items():
        yield _function(name, make, {"input_shape", "num_classes"})


def _function(name: str, make: Callable[..., Any], provided: set[str]) -> str:
    text = inspect.getdoc(make) or ""
    like = re.search(r"[Aa]rg(?:ument)?s as in `(\w+)`", text)
    said = (described(inspect.getdoc(_named(like[1])) or "") if like else {}) | described(text)
    rows = [
        (key, _annotation(parameter.annotation), _default(parameter.default), said.get(key, ""))
        for key, parameter in inspect.signature(make).parameters.items()
        if key not in provided
    ]
    return f"### {name}\n\n{text.splitlines()[0]}\n\n" + (_table(rows) if rows else "No options.\n")


def _named(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = MODELS[name] if name in MODELS else getattr(qg.methods, name)
    return found


def described(docstring: str) -> dict[str, str]:
    """Argument → what its docstring says of it."""
    found = re.search(r"^Args:\n(.*?)(?:^\S|\Z)", docstring, flags=re.MULTILINE | re.DOTALL)
    entries = re.split(r"^    (?=[\w, ]+: )", found[1], flags=re.MULTILINE)[1:] if found else []
    said: dict[str, str] = {}
    for entry in entries:
        names, _, words = entry.partition(": ")
        said |= dict.fromkeys(re.split(r", ", names), " ".join(words.split()))
    return said


def _kind(annotation: Any) -> str:
    """A type in words."""
    names = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): ""}
    if annotation in names:
        return names[annotation]
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) is tuple:
        return f"list of {_kind(get_args(annotation)[0])}s"
    if get_origin(annotation) is dict:
        return "table"
    return " or ".join(said for part in get_args(annotation) if (said := _kind(part)))


def _annotation(annotation: Any) -> str:
    words = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return f"`{words}`".replace("|", "or").replace("typing.", "")


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    if value in (None, "", ()):
        return ""
    if isinstance(value, tuple):
        value = list(value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _table(rows: list[tuple[str, str, str, str]]) -> str:
    lines = [f"| `{key}` | {kind} | {default} | {said} |" for key, kind, default, said in rows]
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *lines]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
