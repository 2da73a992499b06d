"""`quietgrad` and `python -m quietgrad`: the command line, or what to install for it."""

from __future__ import annotations

import sys
import warnings
from typing import Any


def main() -> None:
    """Run the command line; without its packages say how to get them."""
    warnings.showwarning = _print_warning  # in the process of a command only
    try:
        from quietgrad.lab.cli.app import app

        app(prog_name="quietgrad")  # commands import what they work with when they are called
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "quietgrad":
            raise
        sys.exit(
            f"The command line needs the package {error.name}, which the core does without. "
            "Install it: pip install 'quietgrad[lab]'. The Python API (import quietgrad) works as it is."
        )


def _print_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any
) -> None:
    """Print what users are told as one line, without the place in the code; other warnings as Python does."""
    if issubclass(category, UserWarning):
        print(f"Warning: {' '.join(str(message).split())}", file=sys.stderr)
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))


if __name__ == "__main__":
    main()
