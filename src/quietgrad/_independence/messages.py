"""What is said about a loop that cannot be asked, or that collates to lengths which follow the draw."""

from __future__ import annotations

NOT_CHECKED = "independence not checked"
NOT_PASSED = "the loop did not pass every micro-batch to backward"
RAGGED = (
    "Records are collated to a length that depends on the other records of their micro-batch, as padding to the "
    "longest does: that length is data, and the rounding of every row follows it. Pad to a constant, "
    "PoissonBatches(…, pad_to=128) or collate_fn=qg.pad_collate(128), or state pad_to='longest', which explain() and "
    "statements then name."
)
LEFT = (
    "Whether records influence each other was not checked: the loop left batch.split(size) before it could be asked. "
    "Iterate over all of it, and call release() after that loop, not inside it."
)
DATA_LOADER = (
    "Whether records influence each other was not checked: a loop over a DataLoader cannot be asked. Call "
    "private.check_independence(losses_of, dataset, collate_fn) once, or iterate over PoissonBatches."
)
