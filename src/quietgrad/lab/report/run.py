"""The article about one run: the guarantee first, then what came of it."""

from __future__ import annotations

import math
from typing import Any

import tomli_w

from quietgrad.lab.formatting import epsilon_text, method_title, percent_text
from quietgrad.lab.report import plots
from quietgrad.lab.report.html import (
    badge,
    bullets,
    cards,
    facts,
    figure,
    folded,
    paragraph,
    preformatted,
    section,
    table,
    text,
)
from quietgrad.lab.run.metrics import one_class_warning
from quietgrad.lab.run.presets import QUIET
from quietgrad.lab.run.statement import words
from quietgrad.lab.run.statement.recorded import RecordedRun
from quietgrad.lab.run.statement.statement import trade_off


def run_article(run: RecordedRun) -> str:
    """All sections about a run."""
    parts = [
        _head(run),
        about(run),
        attacker(run),
        guarantee(run),
        _results(run),
        _sent(run),
        noise(run),
        audits([run]),
        provenance(run),
    ]
    return f"<article>{''.join(parts)}</article>"


def about(run: RecordedRun) -> str:
    """Who made the run, when, for what and on which file."""
    return section("About this run", facts(words.about_rows(run)))


def unstated(run: RecordedRun) -> str:
    """A visible line while nobody has said how the settings were found."""
    if run.config.tuning.on != "unstated" or math.isinf(run.epsilon):
        return ""
    said = (
        "Tuning is not stated. ε is of this one run; other runs on the same records cost as much again. State it in "
        "the section [tuning] of the config."
    )
    return f'<p class="warning">{text(said)}</p>'


def claim(run: RecordedRun) -> str:
    """What is protected, and what that means."""
    return "".join(
        [
            section("What is protected", bullets(words.protected(run))),
            section("What (ε, δ) mean here", "".join(map(paragraph, words.meaning(run)))),
        ]
    )


def guarantee(run: RecordedRun) -> str:
    """What is protected, how, and what is not."""
    return claim(run) + conditions(run)


def conditions(run: RecordedRun) -> str:
    """How the guarantee is made, what it assumes and what it leaves out."""
    return "".join(
        [
            section("How the guarantee is made", facts(words.setting(run)), _mechanism(run)),
            section("What it assumes", bullets(words.assumptions(run))),
            section("What ε does not cover", bullets(words.not_covered(run))),
        ]
    )


def standing(run: RecordedRun) -> tuple[str, bool]:
    """Whether ε describes what lies in the folder, in words, and whether that is good."""
    if math.isinf(run.epsilon):
        return "not private: no noise", False
    if run.results is None:
        return f"unfinished: {run.ledger.count} of {run.planned} steps", False
    return ("covered by ε", True) if run.results["covered"] else ("NOT covered by ε", False)


def _head(run: RecordedRun) -> str:
    config = run.config
    title = f"<h1>{text(method_title(config.method.name))} on {text(config.data.name)}</h1>"
    said, good = standing(run)
    model = "linear head on fixed features" if config.method.name == QUIET else config.model.name
    lead = f'<p class="lead">{text(model)}, run {text(run.label)} · {badge(said, good=good)}</p>'
    done = run.results
    metric, shown = _headline(done)
    return (
        title
        + lead
        + cards(
            {
                "ε": (epsilon_text(run.epsilon), f"at δ = {config.privacy.delta:g}, whole plan"),
                "private records" if run.many == "records" else run.many: (
                    f"{run.units:,}",
                    f"{run.planned:,} {'rounds' if run.many == 'clients' else 'steps'}",
                ),
                "noise multiplier σ": (_multiplier(run), "noise std / sensitivity, per step"),
                metric: shown,
            }
        )
        + unstated(run)
    )


