"""`make dist`: builds wheel and sdist, checks them, and tries the wheel as a stranger would, without the repository.

In an empty environment: the core alone says what the command line needs; with scikit-learn the README's example runs as
it stands; with the lab's packages the command line trains 20 steps, writes a report and verifies the run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]

TRAIN = [
    "train",
    "dp_sgd_embedded_eps2",
    "--set",
    "training.batch=600",
    "--set",
    "training.epochs=1",
    "--out",
    "run",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build-only", action="store_true", help="Build and check, install nothing.")
    args = parser.parse_args()
    wheel = build()
    if args.build_only:
        return
    with tempfile.TemporaryDirectory() as folder:
        try_wheel(wheel, Path(folder))
    print(f"{wheel.name}: built, checked, and tried in an empty environment.")


def build() -> Path:
    """Wheel and sdist in dist/, with metadata that the package index accepts."""
    for name in ("dist", "build"):
        shutil.rmtree(ROOT / name, ignore_errors=True)
    run(sys.executable, "-m", "build", str(ROOT))
    made = sorted(map(str, (ROOT / "dist").iterdir()))
    run(sys.executable, "-m", "twine", "check", "--strict", *made)
    (wheel,) = (ROOT / "dist").glob("*.whl")
    return wheel


def try_wheel(wheel: Path, folder: Path) -> None:
    """The core alone first, then with the lab."""
    venv.create(folder / "venv", with_pip=True)
    python, command = folder / "venv/bin/python", folder / "venv/bin/quietgrad"
    install = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt"]
    run(*install, wheel, cwd=folder)
    without = subprocess.run([command], cwd=folder, env=clean(), capture_output=True, text=True, check=False)
    assert without.returncode == 1, without
    assert "pip install 'quietgrad[lab]'" in without.stderr, without.stderr
    run(*install, f"{wheel}[sklearn]", cwd=folder)
    (folder / "example.py").write_text(readme_example())
    began = time.perf_counter()
    run(python, "example.py", cwd=folder)
    print(f"The README's example took {time.perf_counter() - began:.0f} s.")
    run(*install, f"{wheel}[lab]", cwd=folder)
    for arguments in (["--version"], ["--help"], ["configs"], TRAIN, ["report", "run"], ["verify", "run"]):
        run(command, *arguments, cwd=folder)


def readme_example() -> str:
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None, "the README shows an example"
    return found[1]


def run(*command: object, cwd: Path = ROOT) -> None:
    words = [str(word) for word in command]
    print("$", " ".join(words), flush=True)
    subprocess.run(words, cwd=cwd, env=clean(), check=True)


def clean() -> dict[str, str]:
    """Without what would lead back to the repository."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


if __name__ == "__main__":
    main()
