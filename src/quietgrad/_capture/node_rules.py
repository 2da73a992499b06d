"""What each kind of operation does to the samples: from where they lie in its output to where they lie in its inputs.

Only operations that keep samples apart whatever the values are have a rule; all others leave their inputs in doubt.
Kinds are the names of autograd's nodes without "Backward0" and the like.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from quietgrad._capture.layout import BatchAxis, BatchLayout, Visit, at_stride, stride_of, wrapped

Rule = Callable[[Visit], list[BatchLayout]]
RULES: dict[str, Rule] = {}


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


OWN: dict[type, Rule] = {}
"""Rules of functions that are written in Python, by their nodes' class: anybody may call one "Relu"."""


def rule_of(function: type[Function]) -> Callable[[Rule], Rule]:
    def register(apart: Rule) -> Rule:
        OWN[function._backward_cls] = apart
        return apart

    return register


def doubtful(visit: Visit) -> list[BatchLayout]:
    return visit.all(BatchAxis.UNKNOWN)


# ---- one element for one element, along a dimension, and over one --------------------------------------------


ELEMENTWISE = (
    "Abs Acos Acosh Add Addcdiv Addcmul Asin Asinh Atan Atan2 "
    "Celu Clamp ClampMax ClampMin Clone Copysign Cos Cosh Div Elu Erf Erfc "
    "Erfinv Exp Exp2 Expand Expm1 Fill FakeQuantizePerTensorAffineCachemask Fmax Fmin Frac Gelu "
    "Hardshrink Hardsigmoid Hardswish Hardtanh Hypot I0 LeakyRelu Lerp Lgamma Log Log10 Log1P "
    "Log2 LogSigmoid Logaddexp Logaddexp2 Logit MaskedFill Maximum Minimum Mish Mul NanToNum "
    "NativeDropout Neg Polar Pow PreluKernel Reciprocal Relu RreluWithNoise Rsqrt Sgn Sigmoid Sign Silu "
    "Sin Sinc Sinh Softplus Softshrink Sqrt Sub Rsub Tan Tanh Threshold ToCopy Trunc Where "
    "Xlogy Conj Alias Round Ceil Floor Digamma Atanh"
)


@rule(*ELEMENTWISE.split())
def elementwise(visit: Visit) -> list[BatchLayout]:
    """Inputs are broadcast to the output: dimensions agree from the last one on, and a size of one is shared."""
    if len(visit.following) == 1:  # most often
        return [visit.broadcast(visit.first_child)]
    return [visit.broadcast(shape) for shape in visit.children]


@rule(
    "BinaryCrossEntropy",
    "BinaryCrossEntropyWithLogits",
    "HuberLoss",
    "MseLoss",
    "SmoothL1Loss",
    "SoftMarginLoss",
)
def elementwise_loss(visit: Visit) -> list[BatchLayout]:
    """The same, if it was not reduced."""
    return doubtful(visit) if visit.saved("reduction") != 0 else elementwise(visit)


@rule("Softmax", "LogSoftmax", "SafeSoftmax", "Cumsum", "Cumprod", "Logcumsumexp", "Glu", "Sort", "Topk", "Cummax",
      "Cummin", "IndexSelect", "IndexFill", "FftC2C", "FftR2C", "FftC2R", "Flip", "Roll")  # fmt: skip
def along_other_dims(visit: Visit) -> list[BatchLayout]:
    """Reads and writes along some dimensions, which are not that of the samples; all others stay as they are."""
    rank = len(visit.shape)
    name = "dim" if hasattr(visit.node, "_saved_dim") else "dims"
    given = visit.saved(name)
    touched = (
        visit.saved_dims(rank, name) if isinstance(given, list | tuple) else {visit.saved_dim(rank, name)}
    )
    return visit.all(BatchAxis.UNKNOWN if visit.dim in touched else visit.layout)


@rule("Gather", "Scatter", "ScatterAdd", "ScatterReduce", "IndexAdd", "IndexCopy")
def gathered(visit: Visit) -> list[BatchLayout]:
    """As along other dimensions; an index that covers fewer samples than there are would shift nothing, but is rare."""
    same = all(
        s is None or s[visit.dim] == visit.shape[visit.dim] for s in visit.children if s is None or len(s)
    )
    apart = visit.saved_dim(len(visit.shape)) != visit.dim
    return visit.all(visit.layout if same and apart else BatchAxis.UNKNOWN)


