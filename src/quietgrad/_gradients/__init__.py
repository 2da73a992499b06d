"""Per-sample gradients in the cheapest form each layer allows."""

from quietgrad._gradients.blocks import BlockGrads, DenseGrad
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.stages import BlockwiseGrads, ClippedSum, PerSampleGrads, Released

__all__ = [
    "BlockGrads",
    "BlockwiseGrads",
    "ClippedSum",
    "DenseGrad",
    "FactoredGrad",
    "PerSampleGrads",
    "Released",
]
