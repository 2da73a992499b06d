"""Compare what the ranks know: cheap numbers at every step, the whole facts only to explain a difference.

Ranks that disagree would release something that no ledger describes. Whatever must be equal is hashed, and whatever may
differ by rounding (weights, codecs) is reduced to one number and its scale. One all-gather of these few numbers a step
lets every rank come to the same verdict, so that none waits for another that has stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from quietgrad._collective import Facts
from quietgrad._errors import PrivacyError

TOLERANCE = 1e-4
"""How far fingerprints may differ, relative to the size of what they stand for. Rounding is 1e-6; a flipped sign of one
basis vector among a million is 1e-3."""

SHOWN = 6
"""How many differences an error names."""

REMEDIES = {
    "weights": "Build the model under the same seed on every rank, or call qg.distributed.copy_weights(model) before "
    "making the Privatizer; take the same optimizer steps everywhere.",
    "parameters": "Build and freeze the same model on every rank.",
    "data": "Give every rank the whole data set and the same rate and steps: each takes its part of one global draw.",
    "records": "Give every rank the same data set in the same order (sort the files, shuffle with a fixed seed): "
    "else one record could be in the parts of two ranks.",
    "records'": "Give every rank the same unit=.",
    "versions": "Install the same versions everywhere.",
    "representation": "Public data and public_losses must be the same on every rank, and so must hardware and threads.",
    "draw": "Draw batches only in the training loop, the same number on every rank.",
    "ledger": "Resume every rank from the same checkpoint, rank 0 with its ledger.",
    "noise": "Give every rank the same kind of noise source, or leave noise_source out.",
}


def row(facts: Facts) -> Float64[Tensor, " m"]:
    """Return two words of what must be equal, then the fingerprints."""
    close = [number for mark in facts.close.values() for number in (mark.value, mark.scale)]
    return torch.tensor([*_words(facts.equal), *close], dtype=torch.float64)


def check(rows: Float64[Tensor, "world m"], gather: Callable[[], list[Facts]]) -> None:
    """Compare the rows of all ranks; every rank comes to the same verdict on the same rows.

    Raises:
        PrivacyError: they do not fit together.
    """
    equal, values, scales = rows[:, :2], rows[:, 2::2], rows[:, 3::2]
    if bool((equal != equal[0]).any()):
        raise PrivacyError(_unequal([_flattened("", facts.equal) for facts in gather()]))
    apart = _apart(values, scales)
    if bool(apart.any()):
        names = [name for name, differs in zip(gather()[0].close, apart.tolist(), strict=True) if differs]
        raise PrivacyError(f"The ranks' {' and '.join(names)} drifted apart. {_remedies(names)}")


def _apart(values: Float64[Tensor, "world c"], scales: Float64[Tensor, "world c"]) -> Bool[Tensor, " c"]:
    near = (values - values[0]).abs() <= TOLERANCE * scales.amax(0)
    # Infinities and NaN are never near each other, but a model that diverged on all ranks is no disagreement.
    equal = (values == values[0]) | (values.isnan() & values[0].isnan())
    return ~(near | equal).all(0)


def _words(value: Any) -> tuple[float, float]:
    """Return a hash as two integers that float64 holds exactly."""
    text = json.dumps(value, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).digest()
    return float(int.from_bytes(digest[:4], "big")), float(int.from_bytes(digest[4:8], "big"))


def _flattened(path: str, value: Any) -> dict[str, Any]:
    """Return nested facts as dotted path → value."""
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        items = [(str(index), item) for index, item in enumerate(value)]
    else:
        return {path: value}
    return {
        inner: leaf
        for key, item in items
        for inner, leaf in _flattened(f"{path}.{key}" if path else key, item).items()
    }


def _unequal(ranks: list[dict[str, Any]]) -> str:
    paths = list(dict.fromkeys(path for facts in ranks for path in facts))
    differing = [path for path in paths if any(facts.get(path) != ranks[0].get(path) for facts in ranks)]
    shown = "; ".join(f"{path}: {_by_value(path, ranks)}" for path in differing[:SHOWN])
    more = f" (and {len(differing) - SHOWN} more)" if len(differing) > SHOWN else ""
    return f"The ranks disagree on {shown}{more}. {_remedies(differing)}"


def _by_value(path: str, ranks: list[dict[str, Any]]) -> str:
    holders: dict[str, list[str]] = {}
    for rank, facts in enumerate(ranks):
        text = str(facts[path]) if path in facts else "nothing"
        holders.setdefault(text if len(text) <= 60 else text[:57] + "...", []).append(str(rank))
    return ", ".join(
        f"{text} on rank{'s' if len(who) > 1 else ''} {' and '.join(who)}" for text, who in holders.items()
    )


def _remedies(paths: list[str]) -> str:
    kinds = dict.fromkeys(path.split(".")[0].split(" ")[0] for path in paths)
    known = [REMEDIES[kind] for kind in kinds if kind in REMEDIES]
    return " ".join(known) or "Start every rank with the same script and config."
