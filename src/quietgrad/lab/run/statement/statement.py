"""`privacy.json`: what a run guarantees, for machines; the schema is described in docs/privacy_statement.md."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

from quietgrad.accounting.chain import key_from_environment
from quietgrad.accounting.events import phase_to_dict
from quietgrad.lab.files import to_json
from quietgrad.lab.run.statement import words
from quietgrad.lab.run.statement.recorded import RecordedRun
from quietgrad.lab.run.statement.trade_off import curve_of, curve_of_pair, mu_of

SCHEMA = "quietgrad/privacy-statement/1"
FILE = "privacy.json"
WEIGHTS, CONFIG, LEDGER, FEATURES = "model.pt", "config.toml", "ledger.jsonl", "features.pt"
"""What a run leaves; the features only where the method makes its own."""
OTHERS, RESULTS = ("run.json", "split.json", "checkpoint.pt"), "results.json"
"""What else it leaves, in `files`."""

Statement = dict[str, Any]


def statement_of(run: RecordedRun) -> Statement:
    """Return the whole statement about a run whose weights are written; signed if there is a ledger key."""
    statement = {
        "schema": SCHEMA,
        # Runs of 0.2 did not write down when they began.
        **({"about": words.about(run)} if "started" in run.facts else {}),
        "claim": _claim(run),
        "unit": words.unit(run),
        "neighbours": {
            "relation": "zero-out",
            run.many: run.units,
            "said": words.setting(run)["neighbours"],
        },
        "sampling": {
            "kind": run.sampling,
            "said": words.setting(run)["sampling"],
            "rate": run.rate,
            "expected_batch": run.rate * run.units,
            "steps": run.planned,
        },
        "mechanism": {
            "described": run.mechanism,
            "plan": [phase_to_dict(phase) for phase in run.ledger.plan or ()],
        },
        "accountant": {"kind": "min(PLD, RDP)", "said": words.setting(run)["accountant"]},
        "tuning": run.config.tuning.model_dump(),
        "public_data": {
            "examples": run.split.get("public", 0),
            "labelled": bool(run.split.get("public_labels", False)),
            "origin": run.split.get("public_origin", "none"),
            "first_trained_on_it": run.config.training.warm_start == "public",
        },
        # Runs of 0.2 and federated ones, which protect clients, say nothing about it.
        **({"independence": found} if (found := (run.results or {}).get("independence")) else {}),
        **({"foreign_code": _foreign(run, said)} if (said := words.foreign_code(run)) else {}),
        "assumptions": words.assumptions(run),
        "not_covered": words.not_covered(run),
        "ledger": {
            "file": LEDGER,
            "head": run.ledger.head,
            "releases": run.ledger.count,
            "keyed": run.ledger.keyed,
        },
        "weights": _hashed(run.path / WEIGHTS),
        "features": _hashed(run.path / FEATURES) if (run.path / FEATURES).exists() else None,
        "config": _hashed(run.path / CONFIG),
        "files": _files(run),
        "versions": run.versions,
    }
    plain: Statement = json.loads(to_json(statement))
    key = key_from_environment()
    return plain if key is None else {**plain, "signature": signature(plain, key)}


def _foreign(run: RecordedRun, said: str) -> dict[str, str | None]:
    return {"method": run.config.method.name, "sha256": run.facts.get("method_source"), "said": said}


def signature(statement: Statement, key: bytes) -> str:
    """HMAC-SHA-256 of everything but the signature itself."""
    unsigned = {name: value for name, value in statement.items() if name != "signature"}
    content = json.dumps(unsigned, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hmac.new(key, content.encode(), hashlib.sha256).hexdigest()


def _claim(run: RecordedRun) -> dict[str, Any]:
    plan, delta = run.ledger.plan or (), run.config.privacy.delta
    tuned = run.config.tuning.on == "private"
    return {
        "covered": bool(run.results is not None and run.results["covered"]),
        "epsilon": run.epsilon,
        "delta": delta,
        "mu": None if tuned else mu_of(plan, run.epsilon),
        "attack_advantage": run.advantage,
        "trade_off": trade_off(run),
    }


def trade_off(run: RecordedRun) -> list[dict[str, float]]:
    """Return the run's trade-off curve; after a private search, that of its (ε, δ) alone."""
    if run.config.tuning.on == "private":
        return curve_of_pair(run.epsilon, run.config.privacy.delta)
    return curve_of(run.ledger.plan or (), run.epsilon)


def _files(run: RecordedRun) -> dict[str, str]:
    """Hash what else a run leaves. Its results are written after the statement, so their content is hashed."""
    found = {name: run.path / name for name in OTHERS if (run.path / name).exists()}
    hashes = {name: _hashed(file)["sha256"] for name, file in found.items()}
    if run.results is not None:
        hashes[RESULTS] = hashlib.sha256(to_json(run.results).encode()).hexdigest()
    return hashes


def _hashed(file: Path) -> dict[str, str]:
    return {"file": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
