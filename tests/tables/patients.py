"""A small table of patients, as files and as a config."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

CONFIG = """\
[data]
name = "{data}"
label = "readmitted"
test = 60
[columns]
age = [0, 110]
ward = ["er", "icu", "surgery"]
admitted = [2015-01-01, 2024-12-31]
smoker = "boolean"
readmitted = "boolean"
[privacy]
epsilon = 8.0
delta = 1e-3
"""


def patients(rows: int = 300, seed: int = 0) -> list[dict[str, Any]]:
    """Older patients of the icu are readmitted."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(rows):
        age, ward = int(rng.integers(20, 100)), str(rng.choice(["er", "icu", "surgery"]))
        again = age + 40 * (ward == "icu") + rng.normal(0, 10) > 75
        found.append(
            {
                "patient_id": f"P{number // 2}",
                "age": "" if rng.random() < 0.1 else str(age),
                "ward": ward,
                "admitted": f"20{rng.integers(15, 25)}-0{rng.integers(1, 10)}-11",
                "smoker": str(rng.choice(["yes", "no", "NA"])),
                "notes": "free, text",
                "readmitted": "yes" if again else "no",
            }
        )
    return found


def write_csv(path: Path, records: list[dict[str, Any]], separator: str = ",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]), delimiter=separator)
        writer.writeheader()
        writer.writerows(records)
    return path


def write_config(folder: Path, data: Path, text: str = CONFIG) -> Path:
    path = folder / "patients.toml"
    path.write_text(text.format(data=data))
    return path
