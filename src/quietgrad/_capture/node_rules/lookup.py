"""Which rule goes with which operation: one table for torch's operations, one for functions written in Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from torch.autograd import Function
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from quietgrad._capture.node_rules import arithmetic, movement
from quietgrad._capture.node_rules.visit import Rule, unknown

RULES: dict[str, Rule] = {
    kind: rule
    for rule, kinds in {
        arithmetic.elementwise: (
            "Abs Acos Acosh Add Addcdiv Addcmul Asin Asinh Atan Atan2 Celu Clamp ClampMax ClampMin Clone Copysign "
            "Cos Cosh Div Elu Erf Erfc Erfinv Exp Exp2 Expand Expm1 Fill FakeQuantizePerTensorAffineCachemask "
            "Fmax Fmin Frac Gelu Hardshrink Hardsigmoid Hardswish Hardtanh Hypot I0 LeakyRelu Lerp Lgamma Log "
            "Log10 Log1P Log2 LogSigmoid Logaddexp Logaddexp2 Logit MaskedFill Maximum Minimum Mish Mul NanToNum "
            "NativeDropout Neg Polar Pow PreluKernel Reciprocal Relu RreluWithNoise Rsqrt Sgn Sigmoid Sign Silu "
            "Sin Sinc Sinh Softplus Softshrink Sqrt Sub Rsub Tan Tanh Threshold ToCopy Trunc Where Xlogy Conj "
            "Alias Round Ceil Floor Digamma Atanh"
        ),
        arithmetic.elementwise_loss: (
            "BinaryCrossEntropy BinaryCrossEntropyWithLogits HuberLoss MseLoss SmoothL1Loss SoftMarginLoss"
        ),
        arithmetic.along_other_dims: (
            "Softmax LogSoftmax SafeSoftmax Cumsum Cumprod Logcumsumexp Glu Sort Topk Cummax Cummin IndexSelect "
            "FftC2C FftR2C FftC2R Flip Roll"
        ),
        arithmetic.filled: "IndexFill",
        arithmetic.gathered: "Gather Scatter ScatterAdd ScatterReduce IndexAdd IndexCopy",
        arithmetic.reduced: (
            "Sum Mean Amax Amin Logsumexp Prod Max Min Std Var VarMean StdMean LinalgVectorNorm Norm Median "
            "Kthvalue Mode Aminmax Nansum"
        ),
        arithmetic.spatial(0): (
            "AvgPool2D AvgPool3D MaxPool2DWithIndices MaxPool3DWithIndices MkldnnMaxPool2D AdaptiveAvgPool2D "
            "AdaptiveAvgPool3D AdaptiveMaxPool2D AdaptiveMaxPool3D FractionalMaxPool2D FractionalMaxPool3D "
            "MkldnnAdaptiveAvgPool2D UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D UpsampleNearestExact1D "
            "UpsampleNearestExact2D UpsampleNearestExact3D UpsampleLinear1D UpsampleBilinear2D UpsampleBicubic2D "
            "UpsampleTrilinear3D UpsampleBilinear2DAa UpsampleBicubic2DAa ReflectionPad1D ReflectionPad2D "
            "ReflectionPad3D ReplicationPad1D ReplicationPad2D ReplicationPad3D"
        ),
        arithmetic.spatial(1): "GridSampler2D GridSampler3D PixelShuffle PixelUnshuffle",
        arithmetic.channels: "ChannelShuffle",
        arithmetic.patches: "Im2Col Col2Im",
        arithmetic.product: "Mm",
        arithmetic.batched_product: "Bmm",
        arithmetic.added_product: "Addmm",
        arithmetic.added_batched_product: "Baddbmm",
        arithmetic.matrix_vector: "Mv",
        arithmetic.linear: "Linear MkldnnLinear",
        arithmetic.first_dim_and_weights: (
            "Convolution ConvolutionOverrideable MkldnnConvolution CudnnConvolution SlowConv2D NativeGroupNorm"
        ),
        arithmetic.layer_norm: "NativeLayerNorm FusedRmsNorm",
        arithmetic.frozen_batch_norm: "NativeBatchNorm CudnnBatchNorm",
        arithmetic.attention: (
            "ScaledDotProductFlashAttentionForCpu ScaledDotProductFlashAttention "
            "ScaledDotProductEfficientAttention ScaledDotProductCudnnAttention"
        ),
        arithmetic.table: "Embedding EmbeddingBag",
        arithmetic.classes: "NllLoss NllLoss2D",
        movement.viewed: "View UnsafeView ReshapeAlias Unsqueeze Squeeze",
        movement.transposed: "Transpose T",
        movement.permuted: "Permute",
        movement.complex_pairs: "ViewAsReal ViewAsComplex",
        movement.one_slice: "Select Unbind",
        movement.sliced: "Slice",
        movement.split: "Split SplitWithSizes",
        movement.concatenated: "Cat",
        movement.stacked: "Stack",
        movement.repeated: "Repeat",
        movement.indexed: "Index",
        movement.padded: "ConstantPadNd",
        movement.unfolded: "Unfold",
    }.items()
    for kind in kinds.split()
}
"""The rule of each kind of operation: the name of its node without "Backward0" and the like."""

PYTHON_RULES: dict[type, Rule] = {}
"""Rules of functions written in Python, by the class of their nodes: anybody may call one "Relu"."""


def register_rule(function: type[Function]) -> Callable[[Rule], Rule]:
    """Make a function the rule of an autograd function of this package."""

    def register(rule: Rule) -> Rule:
        PYTHON_RULES[function._backward_cls] = rule
        return rule

    return register


@cache
def _rule_named(name: str) -> Rule:
    return RULES.get(re.sub(r"Backward\d*$", "", name), unknown)


def is_user_function(node: Node) -> bool:
    """Ask whether a node is a function of the user's, whose backward need not be the derivative of its forward."""
    kind: type = type(node)
    return issubclass(kind, BackwardCFunction) and kind not in PYTHON_RULES


def rule_for(node: Node, name: str) -> Rule:
    """Return the rule of the node's kind."""
    kind: type = type(node)
    if not issubclass(kind, BackwardCFunction):
        return _rule_named(name)
    return PYTHON_RULES.get(kind, unknown)
