"""What each kind of operation does to the batch axis.

A rule is given one output of a node and the layout of the gradient there (`Visit`). It returns, for each input of the
operation, where the samples lie in the gradient that the node sends on: a `Layout`, `BatchAxis.ABSENT` if the gradient
is summed over all samples, or `BatchAxis.UNKNOWN`.

Example: y = x Wᵀ with x `[n, i]` and y `[n, o]` is a `Mm` node with the inputs x and Wᵀ. Its output has the samples
along dimension 0. Row s of y is computed from row s of x, so the gradient of x has its samples along dimension 0 too.
All rows use Wᵀ, whose gradient adds over them and has no batch axis. The rule returns `[Layout(0), ABSENT]`. Had the
samples been along dimension 1 of the output, its columns, it would return `[ABSENT, Layout(1)]`.

A rule may only say `Layout` if the operation keeps samples apart whatever the values are. An operation without a rule
leaves its inputs unknown, which costs time and never correctness: probing decides then.

Checked by: tests/capture/test_graph_analysis.py
"""
