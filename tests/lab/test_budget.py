"""`quietgrad budget`: the reference table through the command line, and errors as one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from quietgrad.lab.cli.app import app
from tests.accounting.settings import REFERENCE, RELATIVE, ROUNDING, Row

FIRST = ["--examples", "60000", "--batch", "1000", "--epochs", "50", "--delta", "1e-5"]


def ask(*options: object) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["budget", *map(str, options), "--json"])
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def refused(*options: object) -> str:
    result = CliRunner().invoke(app, ["budget", *map(str, options)])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    return result.stderr


@pytest.mark.parametrize("row", REFERENCE, ids=lambda row: f"{row.noise}-{row.steps}")
def test_the_reference_table(row: Row) -> None:
    options = ["--examples", row.examples, "--batch", row.batch, "--epochs", row.epochs, "--noise", row.noise]
    answer = ask(*options)
    assert answer["steps"] == row.steps
    assert answer["epsilon"] == pytest.approx(row.pld, rel=RELATIVE, abs=ROUNDING)
    assert answer["epsilon_rdp"] == pytest.approx(row.rdp, rel=RELATIVE, abs=ROUNDING)


def test_the_noise_for_an_epsilon() -> None:
    answer = ask(*FIRST, "--epsilon", 2)
    assert round(answer["noise_multiplier"], 4) == 1.9765
    assert answer["epsilon"] <= 2
    assert answer["curve"][-1][0] == 3000
    values = [value for _, value in answer["curve"]]
    assert values == sorted(values)


def test_the_releases_of_gep() -> None:
    answer = ask(*FIRST, "--epsilon", 2, "--method", "gep", "--split", "paper")
    assert answer["release_multipliers"] == {
        "embedding": pytest.approx(2.795, rel=1e-3),
        "residual": pytest.approx(2.795, rel=1e-3),
    }
    uneven = ask(*FIRST, "--noise", 1, "--method", "gep", "--split", "0.64")
    assert uneven["release_multipliers"] == {
        "embedding": pytest.approx(1.25),
        "residual": pytest.approx(1 / 0.6),
    }


def test_rdp_alone() -> None:
    assert ask(*FIRST, "--noise", 1.9765, "--accountant", "rdp")["epsilon"] == pytest.approx(
        2.181, rel=RELATIVE
    )
    assert ask(*FIRST, "--epsilon", 2.181, "--accountant", "rdp")["noise_multiplier"] == pytest.approx(
        1.9765, rel=RELATIVE
    )


def test_the_steps_and_the_rate_that_a_budget_allows() -> None:
    sizes = ["--examples", 60000, "--batch", 1000]
    assert ask(*sizes, "--noise", 1.9765, "--epsilon", 2.0005)["steps"] == pytest.approx(3000, abs=2)
    answer = ask("--examples", 60000, "--steps", 3000, "--noise", 1.9765, "--epsilon", 2)
    assert answer["batch"] == pytest.approx(1000, rel=1e-3)


def test_no_noise_is_stated_as_infinite() -> None:
    answer = ask(*FIRST, "--noise", 0)
    assert answer["epsilon"] == "inf"
    assert any("infinite" in note for note in answer["notes"])


def test_the_table_and_the_plot(tmp_path: Path) -> None:
    picture = tmp_path / "epsilon.png"
    result = CliRunner().invoke(app, ["budget", *FIRST, "--noise", "1.9765", "--plot", str(picture)])
    assert result.exit_code == 0
    assert "1.97650" in result.stdout
    assert "2.0000" in result.stdout
    assert "3000 steps" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([*FIRST, "--noise", 1, "--delta", 1], "delta in (0, 0.1)"),
        ([*FIRST, "--noise", 1, "--delta", 0], "delta in (0, 0.1)"),
        ([*FIRST, "--noise", -1], "noise_multiplier"),
        ([*FIRST, "--epsilon", 0], "epsilon > 0"),
        ([*FIRST, "--epsilon", 1, "--noise", 1], "missing: none"),
        (FIRST, "missing: noise_multiplier, epsilon"),
        (["--examples", 10, "--batch", 20, "--steps", 5, "--noise", 1], "Lower the batch size"),
        (["--rate", 2, "--steps", 5, "--noise", 1], "in (0, 1]"),
        (["--batch", 20, "--steps", 5, "--noise", 1], "--examples"),
        (["--rate", 0.1, "--steps", 5, "--epochs", 2, "--noise", 1], "Leave one out"),
        (["--examples", 100, "--epochs", 2, "--noise", 1, "--epsilon", 1], "--steps"),
        ([*FIRST, "--noise", 1, "--method", "gib"], "dp_sgd"),
        ([*FIRST, "--noise", 1, "--method", "gip"], "qg.calibrate"),
        ([*FIRST, "--noise", 1, "--method", "gep", "--split", "energy"], "energy_split"),
        ([*FIRST, "--noise", 1, "--accountant", "gdp"], "best, pld or rdp"),
        (["--rate", 1, "--noise", 0.1, "--epsilon", 0.1], "one step costs"),
        ([*FIRST, "--advantage", 0.1, "--epsilon", 1], "Leave them out"),
        ([*FIRST, "--found", 0.1], "in part"),
        ([*FIRST, "--found", 0.1, "--at-false-positives", 0.2], "Guessing"),
    ],
)
def test_bad_input_is_one_line_with_the_remedy(options: list[object], said: str) -> None:
    assert said in refused(*options)


def test_the_noise_for_an_attack_risk() -> None:
    whole = ["--rate", "1", "--steps", "1", "--json"]
    by_advantage = json.loads(CliRunner().invoke(app, ["budget", *whole, "--advantage", "0.1"]).stdout)
    assert by_advantage["noise_multiplier"] == pytest.approx(3.979, rel=2e-3)  # 1 / (2 Φ⁻¹(0.55))
    asked = ["--found", "0.05", "--at-false-positives", "0.01"]
    by_found = json.loads(CliRunner().invoke(app, ["budget", *whole, *asked]).stdout)
    assert by_found["noise_multiplier"] == pytest.approx(1.467, rel=2e-3)  # 1 / (Φ⁻¹(0.05) − Φ⁻¹(0.01))
    assert 0.0499 < by_found["found"] <= 0.05


def test_debug_shows_where_it_came_from() -> None:
    result = CliRunner().invoke(app, ["budget", *FIRST, "--noise", "-1", "--debug"])
    assert isinstance(result.exception, ValueError)
