"""How much memory a private step of a sharded model takes on each rank, by counting storages.

    python -m benchmarks.shard_memory                      100 million parameters on 1, 2 and 4 ranks
    python -m benchmarks.shard_memory --blocks 2 --width 256
    python -m benchmarks.shard_memory --reducer AllReduce --method rgp

The peak is the most bytes that tensors held at once, seen after every torch operation of a step; resident memory would
count caches of the allocator and of gloo too. What numpy and gloo hold inside is left out.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import weakref
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import TensorDataset

import quietgrad as qg

LENGTH, WORDS = 16, 64
CONTEXT = multiprocessing.get_context("forkserver")


class Block(nn.Module):
    """A transformer's block, 12·width² parameters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.up: nn.Module = nn.Linear(width, 4 * width)
        self.down: nn.Module = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, t, 3, d // 64, 64).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d))
        out: Tensor = x + self.down(F.gelu(self.up(x)))
        return out


class Transformer(nn.Module):
    """Blocks between an embedding and the head that it is tied to."""

    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(blocks)])
        self.head = nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embed(x)
        for block in self.blocks:
            hidden = block(hidden)
        out: Tensor = self.head(hidden)
        return out


class LowRankLayer(nn.Module):
    """A frozen layer and a trained one of low rank beside it."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


def build(blocks: int, width: int, method: str) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(blocks, width)
    if method == "lora":
        model.requires_grad_(False)
        for block in model.blocks:
            assert isinstance(block, Block)
            for name in ("up", "down"):
                layer = block.get_submodule(name)
                assert isinstance(layer, nn.Linear)
                block.set_submodule(name, LowRankLayer(layer, 8))
    return model


METHODS = {"dp_sgd": qg.methods.dp_sgd(), "lora": qg.methods.dp_sgd(), "rgp": qg.methods.rgp(rank=4)}


class Storages(TorchDispatchMode):
    """Counts the bytes of all tensors that are alive, after each operation."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: list[weakref.ref[Tensor]] = []
        self.peak = 0

    def add(self, tensors: Any) -> None:
        self._alive += [weakref.ref(leaf) for leaf in tree_leaves(tensors) if isinstance(leaf, Tensor)]

    def count(self) -> int:
        tensors = [tensor for ref in self._alive if (tensor := ref()) is not None]
        self._alive = [weakref.ref(tensor) for tensor in tensors]
        plain = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors]
        return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in plain}.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.add((args, result))
        self.peak = max(self.peak, self.count())
        return result


def measure(
    rank: int, world: int, folder: str, blocks: int, width: int, method: str, reducer_name: str
) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    model = build(blocks, width, method)
    size = sum(p.numel() for p in model.parameters())
    reducer = getattr(qg.distributed, reducer_name)()
    if reducer.lockstep:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    data = TensorDataset(torch.randint(WORDS, (8, LENGTH)))
    batches = qg.PoissonBatches.replay(data, [list(range(world))], rate=0.5)
    mechanism = METHODS[method].with_noise(1.0)
    with qg.Privatizer(model, mechanism, batches, reducer=reducer, deterministic=True) as private:
        storages = Storages()
        storages.add(list(model.parameters()))
        with storages:
            for batch in batches:
                for (x,) in batch.split(2):
                    losses = F.cross_entropy(model(x[:, :-1]).transpose(1, 2), x[:, 1:], reduction="none")
                    private.backward(losses.mean(1))
                private.release()
    largest = max(p.numel() for p in private.parameters.values())
    block_size = sum(p.numel() for p in model.blocks[0].parameters())  # gathered together
    Path(folder, str(rank)).write_text(
        f"{size} {storages.peak} {largest} {block_size} {reducer.bytes_reduced}"
    )
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--method", choices=METHODS, default="dp_sgd")
    parser.add_argument("--reducer", choices=("Sharded", "AllReduce"), default="Sharded")
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    for world in options.worlds:
        with tempfile.TemporaryDirectory() as folder:
            args = (world, folder, options.blocks, options.width, options.method, options.reducer)
            ranks = [CONTEXT.Process(target=measure, args=(rank, *args)) for rank in range(world)]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join()
            found = [[int(word) for word in Path(folder, str(r)).read_text().split()] for r in range(world)]
            size, peak, largest, gathered, sent = (max(column) for column in zip(*found, strict=True))
            shard = 12 * size // (world if options.reducer == "Sharded" else 1)
            print(
                f"world {world}, {options.reducer}, {options.method}: {size / 1e6:.1f} million parameters, peak "
                f"{peak / 2**20:.0f} MiB a rank ({peak / size:.2f} bytes a parameter), beside 12·P of a rank's "
                f"{shard / 2**20:.0f}; largest layer {4 * largest / 2**20:.0f}, gathered together "
                f"{4 * gathered / 2**20:.0f}; {sent / 2**20:.1f} MiB sent",
                flush=True,
            )


if __name__ == "__main__":
    main()
