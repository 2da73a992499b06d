"""Which columns matter, from released numbers only."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from quietgrad.features.curves import Blocks
from quietgrad.features.table_rows import FeatureLayout

POINTS = 41
"""Places between the bounds at which a number's effect is shown."""

MADE_UP = 200
"""Made-up records that effects are averaged over."""


class ColumnEffects:
    """Effects of single columns on what a model says.

    They are averages over made-up records, whose columns are drawn independently of each other as the released numbers
    say: ranks evenly, categories as often as the released mean has them.

    Formal guarantee: functions of the fitted model and of public values, never of records.
    Checked by: tests/sklearn_estimator/test_column_effects.py
    """

    _layout: FeatureLayout
    _encoder: Any
    _features: Any

    def partial(self, column: str) -> tuple[ndarray, ndarray]:
        """Return a column's values, and what the model says on average where records have each of them.

        Returns:
            the values: numbers as parts of the way from the lower bound to the upper one, or names of categories;
            and the decision of the model for each: logits, or the predicted number.
        """
        self._check_column(column)
        values, features = self._values(column)
        return values, self._effects(column, features)

    def importances(self) -> dict[str, float]:
        """Return how far the model's decision moves with each column, largest first.

        The standard deviation of `partial` over made-up records.
        """
        found = {}
        for name in self._layout.names:
            self._check_column(name)
            said = self._effects(name, self._made_up(seed=1)[:POINTS])
            found[name] = float(np.sqrt(np.square(said - said.mean(0)).mean()))
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def _check_column(self, column: str) -> None:
        check_is_fitted(self, "privacy_")
        if not isinstance(self._encoder, Blocks):
            raise ValueError("Effects are those of columns of a table, and these records are images.")
        if column not in self._layout.names:
            raise ValueError(f"There is no column {column!r}; there are {', '.join(self._layout.names)}.")

    def _effects(self, column: str, features: Tensor) -> ndarray:
        """The average decision over made-up records whose column is replaced by each of these."""
        mine, others = self._of(column), self._made_up(seed=0)
        found = []
        for one in features:
            records = others.clone()
            records[:, mine] = one[mine]
            found.append(self._said(self._encoder(records)).mean(0))
        return np.array(found)

    def _values(self, column: str) -> tuple[ndarray, Tensor]:
        """What a column may hold, and features that say so; those of other columns are not looked at."""
        layout, mine = self._layout, self._of(column)
        if layout.parts[mine[0]] == "":  # a number or a truth value
            steps = torch.linspace(-1.0, 1.0, POINTS if layout.is_number[mine[0]] else 2)
            features = torch.zeros(len(steps), len(layout.columns))
            features[:, mine[0]] = steps
            return ((steps + 1) / 2).numpy(), features
        features = torch.zeros(len(mine), len(layout.columns))
        features[torch.arange(len(mine)), mine] = 1.0
        return np.array([layout.parts[i] for i in mine], dtype=object), features

    def _made_up(self, seed: int) -> Tensor:
        """Features of records that nobody has; their draws are fixed and public."""
        rng = np.random.default_rng(seed)
        features = torch.zeros(MADE_UP, len(self._layout.columns))
        means = self._centre() * math.sqrt(self._encoder.columns)
        for name in self._layout.names:
            mine = self._of(name)
            first = self._encoder.places[mine[0]][0]
            if self._layout.is_number[mine[0]]:
                features[:, mine[0]] = torch.from_numpy(self._drawn_numbers(mine[0], rng)).float()
            elif self._layout.parts[mine[0]] == "":
                share = min(max((float(means[first]) + 1) / 2, 0.0), 1.0)
                features[:, mine[0]] = torch.from_numpy(
                    np.where(rng.random(MADE_UP) < share, 1.0, -1.0)
                ).float()
            else:
                often = means[[self._encoder.places[i][0] for i in mine]].clamp_min(1e-4).double().numpy()
                chosen = rng.choice(len(mine), size=MADE_UP, p=often / often.sum())
                features[torch.arange(MADE_UP), torch.tensor(mine)[chosen]] = 1.0
        return features

    def _drawn_numbers(self, feature: int, rng: np.random.Generator) -> ndarray:
        even = rng.random(MADE_UP)
        if self._encoder.ranks is None:
            return 2 * even - 1
        ranks = self._encoder.ranks[sum(self._layout.is_number[:feature])].double().numpy()
        found: ndarray = np.interp(even, ranks, self._encoder.edges.double().numpy())
        return found

    def _of(self, column: str) -> list[int]:
        return [i for i, name in enumerate(self._layout.columns) if name == column]

    def _centre(self) -> Tensor:
        """The released mean of the rows."""
        rescale = getattr(self._features, "rescale", self._features)
        mean: Tensor = rescale.mean
        return mean

    def _said(self, rows: Tensor) -> ndarray:
        found: ndarray = self._logits(rows).numpy()  # type: ignore[attr-defined]
        return found[:, 1] - found[:, 0] if found.shape[1] == 2 else found
