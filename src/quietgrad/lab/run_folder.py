"""The folder of one run: config, ledger, checkpoint, curve, results; a crash leaves each of them whole."""

from __future__ import annotations

import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from quietgrad.lab import toml
from quietgrad.lab.config import Config, load_config
from quietgrad.lab.errors import LabError

PACKAGES = ("quietgrad", "torch", "numpy", "scipy", "dp-accounting")


class RunFolder:
    """Where a run keeps what it knows.

    Args:
        path: the folder; `start` makes it, `open` reads an existing one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def config(self) -> Config:
        if not (self.path / "config.toml").exists():
            raise LabError(
                f"{self.path} is not a run: it has no config.toml. Make one with quietgrad train --out."
            )
        return load_config(self.path / "config.toml")

    def start(self, config: Config) -> None:
        """Make the folder; a folder that holds another run is left alone."""
        if (self.path / "config.toml").exists():
            raise LabError(
                f"{self.path} holds a run already. Give another --out, or --resume to go on with it."
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise LabError(f"{self.path} is a file. Give a folder with --out.") from None
        self.write("config.toml", toml.dumps(config.plain()))
        self.write_json("versions.json", versions())

    def resume(self, config: Config) -> None:
        """Check that the folder holds this very run."""
        if self.config != config:
            raise LabError(
                f"{self.path} was made with another config. Resume with {self.path / 'config.toml'}."
            )

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Weights and plain data only; replaced in one step, on disk before the old one is gone."""
        part = self.path / "checkpoint.pt.part"
        with part.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.path / "checkpoint.pt")

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint, None if the run did not get that far. Never runs pickled code."""
        file = self.path / "checkpoint.pt"
        if not file.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(file, weights_only=True)
        except Exception as error:
            raise LabError(
                f"{file} cannot be read ({type(error).__name__}). Start a new run with another --out."
            ) from None
        return state

    def write_json(self, name: str, content: Any) -> None:
        self.write(name, json.dumps(content, indent=2) + "\n")

    def read_json(self, name: str) -> Any:
        file = self.path / name
        if not file.exists():
            raise LabError(
                f"{self.path} has no {name}: the run did not finish. Go on with quietgrad train --resume."
            )
        return json.loads(file.read_text())

    def write(self, name: str, content: str) -> None:
        part = self.path / f"{name}.part"
        try:
            part.write_text(content)
        except OSError as error:
            raise LabError(
                f"Cannot write {self.path / name}: {error.strerror}. Free space or give another --out."
            ) from None
        part.replace(self.path / name)


def versions() -> dict[str, str]:
    """What the run was made with."""
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}}
