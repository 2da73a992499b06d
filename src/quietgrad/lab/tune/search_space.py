"""What is searched: learning rate, clip, batch and method; the rest of the config stays."""

from __future__ import annotations

import inspect
import math
import secrets
from dataclasses import dataclass
from typing import Any, TypeAlias

import quietgrad as qg
from quietgrad.lab.errors import LabError
from quietgrad.lab.run.config import Config, parse_config
from quietgrad.lab.run.presets import with_method

Trial: TypeAlias = Any
"""Of optuna, which is imported where it is used."""

LEARNING_RATES = {"sgd": (0.05, 8.0), "adam": (1e-4, 0.1)}
"""Ranges that hold the best rates of every preset with room to spare; drawn on a logarithmic scale."""

CLIPS = (0.1, 4.0)
"""The same for the clip."""

BATCH_FACTORS = (0.5, 1.0, 2.0, 4.0)
"""Times the config's batch; more noise per step for fewer records, at the same ε and number of epochs."""

Choice = dict[str, Any]
"""lr, clip, batch and method of one try."""


@dataclass(frozen=True)
class SearchSpace:
    """The settings that may be chosen.

    Args:
        base: the config to improve.
        methods: to choose from; one is no choice.
    """

    base: Config
    methods: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in self.methods:
            if name == "quiet":
                raise LabError(
                    "quiet has nothing to tune: its rule decides every setting. Train it as it is."
                )
            with_method(self.base, name)

    @property
    def learning_rates(self) -> tuple[float, float]:
        return LEARNING_RATES[self.base.training.optimizer]

    def own(self) -> Choice:
        """The config's own settings: the first try, so that the search never ends below it."""
        training = self.base.training
        clip = self.base.method.options.get("clip", 1.0)
        inside = self.base.method.name in self.methods and isinstance(clip, int | float)
        if not inside or not _within(training.lr, self.learning_rates) or not _within(float(clip), CLIPS):
            return {}
        return {"method": self.base.method.name, "lr": training.lr, "clip": float(clip), "batch": 1.0}

    def suggest(self, trial: Trial) -> Choice:
        """Optuna's next choice."""
        return {
            "method": trial.suggest_categorical("method", self.methods),
            "lr": trial.suggest_float("lr", *self.learning_rates, log=True),
            "clip": trial.suggest_float("clip", *CLIPS, log=True),
            "batch": trial.suggest_categorical("batch", BATCH_FACTORS),
        }

    def draw(self) -> Choice:
        """A choice from a fixed distribution, whatever was seen before.

        Only lr and clip: they leave the price of a run as it is, which all tries of a private search must share.
        """
        return {
            "method": self.methods[0],
            "lr": _log_uniform(*self.learning_rates),
            "clip": _log_uniform(*CLIPS),
            "batch": 1.0,
        }

    def applied(self, choice: Choice, tuning: dict[str, Any]) -> Config:
        """The config with these settings, and with how they were found."""
        config = with_method(self.base, choice["method"])
        options = dict(config.method.options)
        if "clip" in inspect.signature(getattr(qg.methods, choice["method"])).parameters:
            options["clip"] = float(f"{choice['clip']:.4g}")
        training = config.training.model_dump() | {
            "lr": float(f"{choice['lr']:.4g}"),
            "batch": self.base.training.batch * choice["batch"],
        }
        return parse_config(
            config.plain()
            | {"method": {"name": choice["method"], **options}, "training": training, "tuning": tuning}
        )


def _within(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= value <= limits[1]


def _log_uniform(low: float, high: float) -> float:
    share = secrets.randbits(53) / 2**53
    return math.exp(math.log(low) + share * math.log(high / low))
