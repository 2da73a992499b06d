"""What a guarantee means and rests on, in words that a privacy officer can check."""

from __future__ import annotations

import hashlib
import math
from typing import Any

from quietgrad.accounting import (
    AllocationEvent,
    BandedEvent,
    Event,
    GaussianEvent,
    JointEvent,
    TruncatedEvent,
)
from quietgrad.lab.formatting import epsilon_text
from quietgrad.lab.models.hf_folder import PREFIX
from quietgrad.lab.run.own_methods import is_foreign
from quietgrad.lab.run.statement.recorded import RecordedRun
from quietgrad.lab.run.task import is_pretrained
from quietgrad.methods.gip import MallowsSelection

TUNING = {
    "unstated": "Tuning: ε is of this one run. Every other run on the same records, such as trying learning rates or "
    "methods, costs as much again; quietgrad compare prints the sum. How the settings were found is not stated.",
    "nothing": "Tuning: ε is of this one run, and nothing was tuned, as whoever made the config states.",
    "public": "Tuning: ε is of this one run. Its settings were found with {tries} tries on public data, which cost no "
    "privacy.",
    "synthetic": "Tuning: ε is of this one run. Its settings were found with {tries} tries on synthetic data, which "
    "cost no privacy.",
    "private": "Tuning is covered: ε is that of a random number of tries on the private records, {mean:g} on average, "
    "of which only the best is released. It holds only if no other try is shown to anybody.",
}
"""What ε says about how the settings were found."""


def about(run: RecordedRun) -> dict[str, str | None]:
    """Return who made the run, when, for what and on which file."""
    stated = run.config.about
    return {
        "who": stated.who or None,
        "purpose": stated.purpose or None,
        "data_owner": stated.data_owner or None,
        "started": run.facts.get("started"),
        "data": run.config.data.name,
        "data_hash": run.facts.get("data_hash"),
    }


def about_rows(run: RecordedRun) -> dict[str, str]:
    """Return the same for readers, with what was not stated said to be so."""
    said = about(run)
    unkeyed = (
        "not kept: only under a ledger key, since an open hash would let anybody test guesses of the data"
    )
    weights = run.path / "model.pt"
    return {
        "who": said["who"] or "not stated ([about] in the config)",
        "when": said["started"] or "not recorded",
        "purpose": said["purpose"] or "not stated",
        "data owner": said["data_owner"] or "not stated",
        "data": str(said["data"]),
        "data file, keyed hash": said["data_hash"] or unkeyed,
        "weights, SHA-256": hashlib.sha256(weights.read_bytes()).hexdigest()
        if weights.exists()
        else "none yet",
    }


def foreign_code(run: RecordedRun) -> str:
    """Return what to know of a method that does not come with quietgrad; empty for one that does."""
    name = run.config.method.name
    if not is_foreign(name):
        return ""
    source = run.facts.get("method_source")
    which = (
        "whose source was not found" if source is None else f"with the SHA-256 {source[:16]}… of its source"
    )
    return (
        f"The method {name} is code of its own, {which}. ε holds only if its representation, clip and noise do what "
        "they say: read that code, or run the laws of quietgrad on it."
    )


def unit(run: RecordedRun) -> str:
    """Return what is protected as one thing."""
    if run.many == "clients":
        return "one client with all records that it holds and all that it ever sends"
    if run.many == "people":
        return f"one person with all records, as the column {run.config.data.unit!r} of the private data names people"
    return "one record, which is one row of the private data set: its inputs and its label"


def _who(run: RecordedRun) -> str:
    if run.many == "clients":
        return (
            f"Each of the {run.units:,} clients with all its records: whether it took part at all, how many records it "
            "has, and what they say. Who is one client is how the private records were split among them."
        )
    if run.many == "people":
        return (
            f"Each of the {run.units:,} people in the private data with all their records: whether they were used at "
            f"all, how many they are, and what they say. A step uses {run.most_records} of a person's records at most. "
            f"Who is one person is what the column {run.config.data.unit!r} says."
        )
    return (
        f"Each of the {run.units:,} private records (its inputs and its label): whether it was used at all, and what "
        "it says. One record is one row of the data set: someone with several rows is protected less, because ε grows "
        "with their number."
    )


