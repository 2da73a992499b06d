"""Every module has a package, every package a place in one order, and imports only ever point to earlier packages."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict

import pytest
from scripts.imports import PACKAGE, Graph, import_graph, modules, package_imports, package_of

ORDER = (
    "_errors",  # loose: what a refused guarantee raises
    "rules",  # loose: the arithmetic of privacy that users ask for
    "schedules",  # loose: a number for each step
    "accounting",
    "_kernels",
    "_gradients",
    "_collective",  # loose: what several processes say to each other
    "_noise",
    "_release",
    "_sampling",
    "_capture",
    "_representations",
    "public_losses",  # loose: public gradients from data that need no protection
    "_mechanism",
    "methods",
    "_independence",
    "_guards",
    "_privatizer",
    "_program",
    "distributed",
    "audit",
    "federated",
    "tables",
    "features",
    "_linear_probe",
    "capture",  # loose: a path of 0.2
    "gradients",  # loose: a path of 0.2
    "program",  # loose: a path of 0.2
    "_names",  # loose: the public names
    PACKAGE,
    "sklearn",
    "integrations",
    "lab",
    "__main__",  # loose: the command, which says what to install where the lab's packages are missing
)
LAB_ORDER = (
    "errors",
    "files",
    "formatting",
    "data",
    "models",
    "run",
    "serve",
    "tune",
    "compare",
    "diagnostics",
    "report",
    "papers",
    "cli",
)
OUTSIDE_THE_CORE = {
    "distributed",
    "audit",
    "federated",
    "tables",
    "features",
    "_linear_probe",
    "sklearn",
    "integrations",
    "__main__",
    "lab",
}
"""The core imports none of these, whatever their place in the order; only the public names may."""

CORE_DEPENDENCIES = {"torch", "numpy", "scipy", "dp_accounting", "jaxtyping", "cryptography"}

DEVICE_CODE = "quietgrad._kernels.triton_code."
"""Imported where the package triton is installed, and nowhere else."""

SAME_NAME_SAME_MEANING = {
    "base": "what every part of the package is",
    "loading": "from a name or path: data, and finished models",
    "records": "reading records one by one: rows of numbers, and tables",
    "registry": "which implementation goes with which key",
    "errors": "messages for the user; the lab's and those of reading data",
    "files": "reading and writing; a run's and a data set's",
    "train": "the run, and its command",
    "compare": "the comparison, and its command",
    "federated": "the federated run, and its command",
    "report": "what is shown to people: of an audit, and the command",
    "top_groups": "the mask, and the method made of it",
    "low_rank": "the representation, and its figures",
    "subspace": "the representation, and its figures",
    "comparison": "the comparison, and its page",
    "ledger": "what was released: the file of a run, and the command that adds runs up",
    "program": "the program, and the path of 0.2 to its statistics",
    "verification": "whether a claim stands: of a run, and of all runs of a comparison",
}
"""Modules may share a name only for one meaning."""


def against(order: tuple[str, ...], graph: Graph, *, of: str = PACKAGE) -> list[str]:
    """Imports from a package into a later one, and packages without a place."""
    place = {name: index for index, name in enumerate(order)}
    wrong = []
    for (here, there), pairs in sorted(package_imports(graph, of=of).items()):
        nameless = {here, there} - place.keys() - {of}
        wrong += [f"the package {name} has no place in the order" for name in sorted(nameless)]
        if place.get(here, len(order)) <= place.get(there, -1):
            wrong += [f"{importer} imports {target}" for importer, target in sorted(pairs)]
    return wrong


def circles(graph: Graph) -> list[set[str]]:
    """Groups of modules each of which reaches all others of the group by imports."""
    reach = {name: _reachable(graph, name) for name in graph}
    groups = {frozenset(b for b in reach[a] if a in reach.get(b, ())) for a in graph if a in reach[a]}
    return [set(group) for group in groups]


def _reachable(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        for name in graph.get(ahead.pop(), set()) - seen:
            seen.add(name)
            ahead.append(name)
    return seen


def packages_of(graph: Graph) -> Graph:
    joined: Graph = defaultdict(set)
    for here, there in package_imports(graph):
        joined[here].add(there)
    return joined


@pytest.fixture(scope="module")
def graph() -> Graph:
    return import_graph()


def test_imports_point_to_earlier_packages(graph: Graph) -> None:
    assert len(package_imports(graph)) > 30
    assert against(ORDER, graph) == []


def test_imports_inside_the_lab_point_to_earlier_packages(graph: Graph) -> None:
    assert len(package_imports(graph, of="quietgrad.lab")) > 10
    assert against(LAB_ORDER, graph, of="quietgrad.lab") == []


def test_no_packages_import_each_other_in_circles(graph: Graph) -> None:
    assert circles(packages_of(graph)) == []


PUBLIC_MODULES = {"public_losses", "rules", "schedules"}
DEPRECATED = {"capture", "gradients", "program"}
"""Paths of 0.2 that warn; they leave in 0.4."""

PUBLIC_PACKAGES = {
    "accounting",
    "audit",
    "distributed",
    "federated",
    "features",
    "integrations",
    "lab",  # the command line, an application on the public names
    "methods",
    "sklearn",
    "tables",
}


def test_whatever_is_not_public_begins_with_an_underscore() -> None:
    top = modules()[PACKAGE].parent
    found = {file.stem for file in top.glob("*.py")} | {
        file.parent.name for file in top.glob("*/__init__.py")
    }
    public = {name for name in found if not name.startswith("_")}
    assert public == PUBLIC_MODULES | DEPRECATED | PUBLIC_PACKAGES


def test_the_core_imports_nothing_built_upon_it(graph: Graph) -> None:
    wrong = [
        pair
        for (here, there), pairs in package_imports(graph).items()
        if there in OUTSIDE_THE_CORE and here not in OUTSIDE_THE_CORE | {"_names"}
        for pair in pairs
    ]
    assert wrong == []
    assert "lab" not in packages_of(graph)["_names"]
    assert packages_of(graph)[PACKAGE] == {"_names"}


def test_the_core_imports_only_its_dependencies(graph: Graph) -> None:
    allowed = CORE_DEPENDENCIES | set(sys.stdlib_module_names) | {PACKAGE}
    extras = {"lab", "integrations", "sklearn", "features", "tables"}
    core = {
        name: targets
        for name, targets in graph.items()
        if package_of(name) not in extras and not name.startswith(DEVICE_CODE)
    }
    assert len(core) > 100
    foreign = {name: {target.split(".")[0] for target in targets} - allowed for name, targets in core.items()}
    assert {name: found for name, found in foreign.items() if found} == {}


def test_a_module_name_has_one_meaning() -> None:
    homes = defaultdict(list)
    for name, file in modules().items():
        if file.stem != "__init__":
            homes[file.stem].append(name)
    shared = {stem for stem, names in homes.items() if len(names) > 1}
    assert shared - set(SAME_NAME_SAME_MEANING) == set()


def test_a_class_name_has_one_meaning() -> None:
    homes = defaultdict(list)
    for name, file in modules().items():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(name)
    assert len(homes) > 200
    shared = {name: found for name, found in homes.items() if len(found) > 1}
    assert shared == {}


@pytest.mark.parametrize(
    ("importer", "target"),
    [
        ("quietgrad._gradients.blocks", "quietgrad._capture.call"),
        ("quietgrad.accounting.pld", "quietgrad._mechanism.mechanism"),
        ("quietgrad._representations.mask", "quietgrad.methods"),
        ("quietgrad._privatizer.privatizer", "quietgrad.distributed.all_reduce"),
        ("quietgrad.methods.gep", "quietgrad"),
        ("quietgrad.audit.bounds", "quietgrad.lab.files"),
        ("quietgrad.methods.gep", "quietgrad.nowhere.new"),
    ],
)
def test_a_wrong_import_is_seen(graph: Graph, importer: str, target: str) -> None:
    worse = {**graph, importer: graph.get(importer, set()) | {target}}
    assert any(importer in line or "no place" in line for line in against(ORDER, worse))


def test_a_wrong_import_inside_the_lab_is_seen(graph: Graph) -> None:
    worse = {**graph, "quietgrad.lab.run.train": {"quietgrad.lab.cli.app"}}
    assert against(LAB_ORDER, worse, of="quietgrad.lab") == [
        "quietgrad.lab.run.train imports quietgrad.lab.cli.app"
    ]
