"""The examples run as they stand, shortened and with tiny models; going private changes at most six lines."""

from __future__ import annotations

import difflib
import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.tiny_text import bert, llama
from tests.integrations.tokens import tokenizer

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if not path.stem.startswith("make_"))
"""What trains; `make_…` writes data."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT, a Llama, a tokenizer and texts."""
    made = tmp_path_factory.mktemp("world")
    made_models: dict[str, Any] = {
        "bert": bert(num_labels=2, max_position_embeddings=64),
        "llama": llama(max_position_embeddings=64),
    }
    for name, model in made_models.items():
        model.save_pretrained(made / name)
        words = tokenizer()
        words.eos_token = "[SEP]"
        words.save_pretrained(made / name)
    rows = [f"w{n % 7} w{n % 5} w{n % 3}" for n in range(40)]
    table = "sentence\tlabel\n" + "".join(f"{row}\t{n % 2}\n" for n, row in enumerate(rows))
    (made / "table.tsv").write_text(table)
    (made / "held_out.tsv").write_text("sentence\tlabel\nw1 w2\t0\nw3\t1\n")
    (made / "texts.txt").write_text("\n".join(rows))
    (made / "held_out.txt").write_text("w1 w2 w3\nw2 w4\n")
    for part, count in (("train", 40), ("held_out", 4)):
        _conversations(made, part, rows[:count])
    return made


def _conversations(folder: Path, part: str, rows: list[str]) -> None:
    """Records for TRL: conversations with a completion, and completions of which one was chosen."""
    answers = [{"prompt": row, "completion": f" w{len(row)} w4"} for row in rows]
    choices = [{"prompt": row, "chosen": " w5 w6", "rejected": f" w{n % 9}"} for n, row in enumerate(rows)]
    for name, records in (("trl_sft", answers), ("trl_dpo", choices)):
        (folder / f"{name}_{part}.jsonl").write_text("\n".join(map(json.dumps, records)))


def arguments(name: str, folder: Path, out: Path) -> list[str]:
    table, text = (
        [str(folder / "table.tsv"), str(folder / "held_out.tsv")],
        [str(folder / "texts.txt"), str(folder / "held_out.txt")],
    )
    return {
        "sst2_trainer": [*table, "--model", str(folder / "bert"), "--epochs", "1", "--out", str(out)],
        "lora_language_model": [
            *text,
            "--model",
            str(folder / "llama"),
            "--steps",
            "2",
            "--batch",
            "8",
            "--out",
            str(out),
        ],
        "lightning_image": ["--records", "512", "--epochs", "1", "--out", str(out)],
        **{
            name: [
                *(str(folder / f"{name}_{part}.jsonl") for part in ("train", "held_out")),
                *("--model", str(folder / "llama"), "--steps", "2", "--batch", "8", "--length", "16"),
                *("--out", str(out)),
            ]
            for name in ("trl_sft", "trl_dpo")
        },
        "own_loop": [*table, "--model", str(folder / "bert"), "--steps", "2"],
    }[name]


def test_there_are_six_examples_under_sixty_lines() -> None:
    assert {path.stem for path in EXAMPLES} == {
        "sst2_trainer",
        "lora_language_model",
        "lightning_image",
        "own_loop",
        "trl_sft",
        "trl_dpo",
    }
    assert all(len(path.read_text().splitlines()) < 60 for path in EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(
    example: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [str(example), *arguments(example.stem, folder, tmp_path / "out")])
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(example), run_name="__main__")
    assert "epsilon = " in capsys.readouterr().out


@pytest.mark.parametrize("example", ["sst2_trainer", "trl_sft", "trl_dpo"])
def test_a_trainer_script_becomes_private_in_at_most_six_lines(example: str) -> None:
    private = (ROOT / "examples" / f"{example}.py").read_text().splitlines()
    public = []
    for line in private:
        if "PrivacyArguments" in line or "trainer.private" in line or "integrations.trl" in line:
            continue
        if "hugging_face import" not in line:
            plain = line.replace("PrivateTrainer(", "Trainer(").replace("Private", "")
            plain = re.sub(r"^from trl import (\w+)Config$", r"from trl import \1Config, \1Trainer", plain)
            public.append(plain.replace("    TrainingArguments,", "    TrainingArguments, Trainer,"))
    changed = [line for line in difflib.ndiff(public, private) if line[0] in "+-"]
    added = [line for line in changed if line.startswith("+ ")]
    assert any("Trainer(" in line and "Private" in line for line in added)
    assert 3 <= len(added) <= 6, added
