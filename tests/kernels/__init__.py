"""C kernels against their references, at every level of this processor."""
