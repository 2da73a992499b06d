"""The privacy section of a Hugging Face model card, made from a statement and nothing else."""

from __future__ import annotations

import math

from quietgrad.lab.files import number
from quietgrad.lab.formatting import epsilon_text
from quietgrad.lab.run.statement.statement import Statement

FILE = "model_card.md"
SHOWN_RATES = (0.001, 0.01, 0.1)
"""False-positive rates of the small table."""


def model_card(statement: Statement) -> str:
    """Markdown, to be pasted into a README.md on the hub."""
    claim, sampling = statement["claim"], statement["sampling"]
    lines = [
        "## Privacy",
        "",
        _verdict(statement),
        "",
        "| | |",
        "|---|---|",
        f"| (ε, δ) | ({epsilon_text(number(claim['epsilon']))}, {claim['delta']:g}) |",
        f"| μ-GDP | {_mu(claim['mu'])} |",
        f"| unit of privacy | {statement['unit']} |",
        f"| neighbours | {statement['neighbours']['said']} |",
        f"| sampling | Poisson, rate {sampling['rate']:.5g}, {sampling['steps']:,} steps |",
        f"| mechanism | {statement['mechanism']['described']['name']} |",
        f"| accountant | {statement['accountant']['said']} |",
        f"| settings tuned on | {statement['tuning']['on']} |",
        f"| public data | {statement['public_data']['examples']:,} examples, {statement['public_data']['origin']} |",
        f"| ledger | {statement['ledger']['releases']:,} releases, head `{statement['ledger']['head'][:16]}…` |",
        f"| weights | SHA-256 `{statement['weights']['sha256'][:16]}…` |",
        "",
        "What the best attack on whoever is protected can reach, whatever it does:",
        "",
        "| others accused wrongly | members found, at most |",
        "|---|---|",
        *_found(statement),
        "",
        "Assumptions:",
        "",
        *(f"- {line}" for line in statement["assumptions"]),
        "",
        "Not covered:",
        "",
        *(f"- {line}" for line in statement["not_covered"]),
    ]
    return "\n".join(lines) + "\n"


def _verdict(statement: Statement) -> str:
    epsilon = number(statement["claim"]["epsilon"])
    if math.isinf(epsilon):
        return "**Not private**: no noise was added."
    if not statement["claim"]["covered"]:
        return "**Not covered by ε**: research observers, fixed noise or replayed draws were on."
    return f"Trained with differential privacy, ε = {epsilon_text(epsilon)} at δ = {statement['claim']['delta']:g}."


def _mu(value: float | str | None) -> str:
    return "not determined" if value is None else epsilon_text(number(value))


def _found(statement: Statement) -> list[str]:
    curve = {
        point["false_positive_rate"]: point["false_negative_rate"]
        for point in statement["claim"]["trade_off"]
    }
    nearest = [min(curve, key=lambda alpha: abs(math.log(alpha / rate))) for rate in SHOWN_RATES]
    return [f"| {alpha:.3g} | {1 - curve[alpha]:.3g} |" for alpha in nearest]
