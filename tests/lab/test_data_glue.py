"""GLUE's tasks of two texts, WordPiece, and models that learn from one-word sentences."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.lab.data import load
from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.word_pieces import WordPieces
from quietgrad.lab.models import build
from quietgrad.lab.models.bert import token_types
from quietgrad.lab.run.config import parse_config
from quietgrad.lab.run.task import load_task

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "##s", "a", "is", "it"]
FILES = {
    "MNLI": ("train.tsv", "dev_matched.tsv", "index\tsentence1\tsentence2\tgold_label\n"
             "0\ta film\tit is good\tentailment\n"
             "1\tfilms\tbad\tneutral\n2\tgood\tbad\tcontradiction\n"),
    "QQP": ("train.tsv", "dev.tsv", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\tgood\tfilm\t1\n"
            "1\t3\t4\tbad\tfilms\t0\n2\tbroken line\n"),
    "QNLI": ("train.tsv", "dev.tsv", "index\tquestion\tsentence\tlabel\n0\tis it good\ta film\tentailment\n"
             "1\tbad\tfilm\tnot_entailment\n"),
}  # fmt: skip


def write(folder: Path, task: str) -> Path:
    train, test, text = FILES[task]
    (folder / task).mkdir()
    header, first, *_ = text.splitlines()
    (folder / task / train).write_text(text)
    (folder / task / test).write_text(
        f"{header}\n{first.replace('good', 'bad')}\n"
    )  # equal rows are taken out of train
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    return folder


@pytest.mark.parametrize(("task", "records", "classes"), [("MNLI", 3, 3), ("QQP", 2, 2), ("QNLI", 2, 2)])
def test_pairs_and_labels_are_read(tmp_path: Path, task: str, records: int, classes: int) -> None:
    parts = load(task.lower(), data_dir=write(tmp_path, task))
    assert (len(parts.private), len(parts.test)) == (records, 1)
    assert parts.num_classes == classes


def test_word_pieces_have_special_tokens_and_types_follow_from_them(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    words = WordPieces(write(tmp_path, "MNLI") / "vocab.txt", tokens=12)
    parts = load("mnli", data_dir=tmp_path, words=words)
    ids = parts.private.tensors[0]
    row = next(r for r in ids.tolist() if VOCABULARY.index("##s") in r)
    assert [VOCABULARY[i] for i in row[:6]] == ["[CLS]", "film", "##s", "[SEP]", "bad", "[SEP]"]
    types = token_types(torch.tensor([row]), VOCABULARY.index("[SEP]"))
    assert types[0, :8].tolist() == [0, 0, 0, 0, 1, 1, 0, 0]


def test_wrong_files_and_vocabularies_are_named(tmp_path: Path) -> None:
    write(tmp_path, "QNLI")
    (tmp_path / "QNLI" / "dev.tsv").write_text("index\tquestion\tsentence\n0\ta\tb\n")
    with pytest.raises(DataError, match="no column 'label'"):
        load("qnli", data_dir=tmp_path)
    with pytest.raises(DataError, match=r"no vocab.txt or tokenizer.json"):
        WordPieces(tmp_path / "missing")


def test_a_config_names_its_vocabulary(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    write(tmp_path, "QQP")
    config = parse_config({"data": {"name": "qqp", "tokenizer": str(tmp_path), "tokens": 9}})
    assert load_task(config, data_dir=tmp_path).input_shape == (9,)


@pytest.mark.parametrize("method", [qg.methods.dp_sgd(), qg.methods.rgp(rank=2)])
@pytest.mark.parametrize("model", ["transformer", "bert"])
def test_batches_with_one_word_sentences_are_not_refused(method: qg.Mechanism, model: str) -> None:
    """Padding attends to nothing and leaves gradients of the size of rounding, which are no mixing."""
    if model == "bert":
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    ids = torch.randint(1, 60, (48, 16))
    lengths = torch.arange(48) % 16
    ids[torch.arange(16) > lengths[:, None]] = 0  # from one word to sixteen
    data = TensorDataset(ids, torch.arange(48) % 2)
    options = {"vocabulary": 60, "width": 32, "depth": 1, "heads": 2}
    network = build(model, (16,), 2, **options)
    batches = qg.PoissonBatches(data, rate=0.25, steps=12)
    with qg.Privatizer(network, method.with_noise(1.0), batches) as private:
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
        for batch in batches:
            for x, y in batch.split(8):
                private.backward(F.cross_entropy(network(x), y, reduction="none"))
            private.release()
            optimizer.step()
        assert private.step == 12