def _headline(done: dict[str, Any] | None) -> tuple[str, tuple[str, str]]:
    """The one metric at the top of the page: its name, its value, and what it stands beside."""
    if done is None:
        return "accuracy", ("–", "the run is not finished")
    metrics = done.get("metrics")  # runs of 0.2 have none
    where = f"on {_measured_on(metrics or {})}"
    if metrics and "mae" in metrics:
        return "R²", (_r2(metrics), f"{where}; mean absolute error {metrics['mae']:.4g}")
    beside = "" if not metrics else f"; {metrics['majority']:.1%} are of one class"
    if metrics and metrics["auc"] is not None:
        beside += f", AUC {metrics['auc']:.3f}"
    return "accuracy", (percent_text(done["accuracy"]), f"{where}{beside}")


def _measured_on(metrics: dict[str, Any]) -> str:
    return (
        f"private rows, released within ε, noise ±{metrics['noise']:.2g}"
        if "noise" in metrics
        else "test data"
    )


def _r2(metrics: dict[str, Any]) -> str:
    return "–" if metrics["r2"] is None else f"{metrics['r2']:.3f}"


def _metrics(run: RecordedRun) -> str:
    found = (run.results or {}).get("metrics")
    if not found:
        return ""
    if "mae" in found:
        rows = [
            ("rows, or users", f"{found['rows']:,}"),
            ("R²", _r2(found)),
            ("mean absolute error", f"{found['mae']:.5g}"),
        ]
        if found["mean_mae"] is not None:
            rows.append(("mean absolute error of always the mean", f"{found['mean_mae']:.5g}"))
        return table((f"measured on {_measured_on(found)}", "value"), rows)
    rows = [
        ("rows, or users", f"{found['rows']:,}"),
        ("accuracy", percent_text(found["accuracy"], 2)),
        ("always the largest class", percent_text(found["majority"], 2)),
        ("balanced accuracy", percent_text(found["balanced_accuracy"], 2)),
        ("AUC", "–" if found["auc"] is None else f"{found['auc']:.4f}"),
        ("classes that the model says", f"{found['predicted']}"),
    ]
    warning = one_class_warning(found)
    return table((f"measured on {_measured_on(found)}", "value"), rows) + (
        paragraph(warning) if warning else ""
    )


def _multiplier(run: RecordedRun) -> str:
    return "–" if run.results is None else f"{run.results['noise_multiplier']:.4g}"


def _mechanism(run: RecordedRun) -> str:
    content = table(("parameter", "value"), words.mechanism_rows(run))
    return folded(f"Mechanism “{run.mechanism['name']}” with all its parameters", content)


def _results(run: RecordedRun) -> str:
    if not run.curve or run.curve[-1]["accuracy"] is None:
        measured = _metrics(run)
        return section("Training", measured) if measured else ""
    last = run.curve[-1]
    alt = f"Line: test accuracy, measured {len(run.curve)} times, at last {last['accuracy']:.1%} (step {last['step']})."
    drawn = plots.accuracy_curves({run.config.method.name: run.curve})
    return section(
        "Training", figure(drawn, "Accuracy on the test part, over the steps.", alt), _metrics(run)
    )


def _sent(run: RecordedRun) -> str:
    """What went over the network in a federated run."""
    done = run.results
    if done is None or "megabytes_up" not in done:
        return ""
    kilobytes = {to: f"{done[f'{to}_per_client'] / 1e3:,.1f} kB" for to in ("up", "down")}
    in_all = {to: f"{done[f'megabytes_{to}']:,.1f} MB expected in all" for to in ("up", "down")}
    sent = {
        "rounds": f"{run.planned:,}, of {run.rate * run.units:.4g} clients each on average",
        "from a client to the server": f"{kilobytes['up']} a round, {in_all['up']}",
        "from the server to a client": f"{kilobytes['down']} in the last round, {in_all['down']}",
    }
    note = (
        "Expected, since how many clients were drawn is private. Clients receive what has moved since the first "
        "weights, which they have."
    )
    return section("What was sent", facts(sent), paragraph(note))


