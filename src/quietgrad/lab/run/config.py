"""An experiment as a TOML file: validated sections, misspelt keys refused with the nearest valid name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    model_validator,
)

from quietgrad.accounting.deltas import LARGEST
from quietgrad.lab.errors import LabError, nearest
from quietgrad.lab.run.about import AboutConfig
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


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OpenSection(BaseModel):
    """A section whose further keys are the options of what `name` names; they are checked where it is built."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class DataConfig(Section):
    """Which records are private, public and for testing; see `quietgrad data`."""

    name: str = Field(
        "embedded",
        description="A data set of `quietgrad data`, a table (CSV, TSV, JSONL, Parquet), a .npz file or a folder of "
        "images.",
    )
    private: int | None = Field(
        None, ge=1, description="How many records are private; all that are left if not given."
    )
    public: int | None = Field(
        None, ge=0, description="How many records are public: no guarantee covers them."
    )
    public_from: str | None = Field(None, description="Another data set that the public records come from.")
    public_labels: bool = Field(False, description="Whether the labels of public records may be used.")
    test: int | None = Field(
        None,
        ge=0,
        description="How many records are measured on, not protected by ε; 0: none. Needed where the data have no test "
        "part of their own.",
    )
    seed: int = Field(0, description="Which records fall into which part.")
    features: str = Field(
        "none",
        description="Of a frozen encoder: `scatter`, `mobilenet_v2`, `efficientnet_lite0` for images; `minilm`, "
        "`hf:PATH`, `prompt:MODEL` for texts.",
    )
    prompt: str | None = Field(
        None,
        description='Around a text, with {} in its place: "Review: {}\\nSentiment:". For `prompt:MODEL`.',
    )
    text: str | None = Field(
        None, description="The column of texts, where a CSV, TSV or JSONL file is read as texts."
    )
    label: str = Field("label", description="The column of labels: what is predicted.")
    tokens: int = Field(64, ge=2, description="Of a text, where a model's own tokenizer cuts it.")
    tokenizer: str | None = Field(
        None,
        description="A public WordPiece vocabulary for texts (vocab.txt, tokenizer.json); else words are hashed.",
    )
    unit: str | None = Field(
        None,
        description="The column that says whose a record is: users are then drawn, clipped and protected, and "
        "`training.batch` counts users.",
    )
    most_records: int | None = Field(None, ge=1, description="Of each user, that a step uses at most.")
    pooled: Literal["mean", "sum"] = Field(
        "mean", description="Whether the gradients of a user's records are averaged or added."
    )

    @model_validator(mode="after")
    def _users_are_bounded(self) -> DataConfig:
        if (self.unit is None) != (self.most_records is None):
            raise ValueError("give unit and most_records together (10 is a good start), or neither")
        return self


class ModelConfig(OpenSection):
    """The model; further keys are options of what `name` names."""

    name: str = Field("tanh_cnn", description="A model of `quietgrad.lab.models`.")
    frozen: tuple[str, ...] = Field(
        (),
        description='Parameters that stay as they are, `*` matching anything; "!head.*" freezes all others.',
    )


