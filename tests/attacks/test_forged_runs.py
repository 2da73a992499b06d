"""A run trained with little noise is published as one with much: everything in its folder may be rewritten.

The forger has the folder and the code, not the key. Without a key a folder that is rewritten as a whole looks like a
true one, and `verify` says so; whatever leaves one file behind is found. With a key nothing may pass.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quietgrad.accounting.chain import KEY_VARIABLE, digest, line_of
from quietgrad.lab.files import to_json
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.statement.model_card import model_card
from quietgrad.lab.run.statement.recorded import read_run
from quietgrad.lab.run.statement.statement import statement_of
from quietgrad.lab.run.statement.verification import verify
from quietgrad.lab.run.train import train
from tests.lab.tiny import write_config

SECRET = "the officer's secret"
Ledger = list[dict[str, Any]]


@pytest.fixture(scope="module", params=[None, SECRET], ids=["no key", "key"])
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, str | None]:
    """A run at ε = 8 with the weights that people want, one at ε = 1 with the claim that they want, and the key."""
    folder = tmp_path_factory.mktemp("forged")
    with pytest.MonkeyPatch.context() as patch:
        if request.param:
            patch.setenv(KEY_VARIABLE, request.param)
        for name, epsilon in (("loud", 8.0), ("quiet", 1.0)):
            config = load_config(
                write_config(folder),
                ["training.epochs=0.5", f"privacy.epsilon={epsilon}", "privacy.delta=1e-5"],
            )
            train(config, folder / name)
    return folder / "loud", folder / "quiet", request.param


def lines(run: Path) -> Ledger:
    entries = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    return [{key: value for key, value in entry.items() if key != "hash"} for entry in entries]


def chain(run: Path, entries: Ledger, key: bytes | None) -> None:
    """A whole new chain of hashes: anybody can make one without a key, or with a wrong one."""
    head, written = "", b""
    for entry in entries:
        head = digest(head, entry, key)
        written += line_of(entry, head)
    (run / "ledger.jsonl").write_bytes(written)


def louder(content: Any) -> Any:
    """The same with ten times the noise."""
    if isinstance(content, dict):
        return {
            name: 10 * value if name == "noise_multiplier" and isinstance(value, float) else louder(value)
            for name, value in content.items()
        }
    return [louder(part) for part in content] if isinstance(content, list) else content


def publish(run: Path, key: str | None) -> None:
    """Results, statement and card made to fit what the forged ledger says, by the forger's own copy of the code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(KEY_VARIABLE, raising=False)
        if key:
            patch.setenv(KEY_VARIABLE, key)
        results = json.loads((run / "results.json").read_text())
        found = read_run(run)
        (run / "results.json").write_text(to_json({**results, "epsilon": found.epsilon}))
        statement = statement_of(read_run(run))
    (run / "privacy.json").write_text(to_json(statement))
    (run / "model_card.md").write_text(model_card(statement))


def only_the_plan(run: Path, _: Path) -> None:
    header, *releases = lines(run)
    chain(run, [louder(header), *releases], None)
    publish(run, None)


def only_the_releases(run: Path, _: Path) -> None:
    header, *releases = lines(run)
    chain(run, [header, *louder(releases)], None)
    publish(run, None)


def ledger_and_statement_of_another(run: Path, other: Path) -> None:
    for name in ("ledger.jsonl", "privacy.json", "model_card.md", "results.json"):
        shutil.copy(other / name, run / name)


def everything_of_another_but_the_weights(run: Path, other: Path) -> None:
    weights = (run / "model.pt").read_bytes()
    shutil.copytree(other, run, dirs_exist_ok=True)
    (run / "model.pt").write_bytes(weights)


def swapped_releases(run: Path, _: Path) -> None:
    header, first, second, *rest = (run / "ledger.jsonl").read_text().splitlines(keepends=True)
    (run / "ledger.jsonl").write_text("".join([header, second, first, *rest]))


def fewer_releases(run: Path, _: Path) -> None:
    """Half of the steps are taken out of plan, releases and results; the config still asks for all."""
    header, *releases = lines(run)
    kept = len(releases) // 2
    header["plan"][0]["count"] = kept
    chain(run, [header, *releases[:kept]], None)
    results = json.loads((run / "results.json").read_text())
    (run / "results.json").write_text(to_json({**results, "steps": kept}))
    publish(run, None)


def more_records(run: Path, _: Path) -> None:
    """Ten times the records, so a tenth of the rate: the config's batch fits, the releases do not."""
    header, *releases = lines(run)
    header["description"]["records"] *= 10
    header["plan"][0]["rate"] /= 10
    chain(run, [header, *releases], None)
    publish(run, None)


def a_longer_chain(run: Path, _: Path) -> None:
    """The last release once more, hashed on: more was released than planned."""
    chain(run, [*lines(run), lines(run)[-1]], None)
    publish(run, None)


FORGERIES: dict[str, Callable[[Path, Path], None]] = {
    function.__name__: function
    for function in (
        only_the_plan,
        only_the_releases,
        ledger_and_statement_of_another,
        everything_of_another_but_the_weights,
        swapped_releases,
        fewer_releases,
        more_records,
        a_longer_chain,
    )
}


def copied(run: Path, tmp_path: Path) -> Path:
    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("forgery", FORGERIES)
def test_what_leaves_one_file_behind_is_found(
    runs: tuple[Path, Path, str | None], tmp_path: Path, forgery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loud, quiet, key = runs
    run = copied(loud, tmp_path)
    if key:
        monkeypatch.setenv(KEY_VARIABLE, key)
    assert verify(run).stands
    try:
        FORGERIES[forgery](run, quiet)
    except ValueError:
        return  # the forger's own code refuses what he wrote
    assert not verify(run).stands


def forge_everything(run: Path, key: str | None) -> None:
    """Plan, description and releases with ten times the noise, and all that is made of them."""
    chain(run, louder(lines(run)), key.encode() if key else None)
    publish(run, key)


@pytest.mark.parametrize("guess", [None, "a guess"])
def test_a_folder_rewritten_as_a_whole_falls_by_the_key_and_only_by_it(
    runs: tuple[Path, Path, str | None], tmp_path: Path, guess: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    loud, _, key = runs
    run = copied(loud, tmp_path)
    if key is None:
        if guess is None:
            forge_everything(run, None)
            assert verify(run).stands  # this is why the verdict says so
            assert verify(run).said.endswith("checked against accidents, not forgery (no key).")
        return
    entries = lines(run)
    if guess is None:
        entries[0].pop("keyed")
    chain(run, louder(entries), guess.encode() if guess else None)
    publish(run, guess)
    monkeypatch.setenv(KEY_VARIABLE, key)
    assert not verify(run).stands


def test_a_true_signature_does_not_serve_a_changed_statement(
    runs: tuple[Path, Path, str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loud, quiet, key = runs
    if key is None:
        return
    monkeypatch.setenv(KEY_VARIABLE, key)
    run = copied(loud, tmp_path)
    for name in ("privacy.json", "model_card.md"):
        shutil.copy(quiet / name, run / name)
    assert not verify(run).stands
    statement = {**json.loads((loud / "privacy.json").read_text()), "unit": "one person with all records"}
    (run / "privacy.json").write_text(to_json(statement))
    assert "not signed" in " ".join(verify(run).problems)
