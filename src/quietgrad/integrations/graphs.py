"""Batches of graphs of PyTorch Geometric: a record is a graph.

A batch of graphs is one large graph. Which rows belong to which record is said by indices that the records themselves
bring along: a record whose edges point beyond its own nodes would read, after collating, the nodes of the next one. So
every record is checked by itself, before anything is drawn and again when it is collated.

    batches = graph_batches(graphs, rate=0.05, steps=200)
    for batch in batches:
        for graph in batch.split(64):                                        # a torch_geometric.data.Batch
            private.backward(F.cross_entropy(model(graph), graph.y, reduction="none"))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from quietgrad._errors import PrivacyError
from quietgrad._sampling.batches import PoissonBatches

try:
    from torch_geometric.data import Batch, Data
except ImportError as error:
    raise ImportError(
        "quietgrad.integrations.graphs needs torch_geometric: pip install 'quietgrad[graphs]'."
    ) from error

__all__ = ["collate_graphs", "graph_batches"]

ONE_GRAPH = (
    "Expected a data set of many graphs, each of them a record, got one graph. Its nodes are no records of their own: "
    "a node's loss is computed from its neighbours, which are other records, so that clipping one node's gradient "
    "bounds nobody's influence. Protect graphs, or train on each node's features alone."
)


def graph_batches(dataset: Sequence[Data], *, rate: float, steps: int, **options: Any) -> PoissonBatches:
    """Draw graphs, after a check that every record is a graph of its own.

    How many nodes and edges a micro-batch has follows the draw, as with `pad_to="longest"`; `explain()` says so.

    Args:
        dataset: map-style, of `torch_geometric.data.Data`.
        rate: the probability of each graph.
        steps: how many batches in all.
        options: of `PoissonBatches`.

    Raises:
        ValueError: a record is not a graph of its own, or there is one graph only.

    Checked by: tests/integrations/test_graphs.py, tests/attacks/test_lying_graphs.py
    """
    if isinstance(dataset, Data) or len(dataset) < 2:
        raise PrivacyError(ONE_GRAPH)
    check_graphs(dataset[number] for number in range(len(dataset)))
    return PoissonBatches(
        dataset, rate=rate, steps=steps, collate_fn=collate_graphs, pad_to="longest", **options
    )


def collate_graphs(records: list[Data]) -> Batch:
    """Join graphs to a batch, after a check of every one.

    Raises:
        PrivacyError: a record is not a graph of its own.
    """
    # Again, and not only before the first draw: a data set may transform its records anew each time.
    check_graphs(records)
    return Batch.from_data_list(records)


def check_graphs(records: Iterable[Data]) -> None:
    """Refuse records whose rows or indices reach beyond themselves.

    A tensor has one row for each node in all graphs, or one entry for each edge in all, or one shape in all, or it
    holds numbers of nodes. In a batch its rows then begin where the record's nodes, edges or place begin. Width and
    type are the same in all graphs: another width would stop the draw that has it, another type change its batch's.

    Raises:
        PrivacyError: there is such a record.
    """
    possible: dict[str, set[Any]] | None = None
    for record in records:
        found = {key: _kinds(record, key, value) for key, value in record.to_dict().items()}
        if possible is None:
            possible = found
        elif possible.keys() != found.keys():
            raise PrivacyError("Some graphs have other entries than the first one. Give all graphs the same.")
        for key, kinds in found.items():
            possible[key] &= kinds
            if not possible[key]:
                raise PrivacyError(
                    f"{key!r} has neither one row for each node in every graph, nor one for each edge, nor one shape, "
                    "nor the numbers of the graph's own nodes, or not one width and type in all graphs: after "
                    "collating, records would change each other's rows. Repair or leave out such graphs; "
                    "torch_geometric's data.validate() names the fault."
                )


def _kinds(record: Data, key: str, value: Any) -> set[Any]:
    """Return what an entry may be: of nodes, of edges, of one shape, or numbers of nodes; each with its type."""
    if not isinstance(value, Tensor):
        return {type(value)}
    along = (record.__cat_dim__(key, value) or 0) % max(1, value.dim())
    width = (value.dtype, *value.shape[:along], "rows", *value.shape[along + 1 :])
    if _is_index(record, key, value):
        inside = not value.numel() or (int(value.min()) >= 0 and int(value.max()) < record.num_nodes)
        return {("numbers", *width)} if inside else set()
    size = value.shape[along] if value.dim() else None
    sizes = {"nodes": record.num_nodes, "edges": record.num_edges}
    found = {(name, *width) for name, expected in sizes.items() if size == expected}
    return found | {(value.dtype, value.shape)}


def _is_index(record: Data, key: str, value: Tensor) -> bool:
    """Ask whether collating adds to a tensor how many nodes the records before it have."""
    added = record.__inc__(key, value)
    return bool((added != 0).any()) if isinstance(added, Tensor) else added != 0