def attacker(run: RecordedRun) -> str:
    """What somebody who knows everything but one person's presence can find out, in a picture."""
    if math.isinf(run.epsilon):
        return ""
    curve = trade_off(run)
    few = min(curve, key=lambda point: abs(point["false_positive_rate"] - 0.01))
    found = 1 - few["false_negative_rate"]
    said = (
        f"Suppose an attacker knows the model, all other {run.many} and how training works, and guesses who is in the "
        f"data. If at most {few['false_positive_rate']:.0%} of outsiders may be accused wrongly, at most {found:.1%} "
        "of the members are found, whatever the attack."
    )
    caption = (
        "Shaded: what ε makes impossible. The nearer the line is to guessing (dotted), the more private."
    )
    alt = f"Curve from few false accusations to many. {said}"
    return section("What an attacker can know", paragraph(said), figure(plots.attacker(curve), caption, alt))


def noise(run: RecordedRun) -> str:
    """The releases of a step, and how loud their noise is."""
    if run.results is None:
        return ""
    rows = [
        (
            release["representation"],
            f"{release['dimension']:,}",
            f"{release['share']:.3g}",
            f"{release['sensitivity']:g}",
            f"{release['std']:.4g}",
            f"{release['noise_norm']:.4g}",
        )
        for release in run.results["releases"]
    ]
    titles = ("release", "dimension", "share", "sensitivity", "noise std", "noise length")
    said = (
        f"A step's noise is {run.results['noise_to_signal']:.2f} times as long as the longest signal that the clips "
        "let through, before post-processing. The true signal is private and shorter."
    )
    return section("Noise", table(titles, rows), paragraph(said))


def audits(runs: list[RecordedRun]) -> str:
    """Attacks, or that none were made."""
    rows = [_audit_row(run.label, audit) for run in runs for audit in run.audits]
    if not rows:
        return section("Audit", paragraph("Audit: not made. The command quietgrad audit attacks a run."))
    titles = ("run", "attack", "claimed ε", "measured ε ≥", "confidence", "verdict")
    note = paragraph("An attack shows that ε is at least the measured bound; a small bound proves nothing.")
    return section("Audit", table(titles, rows), note)


def _audit_row(name: str, audit: dict[str, Any]) -> tuple[str, ...]:
    keys = ("attack", "claimed", "lower_bound", "confidence", "verdict")
    return (name, *(_short(audit.get(key, "–")) for key in keys))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _spending(run: RecordedRun) -> str:
    if not run.curve or math.isinf(run.epsilon):
        return ""
    drawn = plots.spending_curves({run.config.method.name: run.curve})
    alt = f"Rising line: ε grows with the steps and ends at {epsilon_text(run.curve[-1]['epsilon'])}."
    return figure(drawn, "ε of what the ledger held, over the steps.", alt)


def provenance(run: RecordedRun) -> str:
    """Ledger, data, versions, seeds, config."""
    ledger = run.ledger
    replayed = 0 if run.results is None else run.results.get("lost", 0)
    summary = {
        "releases": f"{ledger.count:,} recorded of {run.planned:,} planned"
        + (f", {replayed} of them replayed after a crash" if replayed > 0 else ""),
        "ε of the plan": epsilon_text(run.epsilon),
        "ε of what is recorded": epsilon_text(run.spent),
        "last hash": ledger.head,
    }
    split = {
        key.replace("_", " "): _shown(value) for key, value in run.split.items() if value not in ("", None)
    }
    return (
        section(
            "Ledger",
            facts(summary),
            _spending(run),
            paragraph(
                "Each release was on disk before it was visible; the hash chain was checked for this report."
            ),
        )
        + section("Data", facts(split))
        + section("Versions and seeds", facts(run.versions), paragraph(words.seed_policy(run)))
        + section("Config", folded("The resolved config", preformatted(tomli_w.dumps(run.config.plain()))))
    )


def _shown(value: object) -> object:
    """A value of split.json for readers: no brackets and quotes of a program."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        named = {
            key.replace("_", " "): _shown(part) for key, part in value.items() if part not in ("", None, [])
        }
        return "; ".join(f"{key}: {part}" for key, part in named.items())
    if isinstance(value, list | tuple):
        return ", ".join(str(_shown(part)) for part in value)
    return f"{value:,}" if isinstance(value, int) else value