def protected(run: RecordedRun) -> list[str]:
    """Return what is protected, and from whom."""
    labels = "with" if run.split.get("public_labels") else "without"
    parts = [
        f"{count:,} {kind}"
        for count, kind in (
            (run.split.get("public", 0), f"public examples ({labels} labels)"),
            (run.split.get("test", 0), "test examples"),
        )
        if count
    ]
    return [
        _who(run),
        "Against anybody who sees everything that leaves the training: the final model, every checkpoint, every update "
        "of every step. They may also know all other records.",
        *([f"Not protected: the {' and the '.join(parts)}."] if parts else []),
    ]


def meaning(run: RecordedRun) -> list[str]:
    """ε and δ in words."""
    delta = run.config.privacy.delta
    if math.isinf(run.epsilon):
        return ["ε is infinite: this run added no noise. It protects nobody and is here for comparison only."]
    one = run.one
    factor = math.exp(min(run.epsilon, 700))
    guess = 50 * (1 + run.advantage)
    return [
        f"(ε, δ) = ({epsilon_text(run.epsilon)}, {delta:g}). Take any conclusion that somebody could draw from the "
        "released model. "
        f"Its probability changes by a factor of at most e^ε = {factor:.3g} when any one {one} is left out, except "
        f"with probability δ = {delta:g}.",
        f"An attacker who guesses whether a {one} was used, as likely as not, is right in at most {guess:.1f}% of the "
        "cases, whatever the attack (50% is blind guessing).",
    ]


def setting(run: RecordedRun) -> dict[str, str]:
    """Neighbours, sampling, accountant."""
    phases = "; ".join(
        f"{phase.count} step{'' if phase.count == 1 else 's'} of {_event(phase.event)} at rate {phase.rate:.4g}"
        for phase in (run.ledger.plan or ())[:4]
    )
    more = len(run.ledger.plan or ()) - 4
    one, many, batch = run.one, run.many, run.rate * run.units
    average = f"{batch:,.0f}" if batch >= 1000 else f"{batch:.4g}"
    whole = " with all records" if many != "records" else ""
    return {
        "neighbours": f"one {one}{whole} replaced by nothing (zero-out); the number of {many} N = {run.units:,} is "
        "public",
        "sampling": f"every step uses all {run.units:,} {many}"
        if run.rate == 1
        else f"{_sampling(run)}, {average} {many} on average; drawn with operating-system entropy",
        "accountant": "the smaller of two upper bounds: privacy loss distributions (numerical composition, rounded "
        "towards more loss) and Rényi differential privacy",
        "plan": phases + (f"; and {more} more phases" if more > 0 else ""),
        "δ": f"{run.config.privacy.delta:g}, against 1/N = {1 / run.units:.2g}",
    }


def _sampling(run: RecordedRun) -> str:
    """Return how records take part, by what the plan holds."""
    one, rate = run.one, f"{run.rate:.5g}"
    events = [phase.event for phase in run.ledger.plan or ()]
    for event in events:
        if isinstance(event, AllocationEvent):
            return f"random allocation: each {one} takes part once in {event.steps} steps, at a step drawn for it"
        if isinstance(event, TruncatedEvent):
            return (
                f"truncated Poisson: each step draws each {one} on its own with probability {rate} and uses at most "
                f"{event.at_most}, the others left out at random"
            )
    groups = run.ledger.description.get("groups", 1)
    if groups > 1:
        return (
            f"cyclic Poisson: {groups} groups of fixed numbers take turns, and a step draws each {one} of its group "
            f"with probability {groups * run.rate:.5g}"
        )
    return f"Poisson: each step draws each {one} on its own with probability {rate}"


def _event(event: Event) -> str:
    if isinstance(event, AllocationEvent):
        return f"{event.steps} steps with Gaussian noise of multiplier {event.noise_multiplier:.4g} each"
    if isinstance(event, TruncatedEvent):
        return f"{_event(event.event)}, of at most {event.at_most} drawn"
    if isinstance(event, BandedEvent):
        plain = f"Gaussian noise with multiplier {event.noise_multiplier:.4g}"
        return f"{plain}, correlated over {event.bands} steps"
    if isinstance(event, GaussianEvent):
        return f"Gaussian noise with multiplier {event.noise_multiplier:.4g}"
    if isinstance(event, JointEvent):
        chosen = sum(part.groups for part in event.selections if isinstance(part, MallowsSelection))
        others = [str(part) for part in event.selections if not isinstance(part, MallowsSelection)]
        return " and ".join([_event(event.gaussian), f"{chosen} noisy selections", *others])
    return "noisy selections" if isinstance(event, MallowsSelection) else str(event)


