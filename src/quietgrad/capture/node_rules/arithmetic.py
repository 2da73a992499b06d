"""Arithmetic: one element for one element, along a dimension, and over one."""

from __future__ import annotations

from quietgrad.capture.node_rules.visit import Fate, State, Visit, doubtful, rule

ELEMENTWISE = (
    "Abs Acos Acosh Add Addcdiv Addcmul Asin Asinh Atan Atan2 BinaryCrossEntropy "
    "BinaryCrossEntropyWithLogits Celu Clamp ClampMax ClampMin Clone Copysign Cos Cosh Div Elu Erf Erfc "
    "Erfinv Exp Exp2 Expand Expm1 Fill FakeQuantizePerTensorAffineCachemask Fmax Fmin Frac Gelu "
    "Hardshrink Hardsigmoid Hardswish Hardtanh HuberLoss Hypot I0 LeakyRelu Lerp Lgamma Log Log10 Log1P "
    "Log2 LogSigmoid Logaddexp Logaddexp2 Logit MaskedFill Maximum Minimum Mish MseLoss Mul NanToNum "
    "NativeDropout Neg Polar Pow PreluKernel Reciprocal Relu RreluWithNoise Rsqrt Sgn Sigmoid Sign Silu "
    "Sin Sinc Sinh SmoothL1Loss Softplus Softshrink Sqrt Sub Rsub Tan Tanh Threshold ToCopy Trunc Where "
    "Xlogy Conj Alias SoftMarginLoss Round Ceil Floor Digamma Atanh"
)


@rule(*ELEMENTWISE.split())
def elementwise(visit: Visit) -> list[State]:
    """Inputs are broadcast to the output: dimensions agree from the last one on, and a size of one is shared."""
    if getattr(visit.node, "_saved_reduction", 0) != 0:
        return doubtful(visit)
    return [visit.broadcast(shape) for shape in visit.children]


@rule("Softmax", "LogSoftmax", "SafeSoftmax", "Cumsum", "Cumprod", "Logcumsumexp", "Glu", "Sort", "Topk", "Cummax",
      "Cummin", "IndexSelect", "IndexFill", "FftC2C", "FftR2C", "FftC2R", "Flip", "Roll")  # fmt: skip
def along_other_dims(visit: Visit) -> list[State]:
    """Reads and writes along some dimensions, which are not that of the samples; all others stay as they are."""
    rank = len(visit.shape)
    name = "dim" if hasattr(visit.node, "_saved_dim") else "dims"
    given = visit.saved(name)
    touched = (
        visit.saved_dims(rank, name) if isinstance(given, list | tuple) else {visit.saved_dim(rank, name)}
    )
    return visit.all(Fate.DOUBT if visit.dim in touched else visit.layout)


@rule("Gather", "Scatter", "ScatterAdd", "ScatterReduce", "IndexAdd", "IndexCopy")
def gathered(visit: Visit) -> list[State]:
    """As along other dimensions; an index that covers fewer samples than there are would shift nothing, but is rare."""
    same = all(
        s is None or s[visit.dim] == visit.shape[visit.dim] for s in visit.children if s is None or len(s)
    )
    apart = visit.saved_dim(len(visit.shape)) != visit.dim
    return visit.all(visit.layout if same and apart else Fate.DOUBT)


@rule("Sum", "Mean", "Amax", "Amin", "Logsumexp", "Prod", "Max", "Min", "Std", "Var", "VarMean", "StdMean",
      "LinalgVectorNorm", "Norm", "Median", "Kthvalue", "Mode", "Aminmax", "Nansum")  # fmt: skip
def reduced(visit: Visit) -> list[State]:
    """The output's dimensions are those of the input that were kept."""
    shape = visit.children[0]
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
        return visit.all(Fate.DOUBT if visit.dim in gone else visit.layout)
    kept = [dim for dim in range(rank) if dim not in gone]
    return visit.all(visit.moved(kept[visit.dim]))
