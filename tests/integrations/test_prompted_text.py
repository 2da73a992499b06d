"""Texts inside a prompt: token rows, the state at the last token, the cache, and a run from a config."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from quietgrad.integrations import prompted_text
from quietgrad.integrations.prompted_text import PromptEncoder, PromptTokens, model_of
from quietgrad.lab.cli.app import app
from tests.integrations.tiny_text import llama
from tests.integrations.tokens import tokenizer

TEMPLATE, LENGTH = "w1 {} w2 w3", 10
TEXTS = [f"w{k % 7} w{k % 5} w{k % 3 + 4}" for k in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("llama")
    llama(num_hidden_layers=2).save_pretrained(made)  # type: ignore[operator]
    tokenizer().save_pretrained(made)
    return made


def rows_of(folder: Path, texts: list[str], length: int = LENGTH) -> torch.Tensor:
    return torch.from_numpy(PromptTokens(f"prompt:{folder}", TEMPLATE, length).encode(texts))


def test_the_prompt_stays_whole_and_the_text_is_cut(folder: Path) -> None:
    short, long = rows_of(folder, ["w4", " ".join(["w5"] * 30)])
    words = tokenizer().convert_ids_to_tokens
    assert words(short[short != 0].tolist()) == ["w1", "w4", "w2", "w3"]
    assert words(long.tolist()) == ["w1", *["w5"] * 7, "w2", "w3"]


def test_features_are_the_state_at_the_last_token_of_each_prompt_alone(folder: Path) -> None:
    ids = rows_of(folder, TEXTS[:6])
    model = llama(num_hidden_layers=2).eval()
    for layer in (None, 1):
        features = PromptEncoder(f"prompt:{folder}" + ("" if layer is None else f"@{layer}"), 0)(ids)
        for row, found in zip(ids, features, strict=True):
            alone = row[row != 0][None]
            out = model.base_model(input_ids=alone, output_hidden_states=True)  # type: ignore[operator]
            wanted = out.last_hidden_state if layer is None else out.hidden_states[layer]
            torch.testing.assert_close(found, wanted[0, -1], rtol=1e-4, atol=1e-5)


def test_half_precision_rounds_the_states_and_each_row_follows_its_own_text(folder: Path) -> None:
    ids = rows_of(folder, TEXTS)
    exact = PromptEncoder(f"prompt:{folder}", 0)(ids)
    half = PromptEncoder(f"prompt:{folder}", 0, dtype=torch.bfloat16)
    found = half(ids)
    assert found.dtype == torch.float32
    assert not torch.equal(found, exact)
    torch.testing.assert_close(found, exact, rtol=0.05, atol=0.05)
    other = ids.clone()
    other[1:] = other[1:].flip(0)
    assert torch.equal(half(other)[0], found[0])


def test_features_are_kept_for_the_same_model_layer_and_texts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = rows_of(folder, TEXTS)
    first = PromptEncoder(f"prompt:{folder}", 0, tmp_path)(ids)
    (file,) = tmp_path.iterdir()
    again = PromptEncoder(f"prompt:{folder}", 0, tmp_path)
    monkeypatch.setattr(again, "_states", lambda _: pytest.fail("computed twice"))
    assert torch.equal(again(ids), first)
    PromptEncoder(f"prompt:{folder}@1", 0, tmp_path)(ids)
    assert len(list(tmp_path.iterdir())) == 2, "another layer is another file"
    PromptEncoder(f"prompt:{folder}", 0, tmp_path, dtype=torch.bfloat16)(ids)
    assert len(list(tmp_path.iterdir())) == 3, "another precision is another file"
    file.write_bytes(file.read_bytes()[:100])
    assert torch.equal(PromptEncoder(f"prompt:{folder}", 0, tmp_path)(ids), first), (
        "a broken file is made again"
    )


def test_wrong_prompts_and_names_are_refused(folder: Path) -> None:
    for template in ("no gap", "{} and {}", "ends with {}"):
        with pytest.raises(ValueError, match=r"data\.prompt"):
            PromptTokens(f"prompt:{folder}", template, LENGTH)
    with pytest.raises(ValueError, match="no room"):
        PromptTokens(f"prompt:{folder}", TEMPLATE, 3)
    with pytest.raises(ValueError, match="whole number"):
        model_of("prompt:smollm2@last")
    assert model_of("prompt:smollm2@24") == ("smollm2", 24)


def test_a_config_trains_a_head_on_prompted_texts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quietgrad.lab.run.task.cache_folder", lambda: tmp_path / "cache")
    table = tmp_path / "mails.csv"
    table.write_text("text,label\n" + "".join(f"{text},{k % 2}\n" for k, text in enumerate(TEXTS)))
    config = tmp_path / "own.toml"
    config.write_text(
        f"[data]\nname = '{table}'\ntext = 'text'\ntest = 4\nfeatures = 'prompt:{folder}'\ntokens = 12\n"
        f"prompt = '{TEMPLATE}'\n[model]\nname = 'linear'\n[method]\nname = 'dp_sgd'\n"
        "[privacy]\nepsilon = 8.0\ndelta = 1e-3\n[training]\nepochs = 2\nbatch = 16\n"
    )
    done = CliRunner().invoke(app, ["train", str(config), "--out", str(tmp_path / "run"), "--json"])
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "cache").iterdir())) == 1
    config.write_text(config.read_text().replace(f"prompt = '{TEMPLATE}'\n", ""))
    refused = CliRunner().invoke(app, ["train", str(config), "--out", str(tmp_path / "other")])
    assert refused.exit_code == 2
    assert "needs data.prompt" in refused.output


def test_the_last_other_number_ends_a_prompt_whatever_the_template_ends_with() -> None:
    assert prompted_text.padding_of([4, 7]) == 0
    assert prompted_text.padding_of([4, 0]) == 1
