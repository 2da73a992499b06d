"""LoRA of a 135M-parameter model on two gloo processes beside one: bytes sent, memory of a rank, the same bits.

What `fully_shard` would be taken for, without shards: each rank holds all frozen weights and half of the batch, and
only the adapters' sums are sent. Noise and draws are those of a seed, so that releases can be compared bit for bit;
a real run has no seed.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

import quietgrad as qg
from benchmarks.distributed import launch
from benchmarks.fine_tuning.scale import VOCABULARY, smollm2
from benchmarks.memory import high_water, resident
from benchmarks.models import words
from benchmarks.more_models import next_word
from quietgrad._sampling.poisson import ReplayedSampler
from quietgrad.distributed import Reducer

STEPS, SENTENCES, TOKENS, RANK = 2, 8, 32, 4


def compared() -> dict[str, Any]:
    """One process, then two."""
    (alone,) = launch(1, _trained, 2)
    ranks = launch(2, _trained, 1)
    return {
        "same_bits": all(rank["digest"] == alone["digest"] for rank in ranks),
        "bytes_a_step": ranks[0]["bytes"] // STEPS,
        "megabytes_alone": alone["megabytes"],
        "megabytes_of_a_rank": max(rank["megabytes"] for rank in ranks),
        "trained": alone["trained"],
    }


def _trained(parts: int) -> dict[str, Any]:
    """Two steps on all sentences; a process alone takes what two ranks would have as two micro-batches."""
    before = resident()
    reducer = qg.distributed.AllReduce()
    torch.manual_seed(0)
    model = smollm2(RANK)
    ids = words(VOCABULARY, TOKENS)(SENTENCES)
    digest = _steps(model, ids, reducer, parts)
    return {
        "digest": digest,
        "bytes": reducer.bytes_reduced,
        "megabytes": round((high_water() - before) / 2**20),
        "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
    }


def _steps(model: torch.nn.Module, ids: torch.Tensor, reducer: Reducer, parts: int) -> str:
    draws = [list(range(SENTENCES))] * STEPS
    sampler = ReplayedSampler(SENTENCES, draws, rate=1.0)
    mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    digest = hashlib.sha256()
    source = qg.SeededSource(5 + reducer.rank)
    with qg.Privatizer(
        model, mechanism, sampler, reducer=reducer, noise_source=source, deterministic=True, public_seed=7
    ) as private:
        for rows in sampler:
            for part in range(parts):
                mine = ids[rows[part::parts]]
                private.backward(next_word(model(mine), mine, mine))
            private.release()
            for p in trained:
                digest.update(p.grad.float().numpy().tobytes())  # type: ignore[union-attr]
            optimizer.step()
    return digest.hexdigest()
