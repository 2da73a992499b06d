"""Who made a run, when, for what and on which file: for the register that an officer keeps."""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from quietgrad.accounting.chain import key_from_environment

PURPOSE_OF_HASH = b"quietgrad data file"
"""Separates these hashes from those of ledgers under the same key."""


class AboutConfig(BaseModel):
    """Facts for the report and the statement; they do not change the run."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    who: str = Field("", description="Who is responsible for the run.")
    purpose: str = Field("", description="What the model is for.")
    data_owner: str = Field("", description="Who owns the data, or decides about them.")


def facts_at_start(data_name: str) -> dict[str, Any]:
    """Return when a run began, and which data file it read as a hash under the ledger's key."""
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"started": began, "data_hash": keyed_hash(Path(data_name), key_from_environment())}


def keyed_hash(file: Path, key: bytes | None) -> str | None:
    """Return HMAC-SHA-256 of a file; None without a key, or where there is no such file.

    A hash without a key is a deterministic function of the private records. Whoever knows all but one of them could
    test a guess about that one, whatever ε is. Under a secret key only its owner can.
    """
    if key is None or not file.is_file():
        return None
    mac = hmac.new(key, PURPOSE_OF_HASH, hashlib.sha256)
    with file.open("rb") as content:
        while block := content.read(1 << 20):
            mac.update(block)
    return mac.hexdigest()
