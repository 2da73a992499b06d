"""The error that a refused guarantee raises."""

from __future__ import annotations


class PrivacyError(ValueError):
    """Refuse to go on, because the privacy guarantee would not hold.

    A wrong argument raises a plain `ValueError`. A `PrivacyError` says that the arguments are well formed, but that
    the guarantee stated for them would be wrong.

    Example:
        try:
            private.watch(qg.Observer())
        except qg.PrivacyError as error:
            print(error)
    """
