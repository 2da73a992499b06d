"""Does the claim of a run stand? Its ledger, statement and all other files are held against each other."""

from __future__ import annotations

import hmac
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quietgrad.accounting.chain import key_from_environment
from quietgrad.lab.files import number, read_json
from quietgrad.lab.formatting import epsilon_text
from quietgrad.lab.run.folder import RunFolder
from quietgrad.lab.run.statement.model_card import FILE as CARD
from quietgrad.lab.run.statement.model_card import model_card
from quietgrad.lab.run.statement.recorded import RecordedRun, read_run
from quietgrad.lab.run.statement.seals import broken_seals
from quietgrad.lab.run.statement.statement import FILE, SCHEMA, Statement, signature, statement_of
from quietgrad.schedules import steps_of

CHECKPOINT = "checkpoint.pt"
"""May be deleted: it says nothing about the guarantee, and takes most of the space."""

NO_NOISE = "ε is infinite: no noise was added"

TOLERANCE = 1e-3
"""How far numbers may differ that were computed twice, perhaps with other versions: relative."""


@dataclass(frozen=True)
class Verdict:
    """What was found.

    Args:
        problems: why the claim does not stand; none if it does.
        said: the verdict in one line.
    """

    problems: tuple[str, ...]
    said: str

    @property
    def stands(self) -> bool:
        return not self.problems

    @property
    def claims_nothing(self) -> bool:
        """Whether all that is wrong is that the run is not private, as it says itself."""
        return self.problems == (NO_NOISE,)


def verify(path: Path) -> Verdict:
    """Check everything that the folder of a finished run says about its privacy.

    Args:
        path: the folder; its weights are hashed, not loaded.
    """
    if not RunFolder(path).exists and not (path / FILE).exists():
        return _verdict((f"{path} is not a run: it has neither config.toml nor {FILE}",), None, path)
    try:
        stated = read_json(path / FILE)
        run = read_run(path)
        problems = tuple(_problems(stated, run))
    except (ValueError, OSError, KeyError, TypeError, AttributeError) as error:
        # Whatever cannot be read cannot be vouched for.
        return _verdict((" ".join(str(error).split()) or type(error).__name__,), None, path)
    return _verdict(problems, stated, path)


def _verdict(problems: tuple[str, ...], stated: Statement | None, path: Path) -> Verdict:
    if problems or stated is None:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return Verdict(problems, f"The claim does NOT stand: {problems[0]}{more}.")
    claim, ledger = stated["claim"], stated["ledger"]
    guarded = "forgery (keyed)" if ledger["keyed"] else "accidents, not forgery (no key)"
    foreign = stated.get("foreign_code")
    unread = f" NOT checked: {foreign['said']}" if foreign else ""
    return Verdict(
        (),
        f"The claim stands: ε = {epsilon_text(number(claim['epsilon']))} at δ = {claim['delta']:g}; "
        f"{ledger['releases']} releases, statement, {_checked(stated, path)}; checked against {guarded}.{unread}",
    )


def _checked(stated: Statement, path: Path) -> str:
    """Return which files agree, and which could not be checked."""
    if "files" not in stated:
        return "weights and config agree; results, split, checkpoint and report NOT checked (a run of 0.2)"
    there = [name for name in (CHECKPOINT, "report.html", "audit.json") if (path / name).exists()]
    absent = f"; {CHECKPOINT} is not there" if CHECKPOINT not in there else ""
    return (
        f"weights, config, results, split, model card{''.join(f', {name}' for name in there)} agree{absent}"
    )


def _problems(stated: Statement, run: RecordedRun) -> Iterator[str]:
    if stated.get("schema") != SCHEMA:
        yield f"{FILE} has the schema {stated.get('schema')!r}, this quietgrad reads {SCHEMA!r}"
        return
    yield from _unsigned(stated, run)
    yield from _unfinished(run)
    rebuilt = statement_of(run)
    for name in rebuilt.keys() | stated.keys():
        if name not in ("signature", "files"):
            yield from _differences(name, stated.get(name), rebuilt.get(name))
    yield from _against_config(run)
    if "files" in stated:  # statements of 0.2 have none
        yield from _other_files(stated["files"], rebuilt["files"])
        yield from broken_seals(run.path)
        if not (run.path / CARD).exists():
            yield f"{CARD} is missing"
    yield from _another_card(stated, run.path / CARD)
    yield from _not_private(stated)


def _unsigned(stated: Statement, run: RecordedRun) -> Iterator[str]:
    key = key_from_environment()
    if key is None:
        return
    if not run.ledger.keyed:
        yield "a ledger key is set, but the ledger has none"
    if not hmac.compare_digest(str(stated.get("signature", "")), signature(stated, key)):
        yield f"{FILE} is not signed with the ledger's key"


