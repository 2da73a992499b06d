"""The sections of a config: their keys, defaults, ranges and descriptions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, model_validator

from quietgrad.accounting.deltas import LARGEST
from quietgrad.tables import Schema


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
        None, ge=1, description="How many records are private; if left out, all that remain."
    )
    public: int | None = Field(
        None, ge=0, description="How many records are public: no guarantee covers them."
    )
    public_from: str | None = Field(None, description="Another data set that the public records come from.")
    public_labels: bool = Field(False, description="Whether the labels of public records may be used.")
    test: int | None = Field(
        None,
        ge=0,
        description="How many records accuracy is measured on; ε does not protect them. 0: none. "
        "Required where the data have no test part.",
    )
    seed: int = Field(0, description="Seed of the split into private, public and test records.")
    features: str = Field(
        "none",
        description="Train on the output of a frozen encoder: `scatter`, `mobilenet_v2`, `efficientnet_lite0` for "
        "images; `minilm`, `hf:PATH`, `prompt:MODEL` for texts.",
    )
    prompt: str | None = Field(
        None,
        description='For `prompt:MODEL`: what stands around each text, {} in its place: "Review: {}\\nSentiment:".',
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="Number type in which the model of `prompt:MODEL` computes. `bfloat16` is several times faster "
        "on processors with such arithmetic.",
    )
    text: str | None = Field(
        None,
        description="The column of texts. With it, a CSV, TSV or JSONL file is read as texts, not as a table.",
    )
    label: str = Field("label", description="The column of labels: what is predicted.")
    tokens: int = Field(64, ge=2, description="Length at which a text is cut, in tokens.")
    tokenizer: str | None = Field(
        None,
        description="A public WordPiece vocabulary for texts (vocab.txt, tokenizer.json); else words are hashed.",
    )
    unit: str | None = Field(
        None,
        description="The column that says whose a record is: users are then drawn, clipped and protected, and "
        "`training.batch` counts users.",
    )
    most_records: int | None = Field(
        None, ge=1, description="The most records of one user that a step uses. Required with `unit`."
    )
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
        description="Part of the squared budget that is spent on a noisy accuracy of the private rows; with "
        'data.test = 0 and method.name = "quiet" only.',
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
        description='Run the method inside a mask: {freeze = 0.4}; with `mask` ("random" or "ranked") and `redraw`.',
    )


class TrainingConfig(Section):
    """The loop; everything here is fixed before training."""

    epochs: float = Field(15, gt=0, description="Expected passes over the private records.")
    batch: float = Field(
        250, gt=0, description="Expected records of a step; the rate is batch / private records."
    )
    bands: int | Literal["best"] = Field(
        1,
        description='Bands of correlated noise; records form as many groups. "best" chooses by plan and budget.',
    )
    at_most: int | None = Field(
        None,
        ge=1,
        description="Size of every batch: larger draws lose rows at random, smaller ones get rows that count nothing.",
    )
    once_an_epoch: bool = Field(
        False,
        description="Each record takes part once in an epoch, at a random step. `batch` must divide `private`.",
    )
    optimizer: Literal["sgd", "adam", "adamw"] = Field(
        "sgd", description="What updates the weights by released gradients."
    )
    lr: float = Field(1.0, gt=0, description="Learning rate.")
    momentum: float = Field(0.0, ge=0, lt=1, description="Momentum of SGD.")
    weight_decay: float = Field(0.0, ge=0, description="Pulls weights to zero; costs no privacy.")
    schedule: Literal["constant", "linear", "cosine", "halfway", "drops"] = Field(
        "constant", description="How the learning rate falls; `halfway`: to a tenth from the middle on."
    )
    drops: tuple[float, ...] = Field(
        (0.3, 0.6, 0.8),
        description='Fractions of training after which schedule = "drops" lowers the learning rate.',
    )
    drop_factor: float = Field(0.2, gt=0, le=1, description="What a drop multiplies the learning rate by.")
    warmup: float = Field(
        0.0, ge=0, lt=1, description="Fraction of training over which the learning rate rises."
    )
    micro_batch: int = Field(512, ge=1, description="Records computed at a time; fewer need less memory.")
    seed: int = Field(0, description="Seed of the initial weights; noise and draws have none.")
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
        0.99, ge=0, lt=1, description="Share of the old average that each step keeps; 0: no average."
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
    tries: int | None = Field(None, ge=1, description="How many settings were tried, where trying cost no ε.")
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

    clients: int = Field(200, ge=1, description="Number of clients that the private records are split among.")
    split: Literal["iid", "class"] = Field(
        "iid", description="Split at random, or with two classes for each client."
    )
    epochs: int = Field(1, ge=1, description="Epochs of a client's own training in a round.")
    batch: int = Field(16, ge=1, description="Batch size of a client's own training.")
    lr: float = Field(0.1, gt=0, description="Learning rate of a client's own training.")
    server_lr: float = Field(1.0, gt=0, description="What the server multiplies a released update by.")
