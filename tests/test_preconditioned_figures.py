"""The figures on the page of preconditioning are those of the finished trainings that lie beside it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from benchmarks import preconditioned
from benchmarks.preconditioned import Results, Setting, rows

DOCS = Path(__file__).parents[1] / "docs"
CNN = {"rates": [0.5, 1.0, 2.0, 4.0], "clips": [0.3, 1.0]}
MLP = {"rates": [0.5, 1.0, 2.0], "clips": [1.0]}
CASES = [
    *(("CNN, 26,000 weights", "tanh_cnn", epsilon, 1.0, CNN) for epsilon in (0.3, 1.0, 2.0)),
    *(("perceptron, 469,000 weights", "mlp-512-128", 1.0, damping, MLP) for damping in (1.0, 10.0)),
    ("perceptron, 469,000 weights", "mlp-512-128", 0.3, 10.0, {"rates": [0.25, 0.5, 1.0], "clips": [1.0]}),
]


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch) -> Results:
    def unexpected(setting: Setting, _found: object) -> float:
        raise AssertionError(f"{setting} is not in the file")

    monkeypatch.setattr(preconditioned, "train", unexpected)
    monkeypatch.setattr(preconditioned, "images", lambda *_: None)
    return Results(DOCS / "results" / "preconditioned.jsonl", None)


@pytest.mark.parametrize(("network", "model", "epsilon", "damping", "grid"), CASES)
def test_a_row_of_the_page_is_made_of_the_file(
    finished: Results, network: str, model: str, epsilon: float, damping: float, grid: dict[str, list[float]]
) -> None:
    bases = [
        Setting(method=method, model=model, epsilon=epsilon, damping=damping, rate=1.0, clip=1.0)
        for method in ("dp_sgd", "preconditioned")
    ]
    found = rows(finished, bases, grid["rates"], grid["clips"], seeds=3)
    plain, scaled = (f"{row['accuracy']:.1f} ± {row['standard_error']:.1f}" for row in found)
    line = f"| {network} | {epsilon:g} | {plain} | {scaled} | {damping:g} |"
    assert line in (DOCS / "methods" / "preconditioned.md").read_text()


def test_the_table_that_the_rule_was_chosen_by_is_made_of_the_file(finished: Results) -> None:
    """The best rate by the mean of two noises, on other training images."""
    found = []
    for method, damping in (
        ("dp_sgd", 1.0),
        *(("preconditioned", damping) for damping in (1.0, 10.0, 100.0)),
    ):
        setting = Setting(
            method=method, epsilon=1.0, rate=1.0, clip=1.0, damping=damping, data="mnist", model="mlp-128",
            records=4_000, steps=100, batch=400,
        )  # fmt: skip
        means = [
            sum(finished.accuracy(dataclasses.replace(setting, rate=rate, seed=seed)) for seed in (0, 1)) / 2
            for rate in (0.25, 0.5, 1.0, 2.0)
        ]
        found.append(f"{max(means):.1f}")
    assert f"| {' | '.join(found)} |" in (DOCS / "methods" / "preconditioned.md").read_text()


def test_a_line_that_a_kill_cut_off_is_not_counted(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text('\n{"key": "a", "accuracy": 70.0, "seconds": 1}\n{"key": "b", "accur')
    assert Results(file, None).known() == {"a": 70.0}
    with file.open("a") as more:
        more.write('\n{"key": "c", "accuracy": 71.0, "seconds": 1}\n')
    assert Results(file, None).known() == {"a": 70.0, "c": 71.0}
