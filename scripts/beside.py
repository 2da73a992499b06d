"""Make an environment beside .venv for a package whose pins contradict constraints.txt.

    python -m scripts.beside .venv/beside/flower

It sees everything that .venv has, and its own packages first: a few megabytes instead of a second torch.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ARGUMENTS = {
    "flower": ["flwr>=1.30"],  # pins typer and rich below constraints.txt
    "opacus": ["-c", "constraints.txt", "--no-deps", "opacus"],  # its requirements are in .venv
}
"""What `pip install` is given, by the name of the environment."""


def make(folder: Path) -> None:
    """Make the environment and install its own package."""
    venv.create(folder, with_pip=True)
    inside = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    # addsitedir and not the path alone: the editable quietgrad is found by a .pth file in there.
    around = sysconfig.get_path("purelib")
    (inside / "around.pth").write_text(f"import site; site.addsitedir({around!r})\n")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *ARGUMENTS[folder.name]], check=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
