"""What each kind of operation does to the samples: from where they lie in its output to where they lie in its inputs.

Only operations that keep samples apart whatever the values are have a rule; all others leave their inputs in doubt.
Kinds are the names of autograd's nodes without "Backward0" and the like. A rule is known once its module is imported,
which happens here.
"""

from quietgrad.capture.node_rules import arithmetic, layers, rearranging
from quietgrad.capture.node_rules.visit import Fate, State, Visit, doubtful, is_foreign, rule_for, rule_of

__all__ = [
    "Fate",
    "State",
    "Visit",
    "arithmetic",
    "doubtful",
    "is_foreign",
    "layers",
    "rearranging",
    "rule_for",
    "rule_of",
]