@rule("Sum", "Mean", "Amax", "Amin", "Logsumexp", "Prod", "Max", "Min", "Std", "Var", "VarMean", "StdMean",
      "LinalgVectorNorm", "Norm", "Median", "Kthvalue", "Mode", "Aminmax", "Nansum")  # fmt: skip
def reduced(visit: Visit) -> list[BatchLayout]:
    """The output's dimensions are those of the input that were kept."""
    shape = visit.first_child
    if shape is None or not hasattr(visit.node, "_saved_dim"):
        return doubtful(visit)
    given = visit.saved("dim")
    rank = len(shape)
    gone = (
        visit.saved_dims(rank)
        if isinstance(given, list | tuple) or given is None
        else {visit.saved_dim(rank)}
    )
    if len(visit.shape) == rank:
        return visit.all(BatchAxis.UNKNOWN if visit.dim in gone else visit.layout)
    kept = [dim for dim in range(rank) if dim not in gone]
    return visit.all(visit.moved(kept[visit.dim]))


# ---- space --------------------------------------------------------------------------------------------------


def spatial(channels: int) -> Rule:
    """Operations on the last dimensions, as many as the number in their name says, and on some more before them."""

    def apply(visit: Visit) -> list[BatchLayout]:
        lead = len(visit.shape) - _space(named(visit.node)) - channels
        states = visit.all(visit.layout if visit.dim < lead else BatchAxis.UNKNOWN)
        same = all(
            s is None or (len(s) > visit.dim and s[visit.dim] == visit.shape[visit.dim])
            for s in visit.children
        )
        return states if same else doubtful(visit)

    return apply


@cache
def _space(name: str) -> int:
    found = re.search(r"([123])d", name, re.IGNORECASE)
    return int(found[1]) if found else 2


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
def patches(visit: Visit) -> list[BatchLayout]:
    return visit.all(visit.layout if visit.dim == 0 else BatchAxis.UNKNOWN)


# ---- products -----------------------------------------------------------------------------------------------


@rule("Mm")
def product(visit: Visit) -> list[BatchLayout]:
    return _product(visit, batch=0)


@rule("Bmm")
def batched_product(visit: Visit) -> list[BatchLayout]:
    return _product(visit, batch=1)


@rule("Addmm")
def added_product(visit: Visit) -> list[BatchLayout]:
    return [visit.broadcast(visit.first_child), *_product(visit, batch=0)]


@rule("Baddbmm")
def added_batched_product(visit: Visit) -> list[BatchLayout]:
    return [visit.broadcast(visit.first_child), *_product(visit, batch=1)]


def _product(visit: Visit, batch: int) -> list[BatchLayout]:
    """`[…, i, k] × […, k, j]`: rows of the result are rows of the first, columns those of the second."""
    if visit.dim < batch:
        return [visit.layout, visit.layout]
    if visit.dim == batch:
        return [visit.layout, BatchAxis.ABSENT]
    return [BatchAxis.ABSENT, visit.layout]


@rule("Mv")
def matrix_vector(visit: Visit) -> list[BatchLayout]:
    return [visit.layout, BatchAxis.ABSENT]


@rule("Linear", "MkldnnLinear")
def linear(visit: Visit) -> list[BatchLayout]:
    """Input, weight, bias."""
    rows = visit.dim < len(visit.shape) - 1
    count = len(visit.following) - 1
    return [visit.layout, *[BatchAxis.ABSENT] * count] if rows else doubtful(visit)


@rule("Convolution", "ConvolutionOverrideable", "MkldnnConvolution", "CudnnConvolution", "SlowConv2D",
      "NativeGroupNorm")  # fmt: skip
def first_dim_and_weights(visit: Visit) -> list[BatchLayout]:
    """The samples come first, weights and biases follow."""
    count = len(visit.following) - 1
    return [visit.layout, *[BatchAxis.ABSENT] * count] if visit.dim == 0 else doubtful(visit)


@rule("NativeLayerNorm", "FusedRmsNorm")
def layer_norm(visit: Visit) -> list[BatchLayout]:
    count = len(visit.following) - 1
    lead = len(visit.shape) - len(visit.saved("normalized_shape"))
    return [visit.layout, *[BatchAxis.ABSENT] * count] if visit.dim < lead else doubtful(visit)


