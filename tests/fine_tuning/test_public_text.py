"""What the fine-tuning benchmark takes from public text, and the adapters it makes of that."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.fine_tuning import cores, public_text
from torch import nn

transformers = pytest.importorskip("transformers")

LINES = b"1_1\t2.5\tan excellent phone.\n1_2\t-0.85\tthe battery is caf\xe9-sized.\n"


def _archive(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package as vaderSentiment's is laid out; its film reviews are no text at all."""
    files = {f"hutto_ICWSM_2014/{file}_GroundTruth.txt": LINES for file in public_text.DOMAINS.values()}
    files["hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"] = b"never to be opened"
    lexicon = b":-)\t1.3\t0.5\t[1, 2]\nawful\t-2.0\t0.8\t[-2, -2]\n"
    whole = _archive({public_text.INNER: _archive(files), public_text.LEXICON: lexicon})
    (tmp_path / f"{public_text.PACKAGE}.tar.gz").write_bytes(whole)
    return tmp_path


def test_ratings_are_read_from_the_three_domains_and_never_from_film_reviews(package: Path) -> None:
    found = public_text.rated_sentences(package)
    assert set(found) == {"reviews", "tweets", "editorials"}
    assert found["tweets"][0] == ("an excellent phone.", 2.5)
    assert public_text.rated_words(package) == [("awful", -2.0)]


def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="pip download"):
        public_text.rated_sentences(tmp_path)


def test_overlap_is_found_without_case_and_punctuation() -> None:
    assert public_text.also_in(["Poor quality!", "new"], ["poor quality", "old"]) == ["Poor quality!"]


def test_texts_that_hold_eight_words_of_another_are_found() -> None:
    quoted = "He said: one two three, four five six seven EIGHT."
    assert public_text.with_runs_of(
        [quoted, "one two three four five six seven"], ["zero one two three four five six seven eight"]
    ) == [quoted]


@pytest.fixture
def encoder() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=cores.LAYERS,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=8,
    )
    return transformers.BertModel(config, add_pooling_layer=False).eval()


IDS = torch.tensor([[3, 4, 5, 0], [6, 7, 8, 9], [9, 2, 0, 0], [1, 2, 3, 4]])


def _score(encoder: Any, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    real = ids.ne(0)
    hidden = encoder(ids, real.long()).last_hidden_state
    return F.normalize((hidden * real[:, :, None]).sum(1)) @ weights


def test_moments_are_those_of_a_loop_over_single_gradients(encoder: Any) -> None:
    weights = torch.randn(8)
    matrix = encoder.get_submodule(f"encoder.layer.2.{cores.MATRICES[2]}")
    gradients = [torch.autograd.grad(_score(encoder, weights, row[None])[0], matrix.weight)[0] for row in IDS]
    found = cores.moments(encoder, {"m": matrix}, weights, IDS)
    torch.testing.assert_close(found["m.left"], sum(g @ g.T for g in gradients), rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(found["m.right"], sum(g.T @ g for g in gradients), rtol=1e-3, atol=1e-6)


def test_cores_change_nothing_at_first_and_train_alone(encoder: Any) -> None:
    weights = torch.randn(8)
    before = _score(encoder, weights, IDS)
    sides = cores.sides(encoder, weights, IDS)
    cores.adapt(encoder.encoder.layer, sides, rank=3)
    torch.testing.assert_close(_score(encoder, weights, IDS), before)
    trained = [p for p in encoder.encoder.layer.parameters() if p.requires_grad]
    assert [p.shape for p in trained] == [(3, 3)] * (cores.LAYERS * len(cores.MATRICES))
    assert all(isinstance(p, nn.Parameter) for p in trained)


def test_turned_cores_keep_what_was_learned_and_look_where_gradients_lie_now(encoder: Any) -> None:
    weights = torch.randn(8)
    cores.adapt(encoder.encoder.layer, cores.sides(encoder, weights, IDS), rank=3)
    first = encoder.get_submodule(f"encoder.layer.0.{cores.MATRICES[0]}")
    old = first.left.clone()
    for parameter in encoder.encoder.layer.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter)
    before, expected = _score(encoder, weights, IDS), cores.sides(encoder, weights, IDS)
    turned = cores.renew(encoder, weights, IDS)
    torch.testing.assert_close(_score(encoder, weights, IDS), before)
    assert len(turned) == cores.LAYERS * len(cores.MATRICES)
    assert all(not core.any() and core.requires_grad for core in turned)
    assert torch.equal(first.left, expected[f"0.{cores.MATRICES[0]}.left"][:, :3])
    assert torch.equal(first.right, expected[f"0.{cores.MATRICES[0]}.right"][:3])
    assert not torch.allclose(first.left, old, atol=0.1)
