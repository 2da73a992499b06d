"""Every example of the API reference makes one real training step: whatever a page builds is put into a Privatizer.

A page may build a mechanism, or a part of one, and never use it. An example that only constructs can be wrong for
years, so these pages are run here and not in `test_snippets.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from tests.pages import WITH_EXAMPLES, snippets, title
from tests.test_snippets import Scale, alone, run_snippet, world

__all__ = ["alone"]  # a fixture


def mechanisms(names: dict[str, Any]) -> Iterator[qg.Mechanism]:
    """All mechanisms that a page's names hold, parts of mechanisms being completed to one."""
    plain = qg.methods.dp_sgd()
    (release,) = plain.releases
    for value in names.values():
        for part in value if isinstance(value, list | tuple) else [value]:
            if isinstance(part, qg.Mechanism):
                yield part
            elif isinstance(part, qg.Release):
                yield replace(plain, releases=(part,))
            elif isinstance(part, qg.Representation):
                yield replace(plain, releases=(replace(release, representation=part),))
            elif isinstance(part, qg.Clip):
                yield replace(plain, releases=(replace(release, clip=part),))
            elif isinstance(part, qg.Noise):
                yield replace(plain, noise=part)


def take_a_step(model: nn.Module, mechanism: qg.Mechanism, *watching: qg.Observer) -> None:
    """The first step of a plan on 60 records: every parameter gets a finite gradient, not all of them zero."""
    x = torch.randn(60, 8)
    noisy = mechanism if mechanism.noise_multiplier else mechanism.with_noise(1.0)
    groups = noisy.event(0).separation
    data = TensorDataset(x, (x[:, 0] > 0).long())
    batches = qg.PoissonBatches(data, rate=0.5 / groups, steps=400, groups=groups)
    with qg.Privatizer(model, noisy, batches, research=bool(watching)) as private:
        for observer in watching:
            private.watch(observer)
        for part, labels in next(iter(batches)).split(16):
            private.backward(F.cross_entropy(model(part), labels, reduction="none"))
        private.release()
    grads = [parameter.grad for parameter in model.parameters()]
    assert all(grad is not None and bool(grad.isfinite().all()) for grad in grads)
    assert any(grad is not None and bool(grad.any()) for grad in grads)


def after(page: Path) -> tuple[dict[str, Any], nn.Module]:
    """The names that a page leaves behind, and the reader's model as it was before."""
    names = world()
    model = copy.deepcopy(names["model"])
    for text in snippets(page):
        run_snippet(text, names)
    return names, model


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=title)
def test_what_a_page_builds_takes_a_step(page: Path) -> None:
    names, model = after(page)
    found = list(mechanisms(names))
    assert found
    for mechanism in found:
        take_a_step(copy.deepcopy(model), mechanism)
    if "ScaleAdapter" in names:
        take_a_step(nn.Sequential(nn.Linear(8, 4), Scale(4), nn.Linear(4, 2)), qg.methods.dp_sgd())
    observers = [
        value for value in names.values() if isinstance(value, type) and value.__base__ is qg.Observer
    ]
    for observer in observers:
        take_a_step(copy.deepcopy(model), qg.methods.dp_sgd(), observer())


def test_all_kinds_of_parts_are_found() -> None:
    parts = {
        "clip": qg.FlatClip(3.0),
        "noise": qg.Gaussian(factor=2.0),
        "methods": [qg.methods.dp_sgd(clip=4.0)],
        "mask": qg.RandomMask(0.5),
        "release": qg.Release(representation=qg.LowRank(rank=2), clip=qg.FlatClip(1.0)),
        "other": 3,
    }
    clip, noise, method, mask, release = mechanisms(parts)
    assert clip.releases[0].clip is parts["clip"]
    assert noise.noise is parts["noise"]
    assert method.releases[0].clip == qg.FlatClip(4.0)
    assert mask.releases[0].representation is parts["mask"]
    assert release.releases == (parts["release"],)