@rule("NativeBatchNorm", "CudnnBatchNorm")
def frozen_batch_norm(visit: Visit) -> list[BatchLayout]:
    """With fixed statistics it scales and shifts channels; with those of the batch it mixes."""
    if visit.saved("training") or visit.dim == 1:
        return doubtful(visit)
    return [visit.layout, BatchAxis.ABSENT, BatchAxis.ABSENT]


@rule("ScaledDotProductFlashAttentionForCpu", "ScaledDotProductFlashAttention", "ScaledDotProductEfficientAttention",
      "ScaledDotProductCudnnAttention")  # fmt: skip
def attention(visit: Visit) -> list[BatchLayout]:
    """Queries, keys and values of every sample and head apart; a mask is broadcast."""
    if visit.dim > 1 or visit.number > 0:
        return doubtful(visit)
    sizes = [shape is None or shape[visit.dim] == visit.shape[visit.dim] for shape in visit.children[:3]]
    first: list[BatchLayout] = [visit.layout if same else BatchAxis.UNKNOWN for same in sizes]
    return [*first, *[visit.broadcast(shape) for shape in visit.children[3:]]]


# ---- tables and losses --------------------------------------------------------------------------------------


@rule("Embedding", "EmbeddingBag")
def table(visit: Visit) -> list[BatchLayout]:
    return visit.all(BatchAxis.ABSENT)


@rule("NllLoss", "NllLoss2D")
def classes(visit: Visit) -> list[BatchLayout]:
    """`[n, …]` losses of `[n, classes, …]` scores."""
    if visit.saved("reduction") != 0:
        return doubtful(visit)
    return visit.all(visit.moved(visit.dim + (visit.dim > 0)))


# ---- the same elements in other places -----------------------------------------------------------------------


@rule("View", "UnsafeView", "ReshapeAlias", "Unsqueeze", "Squeeze")
def viewed(visit: Visit) -> list[BatchLayout]:
    """Row-major order stays, and so does the distance between neighbouring samples."""
    shape = visit.first_child
    found = None if shape is None else at_stride(stride_of(visit.layout, visit.shape), shape, visit.n)
    return visit.all(found or BatchAxis.UNKNOWN)


@rule("Transpose", "T")
def transposed(visit: Visit) -> list[BatchLayout]:
    rank = len(visit.shape)
    a, b = (
        (0, rank - 1)
        if not hasattr(visit.node, "_saved_dim0")
        else (visit.saved_dim(rank, "dim0"), visit.saved_dim(rank, "dim1"))
    )
    return visit.all(visit.moved({a: b, b: a}.get(visit.dim, visit.dim)))


@rule("Permute")
def permuted(visit: Visit) -> list[BatchLayout]:
    return visit.all(visit.moved(wrapped(visit.saved("dims")[visit.dim], len(visit.shape))))


@rule("ViewAsReal", "ViewAsComplex")
def complex_pairs(visit: Visit) -> list[BatchLayout]:
    """The last dimension comes or goes."""
    ranks = [len(shape) for shape in visit.children if shape is not None]
    return visit.all(visit.layout if visit.dim < min(ranks, default=0) else BatchAxis.UNKNOWN)


# ---- parts and wholes ---------------------------------------------------------------------------------------


@rule("Select", "Unbind")
def one_slice(visit: Visit) -> list[BatchLayout]:
    """The input has one dimension more."""
    taken = visit.saved_dim(len(visit.shape) + 1)
    return visit.all(visit.moved(visit.dim + (taken <= visit.dim)))


@rule("Slice")
def sliced(visit: Visit) -> list[BatchLayout]:
    if visit.saved_dim(len(visit.shape)) != visit.dim:
        return visit.all(visit.layout)
    start, step = visit.saved("start") or 0, visit.saved("step")
    return visit.all(
        _in_phase(visit, start, visit.first_child) if step == 1 and start >= 0 else BatchAxis.UNKNOWN
    )


@rule("Split", "SplitWithSizes")
def split(visit: Visit) -> list[BatchLayout]:
    if visit.saved_dim(len(visit.shape)) != visit.dim:
        return visit.all(visit.layout)
    sizes = getattr(visit.node, "_saved_split_sizes", None)
    start = sum(sizes[: visit.number]) if sizes else visit.saved("split_size") * visit.number
    return visit.all(_in_phase(visit, start, visit.first_child))


def _in_phase(visit: Visit, start: int, shape: torch.Size | None) -> BatchLayout:
    """Part of a longer dimension: the samples come round every n·inner positions, if they do so there too."""
    period = visit.n * visit.layout.inner
    fits = shape is not None and shape[visit.dim] % period == 0 and start % period == 0
    return visit.layout if fits else BatchAxis.UNKNOWN


