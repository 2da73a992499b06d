"""Models of PyTorch Geometric train privately: a record is a graph, its rows are those of an index."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._mechanism.clipping import MARGIN

pytest.importorskip("torch_geometric")
from torch_geometric.data import Batch, Data

from quietgrad.integrations.graphs import collate_graphs, graph_batches
from tests.integrations.graph_models import MODELS, graphs, losses


def looped(model: torch.nn.Module, records: list[Data]) -> Tensor:
    """The flat gradient of each graph alone."""
    parameters = list(model.parameters())
    rows = []
    for record in records:
        loss = losses(model, Batch.from_data_list([record])).sum()
        found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([gradient.flatten() for gradient in found]))
    return torch.stack(rows)


def released(model: torch.nn.Module, records: list[Data], clip: float) -> Tensor:
    """The sum of clipped gradients of all records, without noise."""
    batches = qg.PoissonBatches.replay(
        records, [range(len(records))], rate=1.0, collate_fn=collate_graphs, pad_to="longest"
    )
    silent = qg.methods.dp_sgd(clip=clip).with_noise(0.0)
    with qg.Privatizer(model, silent, batches) as private:
        for batch in batches:
            for graph in batch.split(4):
                private.backward(losses(model, graph))
            private.release()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]) * len(records)


@pytest.mark.parametrize("name", MODELS)
def test_a_release_is_the_clipped_sum_of_single_graphs(name: str) -> None:
    torch.manual_seed(0)
    model, records = MODELS[name]().double(), graphs(7)
    rows = looped(model, records)
    clip = float(rows.norm(dim=1).median())  # half of the graphs are clipped
    scales = (clip * (1 - MARGIN) / rows.norm(dim=1)).clamp_max(1.0)
    assert 0 < int((scales == 1).sum()) < len(records)
    torch.testing.assert_close(released(model, records, clip), scales @ rows, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", ["GCN", "GAT", "GIN"])
def test_graphs_of_equal_size_are_no_exception(name: str) -> None:
    """Then rows lie in a regular order by chance, and only the index tells whose they are."""
    torch.manual_seed(0)
    model, records = MODELS[name]().double(), graphs(4, equal=True)
    rows = looped(model, records)
    torch.testing.assert_close(released(model, records, 1e6), rows.sum(0), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_taking_a_graph_away_moves_the_sum_by_no_more_than_the_clip(scale: float) -> None:
    """Law 2 for ragged layouts, in float32, with one graph of any size and scale among the others."""
    torch.manual_seed(0)
    model = MODELS["GAT"]().float()
    records = [record.apply(lambda x: x.float() if x.is_floating_point() else x) for record in graphs(8)]
    for number in (0, 5):
        odd = [record.clone() for record in records]
        odd[number].x = odd[number].x * scale
        whole = released(model, odd, 0.1)
        rest = released(model, odd[:number] + odd[number + 1 :], 0.1)
        assert float((whole.double() - rest.double()).norm()) <= 0.1


def test_graph_batches_train_and_say_that_sizes_follow_the_draw() -> None:
    torch.manual_seed(0)
    model = MODELS["GCN"]().double()
    batches = graph_batches(graphs(40), rate=0.2, steps=3)
    mechanism = qg.calibrate(qg.methods.dp_sgd(), batches, epsilon=8.0, delta=1e-3)
    with qg.Privatizer(model, mechanism, batches) as private:
        for batch in batches:
            for graph in batch.split(8):
                private.backward(losses(model, graph))
            private.release()
        assert "longest" in private.explain().padding
        assert private.ledger.count == 3


def test_sizes_that_follow_the_draw_must_be_stated() -> None:
    batches = qg.PoissonBatches(graphs(40), rate=0.5, steps=2, collate_fn=collate_graphs)
    model = MODELS["GCN"]().double()
    with qg.Privatizer(model, qg.methods.dp_sgd().with_noise(1.0), batches) as private:

        def train() -> None:
            for batch in batches:
                for graph in batch.split(8):
                    private.backward(losses(model, graph))

        with pytest.raises(qg.PrivacyError, match="pad_to='longest'"):
            train()


def test_one_graph_is_refused_with_the_reason_and_the_remedy_works() -> None:
    (graph,) = graphs(1)
    for dataset in (graph, [graph]):
        with pytest.raises(qg.PrivacyError, match=r"neighbours, which are other records.*features alone"):
            graph_batches(dataset, rate=0.1, steps=2)
    features, model = TensorDataset(graph.x.float()), torch.nn.Linear(graph.x.shape[1], 1)
    batches = qg.PoissonBatches(features, rate=0.5, steps=2)
    with qg.Privatizer(model, qg.methods.dp_sgd().with_noise(1.0), batches) as private:
        for batch in batches:
            for (x,) in batch.split(4):
                private.backward(model(x).square().sum(1))
            private.release()
        assert private.ledger.count == 2
