"""`quietgrad train` on a user's own texts: tables of text and label, a model's folder, LoRA, frozen features."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from quietgrad.integrations.text_folder import FolderTokens, TextEncoder
from quietgrad.lab.cli.app import app
from quietgrad.lab.data import DataError, load
from tests.integrations.tiny_text import bert
from tests.integrations.tokens import tokenizer

runner = CliRunner()
ROWS = [(f"w{n % 2} w{n % 19} w{n // 19}", "spam" if n % 2 else "ham") for n in range(80)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bert")
    bert().save_pretrained(made)  # type: ignore[operator]
    tokenizer().save_pretrained(made)
    return made


def table(folder: Path, kind: str) -> Path:
    path = folder / f"mails.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(json.dumps({"text": text, "label": label}) for text, label in ROWS))
    else:
        mark = "," if kind == "csv" else "\t"
        path.write_text(f"text{mark}label\n" + "".join(f"{text}{mark}{label}\n" for text, label in ROWS))
    return path


def trained(tmp_path: Path, *settings: str) -> tuple[int, str]:
    config = tmp_path / "own.toml"
    config.write_text(
        "[data]\ntext = 'text'\ntest = 4\n"
        "[privacy]\nepsilon = 8.0\ndelta = 1e-3\n[training]\nepochs = 2\nbatch = 16\nlr = 0.5\n"
    )
    changes = [part for setting in settings for part in ("--set", setting)]
    done = runner.invoke(app, ["train", str(config), "--out", str(tmp_path / "run"), *changes])
    assert done.exit_code in (0, 2), done.exception
    return done.exit_code, done.output


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_tables_are_read_alike(tmp_path: Path, kind: str) -> None:
    parts = load(str(table(tmp_path, kind)), text="text", test=10)
    assert (len(parts.private), parts.num_classes, parts.input_shape) == (70, 2, (64,))
    counts = np.bincount(np.concatenate([parts.private.tensors[1], parts.test.tensors[1]]))
    assert counts.tolist() == [40, 40]


def table_of_users(folder: Path, kind: str = "csv") -> Path:
    """Twenty users of one to seven mails."""
    whose = [f"p{user:02}" for user in range(20) for _ in range(1 + user % 7)]
    rows = [
        {"text": f"{t} w{n}", "label": k, "who": w}
        for n, ((t, k), w) in enumerate(zip(ROWS, whose, strict=False))
    ]
    path = folder / f"people.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows))
    else:
        path.write_text("text,label,who\n" + "".join(f"{r['text']},{r['label']},{r['who']}\n" for r in rows))
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_users_of_a_table_are_private_or_for_testing_with_all_their_texts(tmp_path: Path, kind: str) -> None:
    path = table_of_users(tmp_path, kind)
    parts = load(str(path), text="text", unit="who", test=4)
    assert parts.users is not None
    sizes = dict(zip(*np.unique(parts.users, return_counts=True), strict=True))
    assert len(sizes) == 16
    assert all(size == 1 + int(name[1:]) % 7 for name, size in sizes.items())
    assert len(parts.test) == len(load(str(path), text="text", test=1).private) + 1 - len(parts.private)
    assert parts.record["people"] == 16
    assert "private" not in parts.record
    with pytest.raises(DataError, match=r"set data\.test = 4, a fifth"):
        load(str(path), text="text", unit="who")


def test_users_of_a_table_are_protected(tmp_path: Path, folder: Path) -> None:
    users = ["data.unit=who", "data.most_records=2", "training.batch=8"]
    data = [f"data.name={table_of_users(tmp_path)}", f"model.name=hf:{folder}", "data.tokens=8"]
    code, output = trained(tmp_path, *data, *users)
    assert code == 0, output
    said = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert said["neighbours"]["people"] == 16
    assert "'who'" in said["unit"]


def test_a_text_of_nobody_is_refused(tmp_path: Path) -> None:
    path = table_of_users(tmp_path)
    path.write_text(path.read_text() + "one more,ham,\n")
    with pytest.raises(DataError, match="'who' is empty"):
        load(str(path), text="text", unit="who", test=4)
    with pytest.raises(DataError, match="no column 'person'"):
        load(str(path), text="text", unit="person", test=4)


def test_a_folder_trains_with_and_without_lora(tmp_path: Path, folder: Path) -> None:
    data = [f"data.name={table(tmp_path, 'csv')}", f"model.name=hf:{folder}", "data.tokens=8"]
    (tmp_path / "whole").mkdir()
    code, output = trained(tmp_path / "whole", *data)
    assert code == 0, output
    (tmp_path / "lora").mkdir()
    code, output = trained(tmp_path / "lora", *data, 'model.lora={rank = 2, targets = ["query", "value"]}')
    assert code == 0, output
    statement = (tmp_path / "lora" / "run" / "privacy.json").read_text()
    assert "trained on other data" in statement


def test_frozen_features_and_a_private_head(tmp_path: Path, folder: Path) -> None:
    code, output = trained(
        tmp_path,
        f"data.name={table(tmp_path, 'csv')}",
        f"data.features=hf:{folder}",
        "data.tokens=8",
        "method.name=quiet",
    )
    assert code == 0, output
    ledger = (tmp_path / "run" / "ledger.jsonl").read_text()
    assert '"mean"' in ledger
    assert '"moments"' not in ledger


def test_a_text_has_the_same_features_alone_and_among_others(folder: Path) -> None:
    ids = FolderTokens(str(folder), 8).encode([text for text, _ in ROWS[:5]] + ["w1 w2 w3 w4 w5 w6 w7"])
    import torch

    encoder = TextEncoder(str(folder))
    together = encoder(torch.from_numpy(ids))
    alone = torch.cat([encoder(row[None]) for row in torch.from_numpy(ids)])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a,label\nx,0\n", "no column 'text'"),
        ("text,label\n ,0\n", "record 1: the text is empty"),
        ("text,label\nx,0\ny,0\n", "has 1 classes"),
        ("text,label\n", "no rows"),
    ],
)
def test_a_bad_table_is_refused_in_one_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=said) as caught:
        load(str(path), text="text", test=1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["data.features=minlm"], "minilm"),
        (["data.features=hf:nowhere"], "config.json"),
        (["model.name=hf:nowhere"], "config.json"),
        (["data.tokens=99", "model.name=hf:FOLDER"], "more than the 16"),
        (["data.name=embedded", "data.features=hf:FOLDER"], "takes texts"),
        (["model.name=hf:FOLDER", "model.lora={ranks = 2}"], "model.lora.ranks"),
    ],
    ids=str,
)
def test_a_bad_setting_is_refused_in_one_line(
    tmp_path: Path, folder: Path, settings: list[str], said: str
) -> None:
    given = [setting.replace("FOLDER", str(folder)) for setting in settings]
    data = [] if "data.name=embedded" in settings else [f"data.name={table(tmp_path, 'csv')}"]
    tokens = [] if any("tokens" in setting for setting in settings) else ["data.tokens=8"]
    code, output = trained(tmp_path, *data, *tokens, *given)
    assert code == 2
    assert said in " ".join(output.split())
    assert "Traceback" not in output
