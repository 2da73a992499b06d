"""Per-sample gradients in the cheapest form each layer allows."""

from quietgrad.gradients.blocks import BlockGrads, DenseGrad
from quietgrad.gradients.factored import FactoredGrad
from quietgrad.gradients.stages import BlockwiseGrads, ClippedSum, PerSampleGrads, Released

__all__ = [
    "BlockGrads",
    "BlockwiseGrads",
    "ClippedSum",
    "DenseGrad",
    "FactoredGrad",
    "PerSampleGrads",
    "Released",
]
