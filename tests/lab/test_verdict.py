"""The demo's sentence says what won, by how much, and what ε that saves."""

from __future__ import annotations

from quietgrad.lab.compare.comparison import ComparisonRow
from quietgrad.lab.compare.verdict import verdict


def row(method: str, target: float, accuracy: float, std: float = 0.0) -> ComparisonRow:
    return ComparisonRow(method, target, accuracy, std, target, 1.0, 1.0, None, ("a",))


def test_it_names_the_winner_its_lead_and_the_budget_it_saves() -> None:
    rows = [
        row("public only", 0.0, 0.7),
        row("dp_sgd", 0.3, 0.6),
        row("dp_sgd", 2.0, 0.80, std=0.003),
        row("quiet", 0.15, 0.79),
        row("quiet", 0.3, 0.82),
        row("quiet", 2.0, 0.87, std=0.004),
        row("non-private", float("inf"), 0.9),
    ]
    said = verdict(rows)
    assert "Best at ε = 2: private linear probe, 87.0% against DP-SGD's 80.0%, 7.0 points more" in said
    assert "vary by 0.5" in said
    assert said.endswith("It equals DP-SGD's best (ε = 2) at ε = 0.3.")


def test_it_does_not_flatter() -> None:
    assert (
        verdict([row("dp_sgd", 2.0, 0.8), row("gep", 2.0, 0.79)])
        == "At ε = 2 nothing is above DP-SGD (80.0%)."
    )
    assert verdict([row("gep", 2.0, 0.8)]) == ""
