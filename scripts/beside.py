"""Run tests whose packages cannot be installed beside constraints.txt, each in an environment of its own.

    python -m scripts.beside

An environment sees everything that .venv has, and its own packages first: a few megabytes instead of a second torch.
What cannot be installed, as without a package index, is named as not run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(sys.prefix) / "beside"


@dataclass(frozen=True)
class Environment:
    """What `pip install` is given, and the tests that need it."""

    name: str
    install: tuple[str, ...]
    tests: tuple[str, ...]


ENVIRONMENTS = (
    Environment(  # pins typer and rich below constraints.txt
        "flower",
        ("flwr>=1.30,<1.33",),  # as the extra: 1.41 wants a task identity that only its own processes set
        ("tests/integrations/test_flower.py", "tests/integrations/test_flower_secure.py"),
    ),
    Environment(  # what it requires is in .venv
        "opacus",
        ("-c", "constraints.txt", "--no-deps", "opacus"),
        ("tests/accounting/test_opacus_agrees.py",),
    ),
)


def python_of(environment: Environment) -> Path:
    return FOLDER / environment.name / "bin" / "python"


def make(environment: Environment) -> bool:
    """Make the environment if it is not there; whether its package could be installed."""
    folder = FOLDER / environment.name
    done = folder / ".installed"
    if not done.exists():
        venv.create(folder, with_pip=True)
        inside = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
        # addsitedir and not the path alone: the editable quietgrad is found by a .pth file in there.
        (inside / "around.pth").write_text(
            f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        )
        pip = [str(python_of(environment)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*pip, *environment.install]).returncode == 0:
            done.touch()
    return done.exists()


def run(environment: Environment) -> int:
    """Run the environment's tests; 0 if they passed or could not be run."""
    if not make(environment):
        print(f"not run: {', '.join(environment.tests)}: pip could not install {environment.install[-1]}")
        return 0
    options = {**os.environ, "QUIETGRAD_ANNOTATIONS": "0"}
    return subprocess.run(
        [python_of(environment), "-m", "pytest", *environment.tests], env=options
    ).returncode


if __name__ == "__main__":
    sys.exit(max([run(environment) for environment in ENVIRONMENTS]))
