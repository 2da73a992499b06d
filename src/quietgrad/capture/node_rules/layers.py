"""What layers do: pooling, products, norms, attention, tables, and the losses behind them."""

from __future__ import annotations

import re

from quietgrad.capture.node_rules.visit import RULES, Fate, Rule, State, Visit, doubtful, rule

# ---- space --------------------------------------------------------------------------------------------------


def spatial(channels: int) -> Rule:
    """Operations on the last dimensions, as many as the number in their name says, and on some more before them."""

    def apply(visit: Visit) -> list[State]:
        found = re.search(r"([123])d", visit.node.name(), re.IGNORECASE)
        space = int(found[1]) if found else 2
        lead = len(visit.shape) - space - channels
        states = visit.all(visit.layout if visit.dim < lead else Fate.DOUBT)
        same = all(
            s is None or (len(s) > visit.dim and s[visit.dim] == visit.shape[visit.dim])
            for s in visit.children
        )
        return states if same else doubtful(visit)

    return apply


SPACE = (
    "AvgPool2D AvgPool3D MaxPool2DWithIndices MaxPool3DWithIndices MkldnnMaxPool2D AdaptiveAvgPool2D AdaptiveAvgPool3D "
    "AdaptiveMaxPool2D AdaptiveMaxPool3D FractionalMaxPool2D FractionalMaxPool3D MkldnnAdaptiveAvgPool2D "
    "UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D UpsampleNearestExact1D UpsampleNearestExact2D "
    "UpsampleNearestExact3D UpsampleLinear1D UpsampleBilinear2D UpsampleBicubic2D UpsampleTrilinear3D "
    "UpsampleBilinear2DAa UpsampleBicubic2DAa ReflectionPad1D ReflectionPad2D ReflectionPad3D ReplicationPad1D "
    "ReplicationPad2D ReplicationPad3D"
)
RULES.update(dict.fromkeys(SPACE.split(), spatial(0)))
CHANNELS_TOO = "GridSampler2D GridSampler3D PixelShuffle PixelUnshuffle ChannelShuffle"
RULES.update(dict.fromkeys(CHANNELS_TOO.split(), spatial(1)))


@rule("Im2Col", "Col2Im")
def patches(visit: Visit) -> list[State]:
    return visit.all(visit.layout if visit.dim == 0 else Fate.DOUBT)


# ---- products -----------------------------------------------------------------------------------------------


@rule("Mm")
def product(visit: Visit) -> list[State]:
    return _product(visit, batch=0)


@rule("Bmm")
def batched_product(visit: Visit) -> list[State]:
    return _product(visit, batch=1)


@rule("Addmm")
def added_product(visit: Visit) -> list[State]:
    return [visit.broadcast(visit.children[0]), *_product(visit, batch=0)]


@rule("Baddbmm")
def added_batched_product(visit: Visit) -> list[State]:
    return [visit.broadcast(visit.children[0]), *_product(visit, batch=1)]


def _product(visit: Visit, batch: int) -> list[State]:
    """`[…, i, k] × […, k, j]`: rows of the result are rows of the first, columns those of the second."""
    if visit.dim < batch:
        return [visit.layout, visit.layout]
    if visit.dim == batch:
        return [visit.layout, Fate.SHARED]
    return [Fate.SHARED, visit.layout]


@rule("Mv")
def matrix_vector(visit: Visit) -> list[State]:
    return [visit.layout, Fate.SHARED]


@rule("Linear", "MkldnnLinear")
def linear(visit: Visit) -> list[State]:
    """Input, weight, bias."""
    rows = visit.dim < len(visit.shape) - 1
    count = len(visit.node.next_functions) - 1
    return [visit.layout, *[Fate.SHARED] * count] if rows else doubtful(visit)


@rule("Convolution", "ConvolutionOverrideable", "MkldnnConvolution", "CudnnConvolution", "SlowConv2D",
      "NativeGroupNorm")  # fmt: skip
def first_dim_and_weights(visit: Visit) -> list[State]:
    """The samples come first, weights and biases follow."""
    count = len(visit.node.next_functions) - 1
    return [visit.layout, *[Fate.SHARED] * count] if visit.dim == 0 else doubtful(visit)


@rule("NativeLayerNorm", "FusedRmsNorm")
def layer_norm(visit: Visit) -> list[State]:
    count = len(visit.node.next_functions) - 1
    lead = len(visit.shape) - len(visit.saved("normalized_shape"))
    return [visit.layout, *[Fate.SHARED] * count] if visit.dim < lead else doubtful(visit)


@rule("NativeBatchNorm", "CudnnBatchNorm")
def frozen_batch_norm(visit: Visit) -> list[State]:
    """With fixed statistics it scales and shifts channels; with those of the batch it mixes."""
    if visit.saved("training") or visit.dim == 1:
        return doubtful(visit)
    return [visit.layout, Fate.SHARED, Fate.SHARED]


@rule("ScaledDotProductFlashAttentionForCpu", "ScaledDotProductFlashAttention", "ScaledDotProductEfficientAttention",
      "ScaledDotProductCudnnAttention")  # fmt: skip
def attention(visit: Visit) -> list[State]:
    """Queries, keys and values of every sample and head apart; a mask is broadcast."""
    if visit.dim > 1 or visit.number > 0:
        return doubtful(visit)
    sizes = [shape is None or shape[visit.dim] == visit.shape[visit.dim] for shape in visit.children[:3]]
    first: list[State] = [visit.layout if same else Fate.DOUBT for same in sizes]
    return [*first, *[visit.broadcast(shape) for shape in visit.children[3:]]]


# ---- tables and losses --------------------------------------------------------------------------------------


@rule("Embedding", "EmbeddingBag")
def table(visit: Visit) -> list[State]:
    return visit.all(Fate.SHARED)


@rule("NllLoss", "NllLoss2D")
def classes(visit: Visit) -> list[State]:
    """`[n, …]` losses of `[n, classes, …]` scores."""
    if visit.saved("reduction") != 0:
        return doubtful(visit)
    return visit.all(visit.moved(visit.dim + (visit.dim > 0)))