def assumptions(run: RecordedRun) -> list[str]:
    """Return what has to be true for the guarantee to hold."""
    split = run.split
    public = split.get("public", 0)
    said = [
        "Public means public: N, the number of classes, the model, all settings of the config and the test data were "
        "not chosen by looking at the private records.",
        "Bounds, categories and classes of [columns] were stated without looking at the private rows."
        if run.config.columns
        else f"Inputs are scaled by fixed constants: {split.get('normalisation', 'none')}.",
        "The server is trusted, which sees what each client sends before the noise; the guarantee is about what leaves "
        "it. Clients may be curious: they see each round's model, and so does everybody."
        if run.many == "clients"
        else "The machine that trains is trusted; the guarantee is about what leaves it.",
        "Noise is drawn as integers on a grid to which the sums are rounded; ε accounts for the rounding. Nobody can "
        "predict or read the generator, which the operating system keys.",
    ]
    if foreign := foreign_code(run):
        said.append(foreign)
    if public:
        said.insert(
            0,
            f"Public data: {public:,} examples ({split.get('public_origin', 'origin unknown')}) may enter the method "
            "freely. ε says nothing about the people behind them: they must have agreed, or the data must be open.",
        )
    if run.config.training.warm_start == "public":
        said.insert(1, "The model was first trained on the labelled public examples.")
    if run.config.data.features == "scatter":
        said.append("Features come from fixed filters that no record has influenced.")
    elif is_pretrained(run.config.data.features) or run.config.model.name.startswith(PREFIX):
        said.append(
            "It starts from weights that were trained on other data. ε says nothing about those data and holds only if "
            "the private records were not among them."
        )
    found = (run.results or {}).get("independence")
    if found:
        how = found["said"] if found["checked"] else f"{found['said']}, and ε holds only if it is so"
        said.append(f"No record influences the gradient of another one ({how}). Lengths: {found['lengths']}.")
    return said


def not_covered(run: RecordedRun) -> list[str]:
    """Return what ε does not say about this run."""
    covered = run.results is None or run.results["covered"]
    said = [
        _tuning(run),
        *_measured(run),
        "Facts about the population: that the model works at all may reveal what is true of everybody.",
        "Time and memory, the seconds in this report among them: they are not protected from an observer of the "
        "machine.",
        "Stopping early because of what was seen does not lower ε, which is that of the whole plan.",
    ]
    if covered:
        said.append("Research mode was off: no observer read private gradients.")
    else:
        said.insert(
            0,
            "THIS RUN IS NOT COVERED: research observers, fixed noise or replayed draws were on. Do not release it.",
        )
    return said


def _measured(run: RecordedRun) -> list[str]:
    """Return what the figures of the results tell freely; those that were released within ε tell nothing beyond it."""
    if run.config.privacy.accuracy is not None:
        return []
    return [
        "Test accuracy: it was measured at about twenty points of training, on test examples that are taken as public."
    ]


def _tuning(run: RecordedRun) -> str:
    tuning = run.config.tuning
    return TUNING[tuning.on].format(tries=tuning.tries or "some", mean=tuning.mean_tries or 1.0)


def seed_policy(run: RecordedRun) -> str:
    return (
        f"training.seed = {run.config.training.seed} and data.seed = {run.config.data.seed} fix initial weights, views "
        "and the split into parts. Noise and batches come from the operating system's entropy, are not stored and "
        "differ in every run: a run cannot be repeated to the bit, and must not be."
    )


def mechanism_rows(run: RecordedRun) -> list[tuple[str, str]]:
    """Return the parameters of the mechanism as the ledger keeps them, nested names joined by dots."""
    return list(_flat(run.mechanism))


def _flat(value: Any, name: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict):
        pairs = [
            pair for key, item in value.items() for pair in _flat(item, f"{name}.{key}" if name else key)
        ]
        return [pair for pair in pairs if pair[1] != ""]
    if isinstance(value, list):
        return [pair for number, item in enumerate(value) for pair in _flat(item, f"{name}[{number}]")]
    return [(name, "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value))]
