"""The folder of one run: config, ledger, checkpoint, curve, results; a crash leaves each of them whole."""

from __future__ import annotations

import hashlib
import io
import platform
import secrets
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import tomli_w
import torch

from quietgrad import __version__
from quietgrad.lab.errors import LabError
from quietgrad.lab.files import make_folder, read_json, to_json, write_whole
from quietgrad.lab.run.about import facts_at_start
from quietgrad.lab.run.config import Config, load_config
from quietgrad.lab.run.own_methods import source_hash

STARTED = ("run.json", "versions.json", "split.json")
"""What `start` writes before the config."""

PACKAGES = ("torch", "numpy", "scipy", "dp-accounting")


CHECKSUM = b"\nsha256:"
"""Between the content of a file and its checksum, at its end: torch.load does not mind what follows an archive."""


class RunFolder:
    """Where a run keeps what it knows.

    Args:
        path: the folder; `start` makes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def exists(self) -> bool:
        return (self.path / "config.toml").exists()

    @property
    def finished(self) -> bool:
        return (self.path / "results.json").exists()

    @property
    def config(self) -> Config:
        if not self.exists:
            raise LabError(
                f"{self.path} is not a run: it has no config.toml, which is written before anything is released. Make "
                "one: quietgrad train --out, without --resume."
            )
        return load_config(self.path / "config.toml")

    def start(self, config: Config, split: Mapping[str, Any]) -> None:
        """Make the folder; one that holds anything of another run is left alone.

        The config comes last, since a folder that has one is resumed: all that a resumed run reads must be there.
        """
        if self.exists or self.ledger.exists() or self.finished:
            raise LabError(
                f"{self.path} holds a run already. Give another --out, or --resume to go on with it."
            )
        make_folder(self.path)
        facts = facts_at_start(config.data.name) | {"method_source": source_hash(config.method.name)}
        self.write("run.json", to_json({"id": secrets.token_hex(16), **facts}))
        self.write("versions.json", to_json(versions()))
        self.write("split.json", to_json(dict(split)))
        self.write("config.toml", tomli_w.dumps(config.plain()))

    def resume(self, config: Config) -> None:
        """Check that the folder holds this very run, and all of it, before anything is spent."""
        if self.config != config:
            raise LabError(
                f"{self.path} was made with another config. Resume with {self.path / 'config.toml'}, "
                "or give another --out."
            )
        missing = [name for name in STARTED if not (self.path / name).exists()]
        if missing:
            raise LabError(
                f"{self.path} has no {missing[0]}, without which it cannot finish. Put it back, or start anew with "
                "another --out."
            )

    def save_weights(self, weights: Mapping[str, Any]) -> None:
        """Keep the model, as a file that torch.load reads."""
        write_whole(self.path / "model.pt", _packed(weights))

    def finish(self, results: Mapping[str, Any]) -> None:
        """Keep the results, last of all: a folder that has them is complete."""
        self.write("results.json", to_json(dict(results)))

    @property
    def identity(self) -> str:
        """Tells this run from others of the same config, whose ledgers begin alike."""
        return str(self.read("run.json")["id"])

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Weights and plain data only."""
        self.save("checkpoint.pt", {**state, "run": self.identity})

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Return the last checkpoint, None if the run did not get that far."""
        state = self.load("checkpoint.pt")
        if state is not None and state.get("run") != self.identity:
            raise LabError(
                f"{self.path / 'checkpoint.pt'} is the checkpoint of another run. Put back the one of this run, or "
                "start anew with another --out."
            )
        return state

    def read(self, name: str) -> Any:
        """Return a JSON file of a finished run."""
        if not (self.path / name).exists():
            raise LabError(
                f"{self.path} has no {name}: the run did not finish. Go on with quietgrad train --resume."
            )
        return read_json(self.path / name)

    def write(self, name: str, content: str) -> None:
        write_whole(self.path / name, content.encode())

    def load(self, name: str) -> dict[str, Any] | None:
        """Return what `save` kept, None if nothing. Never runs pickled code.

        Raises:
            LabError: the file is damaged, be it by a single bit.
        """
        file = self.path / name
        if not file.exists():
            return None
        content, mark, checksum = file.read_bytes().rpartition(CHECKSUM)
        if not mark:  # finished weights, which any program may load, and whatever 0.2 wrote
            content = checksum
        elif hashlib.sha256(content).hexdigest().encode() != checksum:
            raise LabError(
                f"{file} is damaged: its checksum is another. Put it back from a backup, or start a new run with "
                "another --out."
            )
        try:
            state: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
        except Exception as error:
            raise LabError(
                f"{file} cannot be read ({type(error).__name__}). Start a new run with another --out."
            ) from None
        return state

    def save(self, name: str, state: Mapping[str, Any]) -> None:
        """Weights and plain data only, and a checksum: torch reads a file whose bits have changed."""
        content = _packed(state)
        checksum = hashlib.sha256(content).hexdigest().encode()
        write_whole(self.path / name, content + CHECKSUM + checksum)


def _packed(state: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()  # torch's own writer reports a full disk in words of its own
    torch.save(state, buffer)
    return buffer.getvalue()


def versions() -> dict[str, str]:
    """Return what the run was made with."""
    installed = {name: metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), "quietgrad": __version__, **installed}
