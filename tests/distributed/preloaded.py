"""What a rank's server imports once, in this order: what executes annotations comes before the library.

One module, because the server skips silently what it cannot import. If a test that changed the working folder starts
it, this module is not found, and then the library must not be there without its annotations.
"""

# ruff: noqa: I001, F401
import torch.distributed

import tests.annotations
import quietgrad._names
import quietgrad.distributed
import quietgrad.methods
