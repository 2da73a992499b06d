"""C kernels for what torch has no fast way to; each has its torch implementation beside it, which is the reference."""
