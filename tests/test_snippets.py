"""Every Python snippet of every page runs as it stands, one after the other, and says what its comments say."""

from __future__ import annotations

import ast
import importlib
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._capture.registry import ADAPTERS
from tests.pages import PAGES, WITH_EXAMPLES, elsewhere, snippets, title
from tests.test_site import INTEGRATIONS

PUBLIC_PACKAGES = {
    "quietgrad.federated",
    "quietgrad",
    "quietgrad.accounting",
    "quietgrad.audit",
    "quietgrad.schedules",
    "quietgrad.sklearn",
    "quietgrad.tables",
    "quietgrad.lab.data",
    "quietgrad.lab.models",
}
INSIDE = "# inside the package"
"""How a snippet for contributors begins, which may import what is not public."""
WITH_PYTHON = [page for page in PAGES if snippets(page)]
RUN_HERE = [page for page in WITH_PYTHON if page.name != "README.md" and page not in WITH_EXAMPLES]


class Scale(nn.Module):
    """y = w ⊙ x: the layer for which extending.md writes an adapter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


def world() -> dict[str, Any]:
    """What the pages take for granted: a reader's data, model and choice of method."""
    x = torch.randn(600, 8)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    batches = qg.PoissonBatches(data, rate=1 / 60, steps=100)

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    return {
        "__name__": __name__,
        "qg": qg,
        "torch": torch,
        "train_set": data,
        "model": nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)),
        "losses": losses,
        "batches": batches,
        "mechanism": qg.methods.dp_sgd(clip=1.0).with_noise(1.0),
        "Scale": Scale,
    }


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder, the surroundings that torchrun gives to a group of one, adapters that are taken back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "ledger.jsonl"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in group.items():
        monkeypatch.setenv(name, value)
    adapters = dict(ADAPTERS)
    yield
    ADAPTERS.clear()
    ADAPTERS.update(adapters)
    if dist.is_initialized():
        dist.destroy_process_group()


def run_snippet(text: str, names: dict[str, Any]) -> None:
    """Execute, and compare every `expression  # number` with the number, to the digits that are written.

    Nothing is inherited from this file: its postponed annotations would change what a page's classes mean.
    """
    if "dist" in names and not dist.is_initialized():
        dist.init_process_group("gloo")
    lines = text.splitlines()
    for statement in ast.parse(text).body:
        claim = re.search(r"#\s*([\d.]+)$", lines[(statement.end_lineno or 1) - 1])
        if isinstance(statement, ast.Expr) and claim:
            found = eval(
                compile(ast.Expression(statement.value), "<snippet>", "eval", dont_inherit=True), names
            )
            digits = len(claim[1].partition(".")[2])
            assert found == pytest.approx(float(claim[1]), abs=0.6 * 10**-digits), lines[statement.lineno - 1]
        else:
            exec(compile(ast.Module([statement], []), "<snippet>", "exec", dont_inherit=True), names)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("page", RUN_HERE, ids=title)
def test_the_snippets_of_a_page_run(page: Path) -> None:
    names = world()
    for text in snippets(page):
        run_snippet(text, names)


def test_only_the_page_for_contributors_looks_inside() -> None:
    inside = [
        title(page) for page in WITH_PYTHON for text in [*snippets(page), *elsewhere(page)] if INSIDE in text
    ]
    assert inside == ["docs/extending.md"]


def test_the_pages_with_code_are_found() -> None:
    assert {"README.md", "docs/extending.md", "docs/accounting.md"} <= {title(page) for page in WITH_PYTHON}


def test_a_wrong_number_in_a_comment_is_seen() -> None:
    run_snippet("1 + 0.25  # 1.2", {})
    with pytest.raises(AssertionError):
        run_snippet("1 + 0.25  # 1.4", {})


def imported(text: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    return {name for name in found if name.split(".")[0] == "quietgrad"}


@pytest.mark.parametrize("page", WITH_PYTHON, ids=title)
def test_snippets_use_public_names(page: Path) -> None:
    allowed = {"quietgrad"} if page.name == "extending.md" else PUBLIC_PACKAGES
    if page.name == "integrations.md":
        allowed = {f"quietgrad.integrations.{package}" for package in INTEGRATIONS}
    for text in [*snippets(page), *elsewhere(page)]:
        if text.startswith(INSIDE):
            continue
        assert imported(text) <= allowed
        assert not re.search(r"\b(qg|quietgrad)(\.\w+)*\._", text)


def test_public_packages_say_what_is_public() -> None:
    for name in PUBLIC_PACKAGES:
        assert importlib.import_module(name).__all__


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text()):
        assert (page.parent / target).exists(), target
