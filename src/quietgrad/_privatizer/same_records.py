"""Check that all ranks hold the same records under the same numbers, or each its own.

A draw is a list of record numbers, and each rank takes its part of it. If rank 1 held the records in another order, one
record could be in two parts: the sum would move by 2C where the noise is for C. So ranks compare a hash of records
before anything is drawn. Its key is random, shared by the ranks of one run, and forgotten: a hash tells nobody anything
about a record. Ranks that say that each holds its own records are refused if two hold the very same ones; a single
record that two ranks have cannot be told from two records that are alike. Ranks that do not trust each other
(`honest=`) send no hash: whoever has the key could try records until one fits.

Guarantee: of tensors up to `WHOLE_BYTES` every row is compared. Of other data sets `SAMPLED` records are, so ranks that
differ in a share s of the records pass with probability (1 − s)^SAMPLED.
Checked by: tests/distributed/test_disagreement.py
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor
from torch.utils.data import TensorDataset

from quietgrad._collective import Facts, Reducer
from quietgrad._errors import PrivacyError
from quietgrad._sampling.batches import PoissonBatches
from quietgrad._sampling.poisson import PoissonSampler

WHOLE_BYTES = 1 << 28
"""Tensors up to this size are hashed as a whole, which takes a third of a second."""

SAMPLED = 256
"""Records of any other data set that are read; decoding an image takes some milliseconds."""

NOT_COMPARED = "not compared"


class NotHashableError(Exception):
    """A record is of a type that has no canonical bytes, or comes out different each time."""


def check_same_records(reducer: Reducer, batches: PoissonBatches | PoissonSampler) -> None:
    """Compare the records of all ranks, or warn that they cannot be compared.

    Raises:
        PrivacyError: on every rank, if ranks hold different records, or another order of them; if each says to hold
            its own, and two hold the same.
    """
    if reducer.world == 1 or reducer.honest is not None:
        return
    key = reducer.broadcast(lambda: os.urandom(32))
    found = _records(batches, key)
    if reducer.local_records:
        _refuse_copies(reducer.gather(found))
        return
    reducer.agree(lambda: Facts(equal={"records": found, "records' units": _units(batches, key)}))
    if found == NOT_COMPARED:
        warnings.warn(
            "The ranks' records were not compared: the data set is not in a PoissonBatches, or its records are random "
            "or of a type without fixed bytes. Make sure that every rank holds the same records in the same order.",
            stacklevel=4,
        )


def _refuse_copies(ranks: list[str]) -> None:
    known = [found for found in ranks if found != NOT_COMPARED]
    if len(set(known)) < len(known):
        raise PrivacyError(
            'Two ranks hold the same records, but records="local" says that each holds its own: every record would '
            'count twice. Give each rank its part of the data, or pass records="shared".'
        )


def _records(batches: PoissonBatches | PoissonSampler, key: bytes) -> str:
    if not isinstance(batches, PoissonBatches):
        return NOT_COMPARED
    digest = hashlib.blake2b(key=key)
    # Whatever a data set raises here must not leave the other ranks waiting; training will raise it again.
    try:
        _add_records(digest, batches.dataset, batches.sampler.records, key)
    except Exception:
        return NOT_COMPARED
    return digest.hexdigest()[:16]


def _units(batches: PoissonBatches | PoissonSampler, key: bytes) -> str | None:
    """Hash which records belong to one user; None where records are protected."""
    users = (batches.sampler if isinstance(batches, PoissonBatches) else batches).users
    if users is None:
        return None
    return hashlib.blake2b(users.records.tobytes() + users.starts.tobytes(), key=key).hexdigest()[:16]


def _add_records(digest: Any, dataset: Any, records: int, key: bytes) -> None:
    if type(dataset) is TensorDataset and sum(t.nbytes for t in dataset.tensors) <= WHOLE_BYTES:
        _add(digest, dataset.tensors)
        return
    seed = [int(word) for word in np.frombuffer(hashlib.sha256(key).digest(), dtype=np.uint32)]
    some = np.random.default_rng(seed).choice(records, min(records, SAMPLED), replace=False)
    for number in sorted(some.tolist()):
        _add(digest, _stable(dataset, number, seed))


def _stable(dataset: Any, number: int, seed: list[int]) -> Any:
    """Return a record; augmentation draws the same numbers on every rank, and generators are put back.

    Raises:
        NotHashableError: it comes out different the second time.
    """
    digests = []
    for _ in range(2):
        with _seeded(seed):
            record = dataset[number]
        once = hashlib.blake2b()
        _add(once, record)
        digests.append(once.digest())
    if digests[0] != digests[1]:
        raise NotHashableError
    return record


@contextlib.contextmanager
def _seeded(seed: list[int]) -> Iterator[None]:
    python, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            random.seed(seed[0])
            np.random.seed(seed[0])
            torch.default_generator.manual_seed(seed[0])
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)


def _add(digest: Any, value: Any) -> None:
    """Add canonical bytes: the type, the shape and the content.

    Raises:
        NotHashableError: the type has none.
    """
    if isinstance(value, Tensor):
        content = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        digest.update(f"{value.dtype} {tuple(value.shape)};".encode() + content)
    elif isinstance(value, ndarray | np.generic) and value.dtype.kind not in "OV":
        digest.update(f"{value.dtype} {value.shape};".encode() + np.asarray(value).tobytes())
    elif isinstance(value, Mapping):
        _add(digest, [entry for pair in value.items() for entry in pair])
    elif isinstance(value, list | tuple):
        digest.update(f"{len(value)} entries;".encode())
        for entry in value:
            _add(digest, entry)
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        text = repr(value).encode()
        digest.update(f"{type(value).__name__} {len(text)};".encode() + text)
    elif hasattr(value, "mode") and hasattr(value, "tobytes"):  # an image of Pillow
        digest.update(f"{value.mode} {value.size};".encode() + value.tobytes())
    else:
        raise NotHashableError
