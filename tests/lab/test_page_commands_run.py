"""Every `quietgrad` command of the user pages runs, in a quick form: fewer records, steps, seeds and tries.

The files that a page takes for granted are made as the page says: its own TOML blocks, tables of `examples/`. Papers'
entries are only looked up, since each takes minutes to days; `tests/papers` runs their experiments.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from quietgrad.lab.cli.app import app
from quietgrad.lab.papers.finding import SCALES
from quietgrad.lab.papers.queue import items_of
from quietgrad.lab.papers.registry import experiment_of
from tests.lab.test_data_idx import FASHION_FIRST, idx_bytes
from tests.lab.test_own_text import folder as bert_folder
from tests.lab.test_own_text import table
from tests.lab.test_page_commands import WITH_CONFIG, WRITTEN
from tests.lab.tiny import write_config
from tests.pages import ROOT, blocks
from tests.tables.test_patients_example import make_patients

__all__ = ["bert_folder"]  # a fixture

PLACES = {"CONFIG": "own.toml", "FILE": "patients.csv", "RUN": "runs/first", "DATA": "data", "cuda": "cpu"}
"""What stands for a reader's own file, and what replaces it."""
FEW = ("data.private=500", "data.test=100")
SHORTER = {
    "dp_sgd_embedded_eps2": (*FEW, "training.epochs=0.1", "model.name=mlp"),  # with a matrix that RGP shrinks
    "federated_embedded_eps4": (*FEW, "training.epochs=0.4", "federated.clients=50", "training.batch=10"),
    "quiet_embedded_eps2": ("data.private=1500", "data.test=200"),
    "compare_fashion_mnist": ("data.public=20", "training.epochs=0.2", "training.batch=60"),
    "own": ("training.epochs=0.5",),
    "pictures": ("data.test=20", "privacy.delta=1e-3"),
}
"""Config: what makes a run of it take seconds."""
AT_ONCE = {"--help", "budget", "configs", "data", "columns", "papers"}
"""Commands that train nothing and need no finished run."""
LOOKED_UP = {"CHANGELOG.md", "docs/notes", "docs/commands.md"}
"""Pages of the past, and the page of usages: their commands exist, as test_page_commands.py says, and are not run."""


def is_run(written: str) -> bool:
    """Commands with their arguments; names of commands inside sentences are none."""
    words = WRITTEN[written]
    return words == ["--help"] or (
        not written.startswith(tuple(LOOKED_UP))
        and not words[0].startswith("-")
        and (len(words) > 1 or words[0] in ("papers", "data", "configs"))
        and words[1:2] != ["--device"]
    )


RUN = sorted(filter(is_run, WRITTEN))


def quick(written: str) -> list[str]:
    """The command with its placeholders replaced, and made short."""
    name, *rest = [PLACES.get(word, word) for word in WRITTEN[written]]
    if name == "columns":  # it writes a config that is not there yet
        rest = ["patients.toml" if word == "own.toml" else word for word in rest]
    if name == "federated":
        rest[0] = "federated_embedded_eps4"
    if name == "tune":
        rest[0] = "dp_sgd_embedded_eps2"
    more: list[str] = []
    if name in WITH_CONFIG:
        stem = Path(rest[0]).stem
        more = [word for change in SHORTER.get(stem, ()) for word in ("--set", change)]
    if stated(written, "patients.toml"):
        more = ["--set", "data.test=300"] if name in WITH_CONFIG else []
    if written.startswith("docs/quickstart") and name in WITH_CONFIG and rest[0] == "patients.toml":
        more += ["--set", "training.epochs=0.2"]
    if name == "compare":
        more += ["--seeds", "1", "--epsilons", "2"]
    if name == "tune":
        more += ["--tries", "2", "--set", "data.public_labels=true"]
    if name == "audit":
        more += ["--canaries", "60"]
    return [name, *rest, *more]


def stated(written: str, file: str) -> bool:
    return file in WRITTEN[written][1:2]


