"""An experiment as a TOML file: read, changed and validated; misspelt keys are refused with the nearest name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from quietgrad.lab.errors import LabError, nearest
from quietgrad.lab.run.about import AboutConfig
from quietgrad.lab.run.config_sections import (
    AugmentConfig,
    AveragingConfig,
    Columns,
    DataConfig,
    FederatedConfig,
    MethodConfig,
    ModelConfig,
    PrivacyConfig,
    Section,
    TrainingConfig,
    TuningConfig,
)
from quietgrad.lab.run.shipped_configs import shipped_config
from quietgrad.tables import Number, Schema

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VERSION = 1
EITHER = {"privacy.epsilon": "noise_multiplier", "privacy.noise_multiplier": "epsilon"}
"""Setting one takes the other's place."""


TABLE_DEFAULTS = {"method": {"name": "quiet"}, "model": {"name": "linear"}}


class Config(Section):
    version: int = VERSION
    data: DataConfig = DataConfig()
    columns: Columns = Field(
        Schema({}), description="What is known of a table's columns without looking at its rows."
    )
    model: ModelConfig = ModelConfig()
    privacy: PrivacyConfig = PrivacyConfig(epsilon=2.0)
    method: MethodConfig = MethodConfig()
    training: TrainingConfig = TrainingConfig()
    augment: AugmentConfig = AugmentConfig()
    averaging: AveragingConfig = AveragingConfig()
    tuning: TuningConfig = TuningConfig()
    federated: FederatedConfig = FederatedConfig()
    about: AboutConfig = AboutConfig()

    def plain(self) -> dict[str, Any]:
        """Resolved, as written back beside a run: what a file that is read again would give."""
        unused = {"federated"} if self.federated == FederatedConfig() else set()
        unused |= set() if self.columns else {"columns"}
        unused |= {"about"} if self.about == AboutConfig() else set()
        return self.model_dump(mode="json", exclude_none=True, exclude=unused)

    @model_validator(mode="after")
    def _accuracy_is_released_where_nothing_is_tested(self) -> Config:
        if self.privacy.accuracy is not None and (self.data.test != 0 or self.method.name != "quiet"):
            raise ValueError(
                'privacy.accuracy is for data.test = 0 and method.name = "quiet": leave it out, accuracy is measured '
                "on the test rows"
            )
        return self

    @property
    def predicts_number(self) -> bool:
        """Whether the label is a number with bounds, and no class."""
        return isinstance(self.columns.get(self.data.label), Number)

    @model_validator(mode="before")
    @classmethod
    def _tables_have_defaults_of_their_own(cls, raw: Any) -> Any:
        """Default to the linear probe, and to a linear model for what is compared with it."""
        return {**TABLE_DEFAULTS, **raw} if isinstance(raw, dict) and raw.get("columns") else raw

    @model_validator(mode="after")
    def _linear_probes_draw_poisson_batches(self) -> Config:
        """The linear probe reads all records at every step, or plans its draws itself."""
        for name, plain in (("bands", 1), ("at_most", None), ("once_an_epoch", False)):
            if self.method.name == "quiet" and getattr(self.training, name) != plain:
                raise ValueError(
                    f'training.{name}: method.name = "quiet" has Poisson draws alone; leave it out'
                )
        return self

    @model_validator(mode="after")
    def _numbers_are_learned_by_the_linear_probe(self) -> Config:
        if self.predicts_number and self.method.name != "quiet":
            raise ValueError(
                f'columns.{self.data.label} is a number, which method.name = "quiet" learns, and '
                f"{self.method.name} learns classes: leave out [method], or state classes as {{category = [0, 1, 2]}}"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _classes_are_no_bounds(cls, raw: Any) -> Any:
        """Bounds one apart are most likely meant as two classes, unless they are written as {number = [0, 1]}."""
        if not isinstance(raw, dict) or not isinstance(raw.get("columns"), dict):
            return raw
        data = raw.get("data")
        name = data.get("label", "label") if isinstance(data, dict) else "label"
        stated = raw["columns"].get(name)
        if isinstance(stated, list) and len(stated) == 2 and isinstance(Schema({name: stated})[name], Number):
            low, high = stated
            if high - low == 1:
                raise ValueError(
                    f"columns.{name} is the label, and [{low:g}, {high:g}] are bounds of a number: write "
                    f'"boolean", or {{category = [{low:g}, {high:g}]}} for classes, or {{number = [{low:g}, {high:g}]}}'
                )
        return raw


def load_config(path: Path, changes: list[str] | None = None) -> Config:
    """Read a TOML file, or a config of the package by its name, and apply changes.

    Args:
        path: a file, or a bare name that `quietgrad configs` lists.
        changes: `section.key=value`, as of `--set`; values are TOML, bare words are strings, nothing takes the key out.
            Another `method.name` takes the old method's options with it.
    """
    try:
        raw = tomllib.loads(_text(path))
    except IsADirectoryError:
        raise LabError(f"{path} is a folder. Give a TOML file, such as its config.toml.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LabError(f"{path} is not valid TOML: {error}.") from None
    except RecursionError:
        raise LabError(
            f"{path} is nested too deeply for a config. Write it with one level of sections."
        ) from None
    # A new method first: it takes the old one's options with it, not those that are set beside it.
    for change in sorted(changes or [], key=lambda change: not change.strip().startswith("method.name")):
        _apply(raw, change)
    return parse_config(raw)


def _text(path: Path) -> str:
    """Of a file; else, for a bare name, of the config of that name that comes with the package."""
    if path.exists():
        return path.read_text(encoding="utf-8")
    if path.parent == Path() or path.parent == Path("configs"):
        return shipped_config(path.name)
    raise LabError(f"There is no config {path}. `quietgrad configs` lists those that come with the package.")


def parse_config(raw: dict[str, Any]) -> Config:
    """Validate plain data; one line per mistake."""
    if raw.get("version", VERSION) != VERSION:
        raise LabError(
            f"The config has version {raw['version']}, this quietgrad reads {VERSION}. Update the file."
        )
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        raise LabError(" ".join(_sentence(problem) for problem in error.errors())) from None


S = TypeVar("S", bound=Section)


def parse_section(kind: type[S], raw: dict[str, Any], place: str) -> S:
    """Validate the open keys of a section by the model they belong to."""
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise LabError(" ".join(_sentence(problem, kind, place) for problem in error.errors())) from None


def _apply(raw: dict[str, Any], change: str) -> None:
    key, equals, value = change.partition("=")
    section, _, name = key.strip().partition(".")
    if not equals or not name:
        raise LabError(f"Expected --set section.key=value, got {change!r}.")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    except RecursionError:
        raise LabError(
            f"--set {key}: the value is nested too deeply. Give a number, a word or a list."
        ) from None
    values = raw.setdefault(section, {})
    if key.strip() == "method.name" and values.get("name") != parsed:
        values.clear()
    if key.strip() in EITHER:
        values.pop(EITHER[key.strip()], None)
    if parsed == "":
        values.pop(name, None)
        return
    values[name] = parsed


def _sentence(problem: Any, model: type[BaseModel] | None = None, within: str = "") -> str:
    path = (within, *problem["loc"]) if within else problem["loc"]
    place = ".".join(str(part) for part in path) or "config"
    if problem["type"] == "extra_forbidden":
        known = _known(problem["loc"][:-1], model or Config)
        return f"Unknown key {place!r}{nearest(str(problem['loc'][-1]), known)}."
    message = problem["msg"].removeprefix("Value error, ")
    if isinstance(
        problem["input"], Mapping
    ):  # a rule over a whole section: its message names key and value itself
        named = message if message.startswith(place) or place == "config" else f"{place}: {message}"
        return named if named.endswith(".") else f"{named}."
    return f"{place}: {message}, got {problem['input']!r}."


def _known(path: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    for part in path:
        annotation = model.model_fields[str(part)].annotation
        assert isinstance(annotation, type)
        model = annotation
    return list(model.model_fields)
