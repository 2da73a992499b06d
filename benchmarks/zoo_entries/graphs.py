"""Models of PyTorch Geometric: a sample is a graph, given as a padded table of nodes and a matrix of edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn

from benchmarks.zoo_entries.base import Entry, Inputs

NODES, FEATURES, EDGE_FEATURES = 6, 8, 3


def inputs(n: int, generator: Generator) -> Inputs:
    """Graphs of 3 to 6 nodes, each in a ring with further edges."""
    edges = torch.rand(n, NODES, NODES, generator=generator) < 0.4
    return {
        "x0": torch.randn(n, NODES, FEATURES, generator=generator),
        "x1": edges.long(),
        "x2": torch.randint(3, NODES + 1, (n,), generator=generator),
        "x3": torch.randn(n, NODES, NODES, EDGE_FEATURES, generator=generator),
    }


def as_batch(x: Tensor, edges: Tensor, counts: Tensor, attributes: Tensor) -> Any:
    """One large graph of the nodes that exist, as a batch of PyTorch Geometric."""
    from torch_geometric.data import Batch, Data

    graphs = []
    for nodes, links, count, values in zip(x, edges, counts.tolist(), attributes, strict=True):
        ring = torch.eye(count, dtype=torch.bool).roll(1, 0)
        pairs = ((links[:count, :count] > 0) | ring | ring.T).nonzero().T
        graphs.append(Data(x=nodes[:count], edge_index=pairs, edge_attr=values[pairs[0], pairs[1]]))
    return Batch.from_data_list(graphs)


class OnGraphs(nn.Module):
    """Two layers, a sum or mean over each graph, a head.

    Args:
        extra: what the layers take beside nodes and edges: "edge_attr", "edge_type", "batch".
    """

    def __init__(self, layers: list[nn.Module], pool: Any, extra: tuple[str, ...], width: int = 8) -> None:
        super().__init__()
        self.layers, self.pool, self.extra, self.head = (
            nn.ModuleList(layers),
            pool,
            extra,
            nn.Linear(width, 3),
        )

    def forward(self, *padded: Tensor) -> Tensor:
        graph = as_batch(*padded)
        graph.edge_type = (graph.edge_attr[:, 0] > 0).long()
        x = graph.x
        for layer in self.layers:
            x = torch.tanh(layer(x, graph.edge_index, *(graph[name] for name in self.extra)))
        found: Tensor = self.head(self.pool(x, graph.batch))
        return found


def mlp(wide: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(wide, 8), nn.ReLU(), nn.Linear(8, out))


def entries() -> Iterator[Entry]:
    try:
        from torch_geometric import nn as gnn
    except ImportError:
        return

    mean, total, largest = gnn.global_mean_pool, gnn.global_add_pool, gnn.global_max_pool
    degrees = torch.tensor([0, 2, 5, 8, 6, 4, 2, 1])
    attributes, kinds, batch = ("edge_attr",), ("edge_type",), ("batch",)
    # name → (one layer from 8 to 8 features, pooling, what else it takes)
    made: dict[str, tuple[Callable[[], nn.Module], Any, tuple[str, ...]]] = {
        "GCNConv": (lambda: gnn.GCNConv(8, 8), mean, ()),
        "GATConv": (lambda: gnn.GATConv(8, 4, heads=2), mean, ()),
        "GATv2Conv": (lambda: gnn.GATv2Conv(8, 4, heads=2, edge_dim=3), mean, attributes),
        "SAGEConv": (lambda: gnn.SAGEConv(8, 8), mean, ()),
        "SAGEConv max": (lambda: gnn.SAGEConv(8, 8, aggr="max"), mean, ()),
        "GINConv": (lambda: gnn.GINConv(mlp(8, 8), train_eps=True), total, ()),
        "GINEConv": (lambda: gnn.GINEConv(mlp(8, 8), edge_dim=3), total, attributes),
        "PNAConv": (lambda: gnn.PNAConv(8, 8, ["mean", "max", "std"], ["identity"], degrees), mean, ()),
        "GPSConv": (lambda: gnn.GPSConv(8, gnn.GINConv(mlp(8, 8)), heads=2, norm="layer_norm"), mean, batch),
        "TransformerConv": (lambda: gnn.TransformerConv(8, 4, heads=2, edge_dim=3), mean, attributes),
        "ChebConv": (lambda: gnn.ChebConv(8, 8, 3), mean, ()),
        "GraphConv": (lambda: gnn.GraphConv(8, 8), total, ()),
        "GatedGraphConv": (lambda: gnn.GatedGraphConv(8, 2), mean, ()),
        "NNConv": (lambda: gnn.NNConv(8, 8, mlp(3, 64)), mean, attributes),
        "RGCNConv": (lambda: gnn.RGCNConv(8, 8, 2), mean, kinds),
        "EdgeConv": (lambda: gnn.EdgeConv(mlp(16, 8)), largest, ()),
        "TAGConv": (lambda: gnn.TAGConv(8, 8), mean, ()),
        "SGConv": (lambda: gnn.SGConv(8, 8, K=2), mean, ()),
        "ARMAConv": (lambda: gnn.ARMAConv(8, 8, num_stacks=2), mean, ()),
        "LEConv": (lambda: gnn.LEConv(8, 8), mean, ()),
        "ClusterGCNConv": (lambda: gnn.ClusterGCNConv(8, 8), mean, ()),
        "GENConv": (lambda: gnn.GENConv(8, 8, edge_dim=3, norm="layer"), mean, attributes),
        "GMMConv": (lambda: gnn.GMMConv(8, 8, dim=3, kernel_size=2), mean, attributes),
        "CGConv": (lambda: gnn.CGConv(8, dim=3), mean, attributes),
        "ResGatedGraphConv": (lambda: gnn.ResGatedGraphConv(8, 8, edge_dim=3), mean, attributes),
        "FiLMConv": (lambda: gnn.FiLMConv(8, 8), mean, ()),
        "MFConv": (lambda: gnn.MFConv(8, 8), mean, ()),
        "FeaStConv": (lambda: gnn.FeaStConv(8, 8, heads=2), mean, ()),
        "SuperGATConv": (lambda: gnn.SuperGATConv(8, 4, heads=2), mean, ()),
        "EGConv": (lambda: gnn.EGConv(8, 8, num_heads=2), mean, ()),
        "GeneralConv": (lambda: gnn.GeneralConv(8, 8), mean, ()),
        "AntiSymmetricConv": (lambda: gnn.AntiSymmetricConv(8), mean, ()),
    }
    for name, (layer, pool, extra) in made.items():
        yield Entry("graphs", name, partial(_two, layer, pool, extra), inputs)
    poolings: dict[str, tuple[Callable[[], nn.Module], int]] = {
        "Set2Set": (lambda: gnn.aggr.Set2Set(8, 2), 16),
        "AttentionalAggregation": (lambda: gnn.aggr.AttentionalAggregation(mlp(8, 1)), 8),
        "SoftmaxAggregation": (lambda: gnn.aggr.SoftmaxAggregation(learn=True), 8),
        "PowerMeanAggregation": (lambda: gnn.aggr.PowerMeanAggregation(), 8),
        "MultiAggregation": (lambda: gnn.aggr.MultiAggregation(["mean", "max", "std"]), 24),
    }
    for name, (pooling, width) in poolings.items():
        yield Entry("graphs", name, partial(_pooled, lambda: gnn.GCNConv(8, 8), pooling, width), inputs)


def _two(layer: Callable[[], nn.Module], pool: Any, extra: tuple[str, ...]) -> nn.Module:
    return OnGraphs([layer(), layer()], pool, extra)


def _pooled(layer: Callable[[], nn.Module], pooling: Callable[[], nn.Module], width: int) -> nn.Module:
    return OnGraphs([layer()], pooling(), (), width)
