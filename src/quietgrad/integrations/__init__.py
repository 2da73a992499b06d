"""Private training inside trainers of other libraries; each needs its own extra."""