@rule("Cat")
def concatenated(visit: Visit) -> list[BatchLayout]:
    if visit.saved_dim(len(visit.shape)) != visit.dim:
        return visit.all(visit.layout)
    period = visit.n * visit.layout.inner
    whole = all(shape is not None and shape[visit.dim] % period == 0 for shape in visit.children)
    return visit.all(visit.layout if whole else BatchAxis.UNKNOWN)


@rule("Stack")
def stacked(visit: Visit) -> list[BatchLayout]:
    added = visit.saved_dim(len(visit.shape))
    return visit.all(
        BatchAxis.UNKNOWN if added == visit.dim else visit.moved(visit.dim - (added < visit.dim))
    )


@rule("Repeat")
def repeated(visit: Visit) -> list[BatchLayout]:
    """Copies lie one after the other, so the samples come round in the same order."""
    shape = visit.first_child
    dim = visit.dim - (len(visit.shape) - len(shape or ()))
    if shape is None or dim < 0 or shape[dim] == 1:
        return visit.all(BatchAxis.ABSENT if shape is not None else BatchAxis.UNKNOWN)
    return visit.all(
        visit.moved(dim) if shape[dim] % (visit.n * visit.layout.inner) == 0 else BatchAxis.UNKNOWN
    )


@rule("Index")
def indexed(visit: Visit) -> list[BatchLayout]:
    """Other dimensions are indexed, or sample i's part is asked for under number i (`x[arange(n), last]`)."""
    indices = list(visit.saved("indices"))
    if visit.layout.inner != 1 or any(i is not None and i.dtype != torch.long for i in indices):
        return doubtful(visit)
    used = [place for place, index in enumerate(indices) if index is not None]
    if used != list(range(used[0], used[-1] + 1)):
        return doubtful(visit)
    first, added = used[0], max(indices[place].dim() for place in used)
    if visit.dim < first:
        return visit.all(visit.layout)
    if visit.dim >= first + added:
        return visit.all(visit.moved(visit.dim - added + len(used)))
    counted = [p for p in used if _counts(indices[p], visit.n, added - 1 - (visit.dim - first))]
    return visit.all(visit.moved(counted[0]) if counted else BatchAxis.UNKNOWN)


def _counts(index: Tensor, n: int, after: int) -> bool:
    """Whether an index is 0, 1, … n − 1 along the dimension that has `after` more behind it, and nothing else."""
    if index.numel() != n or index.dim() <= after or index.shape[index.dim() - 1 - after] != n:
        return False
    return torch.equal(index.flatten(), torch.arange(n, device=index.device))


@rule("ConstantPadNd")
def padded(visit: Visit) -> list[BatchLayout]:
    first = len(visit.shape) - len(visit.saved("pad")) // 2
    return visit.all(visit.layout if visit.dim < first else BatchAxis.UNKNOWN)


@rule("Unfold")
def unfolded(visit: Visit) -> list[BatchLayout]:
    """`x.unfold(dimension, …)`: windows become a last dimension."""
    rank = len(visit.shape) - 1
    touched = {visit.saved_dim(rank, "dimension"), rank}
    return visit.all(BatchAxis.UNKNOWN if visit.dim in touched else visit.layout)


# ---- which rule goes with which operation --------------------------------------------------------------------


@cache
def _rule_named(name: str) -> Rule:
    kind = re.sub(r"Backward\d*$", "", name)
    return RULES.get(kind, doubtful)


KNOWN: dict[type, str] = {}
"""The names of autograd's own kinds of nodes, each of which is a class: it makes the string anew when it is asked."""


def named(node: Node) -> str:
    """What kind of operation a node is; to be found in `KNOWN` from then on if its class says the same of all."""
    name = node.name()
    kind: type = type(node)
    if kind.__name__ == name and not issubclass(kind, BackwardCFunction):
        KNOWN[kind] = name
    return name


def is_user_function(node: Node) -> bool:
    """Whether it is a function of the user's, whose backward need not be the derivative of what it computes."""
    kind: type = type(node)
    return issubclass(kind, BackwardCFunction) and kind not in OWN


def rule_for(node: Node, name: str) -> Rule:
    """The rule of the node's kind."""
    kind: type = type(node)
    if not issubclass(kind, BackwardCFunction):
        return _rule_named(name)
    return OWN.get(kind, doubtful)
