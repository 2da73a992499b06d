"""Random chains of operations: is what graph analysis says about them true?

    python -m benchmarks.rule_fuzz --layouts 50000           a table
    python -m benchmarks.rule_fuzz --layouts 50000 --json    {"layouts", "wrong", "chains", "operations": {...}, ...}

A chain starts from a tensor with n samples along any of its dimensions and applies some of the operations of
`rule_fuzz_operations`, along any dimension: it may well mix the samples. What comes out is reduced to n losses. Graph
analysis then says of every gradient between the losses and the leaves where its samples lie. Brute force runs the
backward of each loss alone, in float64. A claim is wrong if the gradient of loss i is not zero at a place that is said
to belong to sample j. A rule that raises is wrong too.

Gradients without a known batch axis claim nothing: probing and the check of independence decide about them.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from benchmarks.rule_fuzz_operations import OPERATIONS, Chance
from quietgrad._capture.graph import Graph
from quietgrad._capture.graph_analysis import GraphAnalysis
from quietgrad._capture.layout import BatchAxis, BatchLayout, Layout

LONGEST, LARGEST = 6, 3000
"""Operations of a chain, and entries of a tensor: both small, so that many chains fit into a minute."""
NOT_APPLICABLE = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, AssertionError)
"""What torch raises for shapes that an operation does not take; another operation is tried then."""


@dataclass
class Chain:
    """A random chain: its losses, and the edges before and after each operation."""

    n: int
    names: list[str]
    losses: Tensor
    steps: list[tuple[str, GradientEdge, GradientEdge]]


@dataclass
class Tally:
    """What was checked, and what was wrong.

    `operations` counts, for each operation whose output had a layout, what was said of its input; `kinds` the checked
    layouts by the kind of node they arrive at.
    """

    chains: int = 0
    layouts: int = 0
    wrong: list[str] = field(default_factory=list)
    operations: dict[str, Counter[str]] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, object]:
        """Return the figures, most frequent operations first."""
        ordered = sorted(self.operations.items(), key=lambda item: -sum(item[1].values()))
        return {
            "chains": self.chains,
            "layouts": self.layouts,
            "wrong": self.wrong,
            "operations": {name: dict(counts) for name, counts in ordered},
            "kinds_of_nodes": dict(self.kinds.most_common()),
        }


def random_chain(seed: int) -> Chain | None:
    """Return a chain of some operations that ends in one loss per sample; None if its end has no room for them."""
    torch.manual_seed(seed)  # of dropout, and of the weights of modules
    chance = Chance(seed)
    n = chance.choice([2, 2, 3, 4, 5])
    x = _start(chance, n)
    names: list[str] = []
    steps: list[tuple[str, GradientEdge, GradientEdge]] = []
    length = chance.choice(range(1, LONGEST + 1))
    for _ in range(8 * length):
        name = chance.choice(list(OPERATIONS))
        try:
            y = OPERATIONS[name](chance, x)
        except NOT_APPLICABLE:
            continue
        if not 0 < y.numel() <= LARGEST or y.dim() > 6 or not y.requires_grad:
            continue
        steps.append((name, get_gradient_edge(x), get_gradient_edge(y)))
        names.append(name)
        chance.earlier.append(x)
        x = y
        if len(names) == length:
            break
    losses = _losses(chance, x, n)
    return None if losses is None or not names else Chain(n, names, losses, steps)


def _start(chance: Chance, n: int) -> Tensor:
    """Return n samples along any dimension; other sizes are often n too, so that a wrong rule is not saved by them."""
    shape = [chance.choice([1, 2, 3, 4, 6, n, n, 2 * n]) for _ in range(chance.choice([1, 2, 3, 3, 4, 4, 5]))]
    shape[chance.choice(range(len(shape)))] = n
    return chance.numbers(*shape).requires_grad_() * 1.0


def _losses(chance: Chance, x: Tensor, n: int) -> Tensor | None:
    """Reduce the end of a chain to `[n]`, with its samples along any dimension that has room for them."""
    if x.is_complex():
        x = x.abs()
    dims = [dim for dim, size in enumerate(x.shape) if size == n]
    if dims:
        rows = x.movedim(chance.choice(dims), 0).reshape(n, -1)
    elif x.numel() % n == 0:
        rows = x.reshape(n, -1)
    else:
        return None
    return (rows * chance.numbers(*rows.shape)).sum(1)


def check_chain(chain: Chain, tally: Tally) -> None:
    """Compare every layout that graph analysis claims with the gradients of each loss alone."""
    graph = Graph.of(chain.losses)
    try:
        analysis = GraphAnalysis(graph, chain.n)
    except Exception as error:
        tally.wrong.append(f"{' → '.join(chain.names)}: raised {error!r}")
        return
    # What reduces the end of the chain to losses is the same everywhere, and not counted.
    inside = reachable(graph, chain.steps[-1][2].node)
    claims = [
        (edge, layout)
        for node in inside
        for edge, layout in analysis.outputs_with_gradient(node)
        if isinstance(layout, Layout)
    ]
    gradients = _gradients_of_each_loss(chain, [edge for edge, _ in claims])
    if gradients is None:
        return
    tally.chains += 1
    for (edge, layout), rows in zip(claims, gradients, strict=True):
        tally.layouts += 1
        tally.kinds[edge.node.name()] += 1
        if not agrees(layout, rows, chain.n):
            shape = tuple(rows.shape[1:])
            tally.wrong.append(f"{' → '.join(chain.names)}: {layout} of {shape} at {edge.node.name()}")
    for name, before, after in chain.steps:
        if isinstance(analysis.at(after), Layout):
            tally.operations.setdefault(name, Counter())[_word(analysis.at(before))] += 1


def reachable(graph: Graph, start: Node) -> list[Node]:
    """List the nodes that gradients reach from one of them, and that one."""
    found = {start}
    for node in graph.order:
        if node in found:
            found.update(child for child, _ in graph.children[node] if child is not None)
    return [node for node in graph.order if node in found]


def _word(layout: BatchLayout) -> str:
    if isinstance(layout, Layout):
        return "claimed"
    return "absent" if layout is BatchAxis.ABSENT else "unknown"


def _gradients_of_each_loss(chain: Chain, edges: list[GradientEdge]) -> list[Tensor] | None:
    """Run a backward per loss; `[n, *shape]` at each edge, or None if a number overflowed on the way."""
    if not edges:
        return []
    rows: list[list[Tensor]] = [[] for _ in edges]
    for one_hot in torch.eye(chain.n, dtype=chain.losses.dtype):
        found: tuple[Tensor | None, ...] = torch.autograd.grad(
            chain.losses, edges, one_hot, retain_graph=True, allow_unused=True
        )
        for row, edge, gradient in zip(rows, edges, found, strict=True):
            meta = edge.node._input_metadata[edge.output_nr]
            row.append(torch.zeros(meta.shape, dtype=meta.dtype) if gradient is None else gradient)
    stacked = [torch.stack(row) for row in rows]
    return stacked if all(bool(rows.isfinite().all()) for rows in stacked) else None


def agrees(layout: Layout, rows: Tensor, n: int) -> bool:
    """Ask whether the gradient of loss i, row i, is zero wherever the layout says that sample j ≠ i lies."""
    if not layout.fits(rows.shape[1:], n):
        return False
    sizes = rows.abs()
    noise = 1e-12 * float(sizes.max()) if sizes.numel() else 0.0
    for i in range(n):
        of_sample = layout.samples_first(sizes[i], n)
        if any(float(of_sample[j].max()) > noise for j in range(n) if j != i and of_sample[j].numel()):
            return False
    return True


def fuzz(
    layouts: int, seed: int = 0, *, most_chains: int = sys.maxsize, most_wrong: int = sys.maxsize
) -> Tally:
    """Check random chains until so many layouts were claimed."""
    tally = Tally()
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # torch's, about odd arguments of its operations
        while tally.layouts < layouts and tally.chains < most_chains and len(tally.wrong) < most_wrong:
            chain = random_chain(seed)
            seed += 1
            if chain is not None:
                check_chain(chain, tally)
    return tally


def _print_table(tally: Tally) -> None:
    print(f"{'operation':28s} claimed  absent unknown")
    for name, counts in sorted(tally.operations.items()):
        print(f"{name:28s} {counts['claimed']:7d} {counts['absent']:7d} {counts['unknown']:7d}")
    never = sorted(OPERATIONS.keys() - tally.operations.keys())
    print(f"{len(tally.operations)} of {len(OPERATIONS)} operations; not met: {', '.join(never) or 'none'}")
    print(f"{tally.chains} chains, {tally.layouts} layouts, {len(tally.wrong)} wrong")
    for line in tally.wrong[:20]:
        print("  wrong:", line)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layouts", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tally = fuzz(args.layouts, args.seed * 10**9)
    if args.json:
        print(json.dumps(tally.to_json(), indent=1))
    else:
        _print_table(tally)
    sys.exit(bool(tally.wrong))


if __name__ == "__main__":
    main()