def _unfinished(run: RecordedRun) -> Iterator[str]:
    if run.results is None:
        yield "the run is not finished"
        return
    if run.ledger.count < run.results["steps"]:
        yield f"the ledger holds {run.ledger.count} releases, the results tell of {run.results['steps']}"
    reported = number(run.results["epsilon"])
    if run.config.tuning.on != "private" and not close(reported, run.epsilon):
        yield f"results.json says ε = {epsilon_text(reported)}, the ledger's plan costs {epsilon_text(run.epsilon)}"


def _against_config(run: RecordedRun) -> Iterator[str]:
    """What the ledger planned is what the config asks for."""
    privacy = run.config.privacy
    if run.config.method.name != "quiet":  # whose rule, not the config, decides mechanism, rate and steps
        yield from _planned_otherwise(run)
    budget = math.inf if privacy.epsilon is None or run.config.tuning.on == "private" else privacy.epsilon
    if run.epsilon > budget * (1 + TOLERANCE):
        yield f"the config's budget is ε = {budget:g}, the plan costs {epsilon_text(run.epsilon)}"
    fixed = privacy.noise_multiplier
    if fixed is not None and not close(run.mechanism["noise_multiplier"], fixed):
        yield "the config's noise multiplier is not the ledger's"


def _planned_otherwise(run: RecordedRun) -> Iterator[str]:
    training = run.config.training
    rate = training.batch / run.units
    if (run.config.data.unit is not None) != (run.many == "people"):
        yield f"the config's data.unit is {run.config.data.unit!r}, the ledger protects {run.many}"
    if run.many == "clients" and run.config.federated.clients != run.units:
        yield f"the config has {run.config.federated.clients} clients, the ledger {run.units}"
    if run.mechanism["name"] != run.config.method.name:
        yield f"the config's method is {run.config.method.name}, the ledger's {run.mechanism['name']}"
    if not close(rate, run.rate):
        yield f"the config's rate is {rate:.5g}, the ledger's {run.rate:.5g}"
    elif steps_of(training.epochs, rate) != run.planned:
        yield f"the config plans {steps_of(training.epochs, rate)} steps, the ledger {run.planned}"
    turns = int(run.ledger.description.get("groups", run.ledger.description.get("once_in_steps", 1)))
    paid = sum(phase.count for phase in run.ledger.plan or ())
    if turns > 1 and paid != math.ceil(run.planned / turns):
        yield f"{run.planned} steps in turns of {turns} are not what the {paid} draws of the plan pay for"


def _other_files(stated: dict[str, str], found: dict[str, str]) -> Iterator[str]:
    """Results, split, checkpoint and the run's name are those that the statement was made with."""
    for name in sorted(stated.keys() | found.keys()):
        if name not in found and name != CHECKPOINT:
            yield f"{name} is missing"
        elif name in found and stated.get(name) != found[name]:
            yield f"{name} is not the one that {FILE} was made with"


def _another_card(stated: Statement, card: Path) -> Iterator[str]:
    """The card is what gets published: it says what the statement says, or nothing."""
    if card.exists() and card.read_text(encoding="utf-8") != model_card(stated):
        yield f"{card.name} is not what {FILE} gives"


def _not_private(stated: Statement) -> Iterator[str]:
    if math.isinf(number(stated["claim"]["epsilon"])):
        yield NO_NOISE
    elif not stated["claim"]["covered"]:
        yield "the run is not covered by ε: research observers, fixed noise or replayed draws were on"


def _differences(path: str, stated: Any, found: Any) -> Iterator[str]:
    """Yield where the statement differs from what the folder gives, as dotted paths."""
    if isinstance(stated, dict) and isinstance(found, dict):
        for key in sorted(stated.keys() | found.keys()):
            yield from _differences(f"{path}.{key}", stated.get(key), found.get(key))
    elif isinstance(stated, list) and isinstance(found, list) and len(stated) == len(found):
        for place, (one, other) in enumerate(zip(stated, found, strict=True)):
            yield from _differences(f"{path}[{place}]", one, other)
    elif not _same(stated, found, small=path.startswith(("claim.trade_off", "claim.attack_advantage"))):
        yield f"{FILE} says {path} = {_short(stated)}, the folder gives {_short(found)}"


def _same(a: Any, b: Any, *, small: bool) -> bool:
    """Whether two values agree; `small` numbers, probabilities near 0, may differ by rounding, but δ may not."""
    if isinstance(a, float) and isinstance(b, float):
        return close(a, b) or (small and abs(a - b) < 1e-9)
    return type(a) is type(b) and bool(a == b)


def close(a: float, b: float) -> bool:
    """Whether two numbers that were computed twice agree."""
    return a == b or abs(a - b) <= TOLERANCE * min(abs(a), abs(b))


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
