"""Networks for tables of other projects, after `qg.fix`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

import quietgrad as qg
from benchmarks.zoo_entries.base import Call, Entry, Inputs, real


def mixed(n: int, generator: torch.Generator) -> Inputs:
    """Six numbers and two categories."""
    return {
        "x0": torch.randn(n, 6, generator=generator),
        "x1": torch.randint(0, 3, (n, 2), generator=generator),
    }


def entries() -> Iterator[Entry]:
    try:
        import rtdl_revisiting_models as rtdl
        from pytorch_tabnet.tab_network import TabNet
    except ImportError:
        return

    def transformer(categories: list[int]) -> nn.Module:
        options = {"d_block": 16, "attention_n_heads": 2, "attention_dropout": 0.0, "ffn_dropout": 0.0}
        sizes = rtdl.FTTransformer.get_default_kwargs(2) | options
        made: nn.Module = rtdl.FTTransformer(
            n_cont_features=6, cat_cardinalities=categories, d_out=2, **sizes
        )
        return made

    def tab_net(kind: str) -> nn.Module:
        net = TabNet(6, 2, n_d=8, n_a=8, n_steps=2, mask_type=kind, group_attention_matrix=torch.eye(6))

        def predict(call: nn.Module, x: torch.Tensor) -> torch.Tensor:
            for part in call.modules():  # a matrix that is no buffer
                if hasattr(part, "group_attention_matrix"):
                    part.group_attention_matrix = part.group_attention_matrix.to(x.dtype)
            found: torch.Tensor = call.get_submodule("net")(x)[0]
            return found

        return Call(predict, net=net)

    def residual() -> nn.Module:
        sizes = {"n_blocks": 2, "d_block": 16, "d_hidden": 32, "d_hidden_multiplier": None}
        made: nn.Module = rtdl.ResNet(d_in=6, d_out=2, dropout1=0.0, dropout2=0.0, **sizes)
        return made

    yield Entry("tables", "FTTransformer", lambda: transformer([3, 3]), mixed)
    yield Entry(
        "tables",
        "FTTransformer, numbers",
        lambda: Call(lambda c, x: c.get_submodule("net")(x, None), net=transformer([])),
        real(6),
    )
    yield Entry("tables", "ResNet", lambda: qg.fix(residual()), real(6))
    yield Entry(
        "tables", "MLP", lambda: rtdl.MLP(d_in=6, d_out=2, n_blocks=2, d_block=16, dropout=0.0), real(6)
    )
    yield Entry("tables", "TabNet, sparsemax", lambda: qg.fix(tab_net("sparsemax")), real(6))
    yield Entry("tables", "TabNet, entmax", lambda: qg.fix(tab_net("entmax")), real(6))