class PrivacyConfig(Section):
    """The budget; `epsilon` is met with the smallest noise unless `noise_multiplier` fixes the noise instead."""

    epsilon: float | None = Field(None, gt=0, description="The budget ε of the whole run.")
    delta: float = Field(1e-5, gt=0, lt=LARGEST, description="δ, well below 1 / private records.")
    noise_multiplier: float | None = Field(
        None, ge=0, description="Noise over sensitivity instead of ε; 0 for a run without privacy."
    )

    accuracy: float | None = Field(
        None,
        gt=0,
        le=0.5,
        description="Part of the squared budget for the accuracy on the private rows, released with noise; with "
        'data.test = 0 and method.name = "quiet".',
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> PrivacyConfig:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give either epsilon or noise_multiplier (0 for a non-private run)")
        return self


class MethodConfig(OpenSection):
    """The method; further keys are arguments of what `name` names."""

    name: str = Field(
        "dp_sgd", description='A method of `quietgrad.methods`, "quiet", or your own as "module:function".'
    )
    within: dict[str, Any] | None = Field(
        None,
        description='A mask around the method: {freeze = 0.4}, with `mask` "random" or "ranked", `redraw`.',
    )


class TrainingConfig(Section):
    """The loop; everything here is fixed before training."""

    epochs: float = Field(15, gt=0, description="Expected passes over the private records.")
    batch: float = Field(
        250, gt=0, description="Expected records of a step; the rate is batch / private records."
    )
    bands: int | Literal["best"] = Field(
        1,
        description='Bands of correlated noise, with as many groups of records; "best" chooses by plan and budget.',
    )
    at_most: int | None = Field(
        None,
        ge=1,
        description="Rows of every batch: some of larger draws are left out, smaller ones filled up.",
    )
    once_an_epoch: bool = Field(
        False,
        description="Each record takes part once in an epoch, at a random step; private records / batch is whole.",
    )
    optimizer: Literal["sgd", "adam", "adamw"] = Field(
        "sgd", description="What updates the weights by released gradients."
    )
    lr: float = Field(1.0, gt=0, description="Learning rate.")
    momentum: float = Field(0.0, ge=0, lt=1, description="Of SGD.")
    weight_decay: float = Field(0.0, ge=0, description="Pulls weights to zero; costs no privacy.")
    schedule: Literal["constant", "linear", "cosine", "halfway", "drops"] = Field(
        "constant", description="How the learning rate falls; `halfway`: a tenth from the middle on."
    )
    drops: tuple[float, ...] = Field(
        (0.3, 0.6, 0.8),
        description='Parts of training after which schedule = "drops" lowers the learning rate.',
    )
    drop_factor: float = Field(0.2, gt=0, le=1, description="What a drop multiplies the learning rate by.")
    warmup: float = Field(0.0, ge=0, lt=1, description="Part of training over which the learning rate rises.")
    micro_batch: int = Field(512, ge=1, description="Records computed at a time; less needs less memory.")
    seed: int = Field(0, description="Of the first weights; never of noise or draws.")
    checkpoint_every: int = Field(100, ge=1, description="Steps between two checkpoints.")
    warm_start: Literal["none", "public"] = Field(
        "none", description="Train on labelled public records first, without noise."
    )


class AugmentConfig(Section):
    """Augmented views of each record, averaged before the clip."""

    views: int = Field(1, ge=1, description="Views of each record in a step.")
    flip: bool = Field(False, description="Mirror images left to right at random.")
    shift: int = Field(0, ge=0, description="Shift images by at most so many pixels.")

    @property
    def active(self) -> bool:
        return self.views > 1 or self.flip or self.shift > 0


class AveragingConfig(Section):
    """Exponential average of the weights (free); 0 switches it off."""

    decay: float = Field(
        0.99, ge=0, lt=1, description="Share of the average that stays at each step; 0: no average."
    )


class TuningConfig(Section):
    """How the settings were found: what `quietgrad tune` writes, or what the user states.

    Args:
        on: which data the tries saw. "private" means that a random number of tries was drawn first and only the best
            run is released: ε is then that of the whole search.
        tries: how many settings were tried, if that was free.
        mean_tries: of the random number of private tries.
    """

    on: Literal["unstated", "nothing", "public", "synthetic", "private"] = Field(
        "unstated", description="Which data the tries saw; `private` adds the price of the search to ε."
    )
    tries: int | None = Field(None, ge=1, description="How many settings were tried, if that was free.")
    mean_tries: float | None = Field(None, ge=1, description="Mean of the random number of private tries.")

    @model_validator(mode="after")
    def _private_states_its_mean(self) -> TuningConfig:
        if (self.on == "private") != (self.mean_tries is not None):
            raise ValueError('give mean_tries with on = "private", and only then')
        return self


Columns: TypeAlias = Annotated[
    Schema,
    PlainValidator(lambda stated: stated if isinstance(stated, Schema) else Schema(dict(stated))),
    PlainSerializer(lambda schema: schema.as_dict()),
]


class FederatedConfig(Section):
    """Clients of `quietgrad federated`; `training.batch` is then the expected number of clients a round."""

    clients: int = Field(200, ge=1, description="Among whom the private records are split.")
    split: Literal["iid", "class"] = Field("iid", description="At random, or two classes a client.")
    epochs: int = Field(1, ge=1, description="Of a client's own training in a round.")
    batch: int = Field(16, ge=1, description="Of a client's own training.")
    lr: float = Field(0.1, gt=0, description="Of a client's own training.")
    server_lr: float = Field(1.0, gt=0, description="By which a released update is multiplied.")


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
        """The linear probe, and a linear model for what is compared with it."""
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
    return f"{place}: {message}, got {problem['input']!r}."


def _known(path: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    for part in path:
        annotation = model.model_fields[str(part)].annotation
        assert isinstance(annotation, type)
        model = annotation
    return list(model.model_fields)
