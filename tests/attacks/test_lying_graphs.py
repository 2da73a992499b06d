"""A record whose index points into the nodes of another: its loss would be computed from that record.

Attack: an adversary owns one graph and gives it an edge to a node number that it does not have. After collating, the
number is a node of the next graph, whose features then reach the adversary's loss and the gradient row of its graph.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import quietgrad as qg

pytest.importorskip("torch_geometric")
from torch_geometric.data import Batch, Data

from quietgrad.integrations.graphs import collate_graphs, graph_batches
from tests.integrations.graph_models import MODELS, graphs, losses


def foreign_edge(graph: Data) -> None:
    graph.edge_index[0, 0] = graph.num_nodes + 1


def negative_edge(graph: Data) -> None:
    graph.edge_index[0, 0] = -1


def too_many_rows(graph: Data) -> None:
    """The nodes of all later graphs would move by one."""
    graph.x = torch.cat([graph.x, graph.x[:1]])
    graph.num_nodes = len(graph.x) - 1


def too_few_nodes(graph: Data) -> None:
    graph.num_nodes = graph.num_nodes - 1


def another_tensor(graph: Data) -> None:
    graph.batch = torch.ones(graph.num_nodes, dtype=torch.long)


def another_width(graph: Data) -> None:
    """Collated alone it is fine; the first draw that has it would stop the run."""
    graph.x = graph.x[:, :5]


def another_type(graph: Data) -> None:
    """Collating would turn the labels of its whole batch into floats."""
    graph.y = graph.y.double()


def another_kind_of_entry(graph: Data) -> None:
    graph.y = 1


LIES: list[Callable[[Data], None]] = [
    foreign_edge,
    negative_edge,
    too_many_rows,
    too_few_nodes,
    another_tensor,
    another_width,
    another_type,
    another_kind_of_entry,
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_graph_that_lies_is_refused_before_anything_is_drawn(lie: Callable[[Data], None]) -> None:
    records = graphs(12)
    lie(records[5])
    with pytest.raises(qg.PrivacyError):
        graph_batches(records, rate=0.1, steps=2)


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_data_set_that_lies_later_is_refused_when_it_is_collated(lie: Callable[[Data], None]) -> None:
    records = graphs(4)
    lie(records[1])
    with pytest.raises(qg.PrivacyError):
        collate_graphs(records)


def mixed(model: torch.nn.Module, records: list[Data]) -> bool:
    """Whether the first graph's loss follows the second graph's features."""

    def first(scale: float) -> Tensor:
        other = [record.clone() for record in records]
        other[1].x = other[1].x * scale
        return losses(model, Batch.from_data_list(other))[0]

    return not torch.allclose(first(1.0), first(5.0))


def many_foreign_edges(graph: Data) -> None:
    """Into the next five or so graphs, so that no exchange of half of the records leaves all of them in place."""
    numbers = graph.num_nodes + torch.arange(24)
    graph.edge_index = torch.stack([numbers, torch.zeros_like(numbers)])
    graph.edge_attr, graph.edge_type = graph.edge_attr.new_ones(24, 3), torch.zeros_like(numbers)


@pytest.mark.parametrize("name", ["GCN", "GAT", "SAGE", "GIN"])
def test_with_a_collator_of_ones_own_the_loop_is_refused(name: str) -> None:
    """The loop is asked about each of three micro-batches: all answers miss the lie with probability below 1e-9."""
    torch.manual_seed(0)
    model, records = MODELS[name]().double(), graphs(12)
    many_foreign_edges(records[0])
    assert mixed(model, records)
    batches = qg.PoissonBatches.replay(
        records, [range(12)] * 3, rate=1.0, collate_fn=Batch.from_data_list, pad_to="longest"
    )
    with qg.Privatizer(model, qg.methods.dp_sgd().with_noise(1.0), batches) as private:

        def train() -> None:
            for batch in batches:
                for graph in batch.split(12):
                    private.backward(losses(model, graph))
                private.release()

        with pytest.raises(
            (qg.PrivacyError, IndexError, RuntimeError)
        ):  # alone, the nodes do not exist at all
            train()