def own_block(page: str, language: str) -> str:
    """The first block of a page in that language."""
    return next(text for kind, text in blocks(ROOT / page) if kind == language)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A reader's folder: configs, small data, and nothing finished yet."""
    folder = tmp_path_factory.mktemp("house")
    (folder / "configs").symlink_to(ROOT / "configs")
    write_config(folder)
    make_patients(folder, 1200)
    make_patients(folder, 50, seed=1, name="new.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def runs(house: Path) -> Path:
    """The same with a finished run, a table's run and a comparison, under the names that pages use."""
    call("train", "own.toml", "--set", "training.epochs=0.5", "--out", "runs/first")
    for name in ("mine", "two"):
        shutil.copytree("runs/first", f"runs/{name}")
    shutil.copy(ROOT / "examples" / "patients.toml", "table.toml")
    call("train", "table.toml", "--set", "data.test=300", "--out", "runs/patients")
    board = ("--methods", "dp_sgd", "--seeds", "1", "--epsilons", "2", "--private-only", "--out", "runs/demo")
    call("compare", "own.toml", "--set", "training.epochs=0.2", *board)
    write_fashion(house / "data")
    numbers = np.random.default_rng(0)
    np.savez("patients.npz", x=numbers.random((900, 8), np.float32), y=numbers.integers(0, 2, 900))
    Path("my_module.py").write_text(
        next(text for kind, text in blocks(ROOT / "docs" / "extending.md") if text.startswith("# method"))
    )
    return house


def write_fashion(folder: Path) -> None:
    """Fashion-MNIST's files with 400 and 50 made-up images."""
    folder.mkdir()
    numbers = np.random.default_rng(0)
    for split, size in (("train", 400), ("t10k", 50)):
        labels = numbers.integers(0, 10, size)
        if split == "train":
            labels[: len(FASHION_FIRST)] = FASHION_FIRST
        images = numbers.integers(0, 256, (size, 28, 28))
        (folder / f"{split}-images-idx3-ubyte").write_bytes(idx_bytes(images))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))


def make_pictures(folder: Path) -> None:
    """Two classes of 60 small grey pictures, and new ones as an array."""
    numbers = np.random.default_rng(0)
    for name, grey in (("cat", 60), ("dog", 180)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(60):
            pixels = numbers.normal(grey, 30, (16, 16)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    np.savez("new.npz", x=numbers.integers(0, 256, (5, 1, 16, 16), dtype=np.uint8))


def call(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def prepare(written: str) -> None:
    """What the page has a reader do before this command."""
    page = written.partition(":")[0]
    if stated(written, "patients.toml"):
        Path("patients.toml").write_text(own_block(page, "toml"))
    if written.startswith("docs/fine_tuning"):
        Path("texts.toml").write_text(own_block("docs/fine_tuning.md", "toml"))
        table(Path(), "csv")
    if "pictures" in written:
        make_pictures(Path("pictures"))
        Path("pictures.toml").write_text(own_block("docs/images.md", "toml"))
    if "runs/pictures" in written and not Path("runs/pictures").exists():
        call("train", "pictures.toml", "--set", "data.test=20", "--set", "privacy.delta=1e-3")
    if "runs/federated/" in written and not Path("runs/federated/federated_embedded_eps4").exists():
        call(*quick("docs/federated.md: federated federated_embedded_eps4"))
    if stated(written, "tune/config.toml"):
        Path("tune").mkdir(exist_ok=True)
        shutil.copy("own.toml", "tune/config.toml")


def look_up(words: list[str]) -> None:
    """Entries of the papers: known, with an experiment at the scale that the page names."""
    paper, *entries = [word for word in words[1:] if word not in SCALES]
    scale = words[words.index("--scale") + 1]
    assert scale in SCALES
    if paper == "queue":
        assert items_of((), scale)
        return
    experiment = experiment_of(paper, entries[0])
    assert experiment is not None
    assert scale in experiment.scales
    call("papers", paper, entries[0])


@pytest.mark.usefixtures("house")
@pytest.mark.parametrize("written", [w for w in RUN if WRITTEN[w][0] in AT_ONCE])
def test_a_command_that_trains_nothing_runs(written: str) -> None:
    words = quick(written)
    if "--scale" in words:
        look_up(words)
    else:
        Path("patients.toml").unlink(missing_ok=True)
        call(*words)


@pytest.mark.slow
@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("written", [w for w in RUN if WRITTEN[w][0] not in AT_ONCE])
def test_a_command_runs_in_its_quick_form(bert_folder: Path, written: str) -> None:
    prepare(written)
    words = quick(written)
    if written.startswith("docs/fine_tuning"):  # a tiny encoder in the place of the packaged one
        words = ["train", "texts.toml", *words[2:4], "--set", f"data.features=hf:{bert_folder}"]
        words += ["--set", "data.tokens=16"]
        words += ["--set", "data.test=10", "--set", "privacy.delta=1e-3"]
    if words[0] in WITH_CONFIG - {"explain"} and "--out" not in words:
        words += ["--out", f"out/{len(list(Path('out').glob('*'))) if Path('out').exists() else 0}"]
    call(*words)


def test_every_command_of_a_user_page_is_run() -> None:
    """What is left out are names of commands inside sentences, and options on their own."""
    left = [key for key in WRITTEN if key not in RUN and not key.startswith(tuple(LOOKED_UP))]
    assert all(len(WRITTEN[key]) == 1 or WRITTEN[key][1] == "--device" for key in left), left
    assert len(RUN) > 60
