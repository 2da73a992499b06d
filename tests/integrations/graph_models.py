"""Models of PyTorch Geometric on batches of small graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric import nn as gnn
from torch_geometric.data import Data
from torch_geometric.utils import coalesce

DEGREES = torch.tensor([0, 2, 5, 8, 6, 4, 2, 1])


def graphs(count: int, seed: int = 0, *, equal: bool = False) -> list[Data]:
    """Graphs of 3 to 7 nodes, or of 5 each."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    made = []
    for _ in range(count):
        nodes = 5 if equal else int(torch.randint(3, 8, (1,), generator=rng))
        ends = torch.randint(0, nodes, (2, 2 * nodes), generator=rng)
        edges = coalesce(torch.cat([ends, ends.flip(0)], 1))
        label = torch.randint(0, 3, (1,), generator=rng)
        kinds = torch.randint(0, 3, (edges.shape[1],), generator=rng)
        made.append(
            Data(
                x=normal(nodes, 8),
                edge_index=edges,
                edge_attr=normal(edges.shape[1], 3),
                edge_type=kinds,
                pos=normal(nodes, 3),
                y=label,
            )
        )
    return made


class Convolutions(nn.Module):
    """Two convolutions, the mean over each graph, a head."""

    def __init__(self, make: Callable[[], nn.Module], *extra: str, pool: Any = gnn.global_mean_pool) -> None:
        super().__init__()
        self.first, self.second, self.head = make(), make(), nn.Linear(8, 3)
        self.extra, self.pool = extra, pool

    def forward(self, graph: Any) -> Tensor:
        more = [graph[name] for name in self.extra]
        x = torch.tanh(self.first(graph.x, graph.edge_index, *more))
        x = torch.tanh(self.second(x, graph.edge_index, *more))
        return self.head(self.pool(x, graph.batch))


class Pooled(nn.Module):
    """A convolution, a norm or pooling with parameters, a head."""

    def __init__(self, pool: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.first, self.pool, self.head = gnn.GCNConv(8, 8), pool, nn.Linear(width, 3)

    def forward(self, graph: Any) -> Tensor:
        x = torch.tanh(self.first(graph.x, graph.edge_index))
        if isinstance(self.pool, gnn.aggr.Aggregation):
            return self.head(self.pool(x, graph.batch))
        if isinstance(self.pool, gnn.TopKPooling | gnn.SAGPooling):
            x, _, _, batch, _, _ = self.pool(x, graph.edge_index, None, graph.batch)
            return self.head(gnn.global_add_pool(x, batch))
        return self.head(gnn.global_max_pool(torch.tanh(self.pool(x, graph.batch)), graph.batch))


class Attending(nn.Module):
    """GPS: message passing beside attention within each graph."""

    def __init__(self, norm: str | None) -> None:
        super().__init__()
        self.layer = gnn.GPSConv(8, gnn.GINConv(mlp(8, 8)), heads=2, norm=norm)
        self.head = nn.Linear(8, 3)

    def forward(self, graph: Any) -> Tensor:
        return self.head(gnn.global_add_pool(self.layer(graph.x, graph.edge_index, graph.batch), graph.batch))


class Points(nn.Module):
    """PointNet, whose edges carry differences of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = gnn.PointNetConv(mlp(11, 8), mlp(8, 8)), nn.Linear(8, 3)

    def forward(self, graph: Any) -> Tensor:
        return self.head(gnn.global_max_pool(self.layer(graph.x, graph.pos, graph.edge_index), graph.batch))


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "GCN": lambda: Convolutions(lambda: gnn.GCNConv(8, 8)),
    "GAT": lambda: Convolutions(lambda: gnn.GATConv(8, 4, heads=2)),
    "GATv2": lambda: Convolutions(lambda: gnn.GATv2Conv(8, 4, heads=2, edge_dim=3), "edge_attr"),
    "SAGE": lambda: Convolutions(lambda: gnn.SAGEConv(8, 8)),
    "GIN": lambda: Convolutions(lambda: gnn.GINConv(mlp(8, 8), train_eps=True), pool=gnn.global_add_pool),
    "GINE": lambda: Convolutions(lambda: gnn.GINEConv(mlp(8, 8), edge_dim=3), "edge_attr"),
    "PNA": lambda: Convolutions(
        lambda: gnn.PNAConv(8, 8, ["mean", "max", "std"], ["identity", "amplification"], DEGREES)
    ),
    "GPS": lambda: Attending(None),
    "GPS with LayerNorm": lambda: Attending("layer_norm"),
    "Transformer": lambda: Convolutions(lambda: gnn.TransformerConv(8, 4, heads=2, edge_dim=3), "edge_attr"),
    "Chebyshev": lambda: Convolutions(lambda: gnn.ChebConv(8, 8, 3)),
    "GraphConv": lambda: Convolutions(lambda: gnn.GraphConv(8, 8)),
    "gated": lambda: Convolutions(lambda: gnn.GatedGraphConv(8, 2)),
    "NNConv": lambda: Convolutions(lambda: gnn.NNConv(8, 8, mlp(3, 64)), "edge_attr"),
    "RGCN": lambda: Convolutions(lambda: gnn.RGCNConv(8, 8, 3), "edge_type"),
    "EdgeConv": lambda: Convolutions(lambda: gnn.EdgeConv(mlp(16, 8))),
    "PointNet": Points,
    "TopK pooling": lambda: Pooled(gnn.TopKPooling(8, 0.6)),
    "SAG pooling": lambda: Pooled(gnn.SAGPooling(8, 0.6)),
    "Set2Set": lambda: Pooled(gnn.aggr.Set2Set(8, 2), 16),
    "attentional": lambda: Pooled(gnn.aggr.AttentionalAggregation(mlp(8, 1))),
    "GraphNorm": lambda: Pooled(gnn.GraphNorm(8)),
    "InstanceNorm": lambda: Pooled(gnn.InstanceNorm(8, affine=True)),
    "LayerNorm": lambda: Pooled(gnn.LayerNorm(8, mode="graph")),
}


def losses(model: nn.Module, graph: Any) -> Tensor:
    return F.cross_entropy(model(graph), graph.y, reduction="none")
