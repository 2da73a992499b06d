"""What an installation gives: a command with or without the lab's packages, a version, the configs and the data."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

import quietgrad
from quietgrad.lab.cli.app import app
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.shipped_configs import grouped_configs, shipped_configs

runner = CliRunner()
ROOT = Path(__file__).parents[2]

WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
import quietgrad
from quietgrad.__main__ import main
sys.argv = ["quietgrad", "verify", "nowhere"]
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("package", ["typer", "pydantic", "tomli_w"])
def test_without_an_extra_package_the_command_says_what_to_install(package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(package=package)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert package in done.stderr
    assert "pip install 'quietgrad[lab]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quietgrad", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"quietgrad {quietgrad.__version__}"


def test_the_version_is_written_once() -> None:
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()
    assert 'version = { attr = "quietgrad.__version__" }' in (ROOT / "pyproject.toml").read_text()


def test_every_shipped_config_is_listed_with_a_title_and_can_be_loaded_by_name() -> None:
    listed = json.loads(runner.invoke(app, ["configs", "--json"]).stdout)
    assert listed == shipped_configs()
    assert len(listed) > 10
    assert all(listed.values())
    for name in listed:
        assert load_config(Path(name)) == load_config(ROOT / "configs" / f"{name}.toml")


def test_the_listing_is_grouped_and_complete() -> None:
    groups = grouped_configs()
    assert [name for group in groups.values() for name in group] == sorted(
        shipped_configs(), key=lambda name: [name in group for group in groups.values()].index(True)
    )
    assert "federated_embedded_eps4" in groups["Embedded data: run at once"]
    assert list(groups["Others"]) == [
        "compare_fashion_mnist",
        "dp_sgd_cifar10_views_eps8",
        "warm_start_fashion_mnist_eps1",
    ]
    assert "Private linear probe" in runner.invoke(app, ["configs"]).output


def test_a_config_is_copied_once(tmp_path: Path) -> None:
    done = runner.invoke(app, ["configs", "dp_sgd_embedded_eps2", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    copy = tmp_path / "dp_sgd_embedded_eps2.toml"
    assert copy.read_text() == (ROOT / "configs" / copy.name).read_text()
    again = runner.invoke(app, ["configs", "dp_sgd_embedded_eps2", "--out", str(tmp_path)])
    assert again.exit_code == 2
    assert "there already" in again.stderr


def test_a_misspelt_config_gets_the_nearest_name() -> None:
    done = runner.invoke(app, ["configs", "dp_sgd_embeded_eps2"])
    assert done.exit_code == 2
    assert "did you mean 'dp_sgd_embedded_eps2'" in done.stderr


@pytest.mark.slow
def test_the_wheel_holds_configs_and_data(tmp_path: Path) -> None:
    source = tmp_path / "source"  # a copy, as the build leaves its own files beside what it builds
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(tmp_path),
    ]
    done = subprocess.run([*build, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"quietgrad-{quietgrad.__version__}-")
    held = zipfile.ZipFile(wheel).namelist()
    for name in shipped_configs():
        assert f"quietgrad/lab/configs/{name}.toml" in held
    assert {
        "quietgrad/py.typed",
        "quietgrad/__main__.py",
        "quietgrad/lab/data/embedded/fashion_mnist.npz",
        "quietgrad/lab/data/embedded/CREDITS.txt",
        "quietgrad/lab/run/presets.toml",
        "quietgrad/lab/run/statement/privacy.schema.json",
    } <= set(held)
    assert not [name for name in held if name.startswith(("tests", "benchmarks"))]
