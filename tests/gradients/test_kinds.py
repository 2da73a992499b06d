"""Outside the gradients a kind of block is named only where a `singledispatch` function is registered for it."""

from __future__ import annotations

import ast
from pathlib import Path

import quietgrad
import quietgrad._gradients.combined
from quietgrad._gradients.blocks import BlockGrads

ROOT = Path(quietgrad.__file__).parent


def subclasses(kind: type) -> set[str]:
    below: list[type] = kind.__subclasses__()
    return {kind.__name__}.union(*(subclasses(each) for each in below))


def questions(source: str, kinds: set[str]) -> list[int]:
    """Lines that ask for a kind: isinstance, issubclass, type(x) is Kind, match."""
    found: list[int] = []
    for node in ast.walk(ast.parse(source)):
        asked: list[ast.AST] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            asked = list(node.args[1:]) if node.func.id in ("isinstance", "issubclass") else []
        elif isinstance(node, ast.Compare):
            asked = list(node.comparators)
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        names = {name.id for part in asked for name in ast.walk(part) if isinstance(name, ast.Name)}
        found += [getattr(node, "lineno", 0)] if names & kinds else []
    return found


def test_no_module_outside_the_gradients_asks_for_a_kind() -> None:
    kinds = subclasses(BlockGrads)
    assert {"DenseGrad", "ZeroGrad", "FactoredGrad", "ConvGrad", "IndexedGrad", "TiedGrad"} <= kinds
    outside = [file for file in ROOT.rglob("*.py") if ROOT / "_gradients" not in file.parents]
    assert len(outside) > 100
    asking = {str(file.relative_to(ROOT)): questions(file.read_text(), kinds) for file in outside}
    assert not {file: lines for file, lines in asking.items() if lines}


def test_every_kind_of_question_is_seen() -> None:
    kinds = (
        "isinstance(block, DenseGrad | ZeroGrad)",
        "type(block) is DenseGrad",
        "match block:\n    case DenseGrad():\n        pass",
    )
    for kind in kinds:
        assert questions(kind, {"DenseGrad", "ZeroGrad"}), kind
    for allowed in ("made = DenseGrad(rows)", "@f.register(DenseGrad)\ndef _(block: DenseGrad) -> None: ..."):
        assert not questions(allowed, {"DenseGrad"}), allowed


def test_a_block_answers_few_questions() -> None:
    assert {name for name in vars(BlockGrads) if not name.startswith("_")} == {
        "samples",
        "shape",
        "dtype",
        "device",
        "squared_norms",
        "weighted_sum",
        "dense",
        "form",
        "scale",
        "drop_factors",
        "row_bytes",
        "fusion_key",
        "layer_inputs",
        "is_formed",
        "is_zero",
    }
