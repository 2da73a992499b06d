"""`quietgrad` and `python -m quietgrad`: the command line, or what to install for it."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; without its packages say how to get them."""
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


if __name__ == "__main__":
    main()
