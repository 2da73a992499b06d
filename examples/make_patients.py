"""Write a made-up table of hospital stays: `python make_patients.py patients.csv`, 30,000 rows, no real patient.

Numbers, categories, truth values and dates; 12 to 35% of some columns are missing, in several spellings, and a few
values are odd on purpose. About 12% of the patients are readmitted.
"""

from __future__ import annotations

import argparse
import csv
import datetime
from pathlib import Path

import numpy as np

WARDS = ("surgery", "cardiology", "geriatrics", "emergency", "oncology")
MISSING = {"blood_pressure": 0.35, "sugar": 0.25, "creatinine": 0.30, "insurance": 0.12, "smoker": 0.18}
SPELLINGS = ("", "NA", "?")


def make_rows(rows: int, seed: int) -> list[dict[str, str]]:
    """Draw the table; the seed says which one."""
    rng = np.random.default_rng(seed)
    age = np.clip(rng.normal(62, 18, rows), 0, 105).round()
    ward = rng.choice(len(WARDS), rows, p=(0.28, 0.22, 0.18, 0.22, 0.10))
    diabetes = rng.random(rows) < 0.08 + 0.2 * (age > 60)
    smoker = rng.random(rows) < 0.24
    sugar = rng.normal(100, 15, rows) + diabetes * rng.gamma(3, 25, rows)
    pressure = rng.normal(118, 14, rows) + 0.25 * (age - 60)
    creatinine = rng.lognormal(-0.05, 0.4, rows) + (age > 75) * 0.3
    earlier = rng.poisson(0.6 + 0.5 * diabetes + 0.4 * (ward == 2))
    days = 1 + rng.gamma(1.6, 2.4, rows).round()
    admitted = rng.integers(0, 3650, rows)
    score = (
        -3.35
        + 0.022 * (age - 60)
        + 0.55 * earlier
        + 0.5 * diabetes
        + 0.35 * smoker
        + 0.3 * np.log(creatinine)
        + 0.006 * (sugar - 100)
        + 0.05 * days
        + np.array([0.0, 0.25, 0.6, -0.2, 0.7])[ward]
        - 0.0001 * admitted
    )
    readmitted = rng.random(rows) < 1 / (1 + np.exp(-score))
    first = datetime.date(2015, 1, 1)
    columns: dict[str, list[str]] = {
        "patient_id": [f"P{number:06d}" for number in rng.permutation(rows)],
        "age": [f"{value:.0f}" for value in age],
        "sex": rng.choice(["f", "m"], rows).tolist(),
        "ward": [WARDS[place] for place in ward],
        "admitted": [(first + datetime.timedelta(days=int(day))).isoformat() for day in admitted],
        "days": [f"{value:.0f}" for value in days],
        "earlier_stays": [str(value) for value in earlier],
        "diabetes": ["yes" if value else "no" for value in diabetes],
        "smoker": ["true" if value else "false" for value in smoker],
        "blood_pressure": [f"{value:.0f}" for value in pressure],
        "sugar": [f"{value:.1f}" for value in sugar],
        "creatinine": [f"{value:.2f}" for value in creatinine],
        "insurance": rng.choice(["public", "private", "none"], rows, p=(0.7, 0.2, 0.1)).tolist(),
        "notes": rng.choice(["stable, discharged", "to be seen again in 2 weeks", ""], rows).tolist(),
        "readmitted": ["yes" if value else "no" for value in readmitted],
    }
    for name, share in MISSING.items():
        for row in np.flatnonzero(rng.random(rows) < share):
            columns[name][row] = SPELLINGS[row % len(SPELLINGS)]
    for row, (name, odd) in enumerate(
        (("age", "sixty"), ("ward", "helipad"), ("sugar", "9999"), ("days", "-1"))
    ):
        columns[name][row] = odd
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def write_csv(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=Path("patients.csv"))
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write_csv(arguments.out, make_rows(arguments.rows, arguments.seed))
    print(f"{arguments.rows:,} made-up rows in {arguments.out}")
