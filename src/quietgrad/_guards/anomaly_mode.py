"""Anomaly detection stops a backward at the first NaN: then one record decides whether the run goes on."""

from __future__ import annotations

import torch

from quietgrad._errors import PrivacyError


def refuse_stopping_at_nan() -> None:
    """Refuse `torch.autograd.set_detect_anomaly(True)`, which Lightning's `detect_anomaly=True` sets too.

    Raises:
        PrivacyError: it is on, whatever the records are. Without its check for NaN it may stay on.
    """
    if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
        raise PrivacyError(
            "Anomaly detection stops the run at a record that is not a number, which tells that it is there. Switch it "
            "off, or call torch.autograd.set_detect_anomaly(True, check_nan=False). Such a record adds zero."
        )
