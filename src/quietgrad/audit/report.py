"""What an audit says: the claim, what was measured, with which confidence, and what the attack assumed."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["consistent", "violated", "not private"]


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """One attack's lower bound on ε beside the claimed ε; `print` it, or read the fields.

    Args:
        attack: which attack.
        claimed: ε of the plan at `delta`; inf for a run without noise.
        lower_bound: what the attack proved, at `confidence`.
        reachable: the largest bound that this attack could have shown here, if it is known.
        assumptions: what has to be true for the bound to hold.
        details: plain data about the measurement.

    Example:
        report = qg.audit.audit_mechanism(model, mechanism, records=40, rate=0.25, steps=1, delta=1e-5)
        assert report.lower_bound <= report.claimed
    """

    attack: str
    claimed: float
    delta: float
    lower_bound: float
    confidence: float
    assumptions: tuple[str, ...]
    reachable: float | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """A bound above the claim is a violation; a run without noise claims nothing."""
        if math.isinf(self.claimed):
            return "not private"
        return "violated" if self.lower_bound > self.claimed else "consistent"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: an infinite ε becomes the string "inf"."""
        return {**_finite(dataclasses.asdict(self)), "verdict": self.verdict}

    def __str__(self) -> str:
        reachable = "" if self.reachable is None else f" (this attack can show at most {self.reachable:.3g})"
        lines = [
            f"{self.attack}: {self.verdict}",
            f"  claimed ε = {self.claimed:.4g} at δ = {self.delta:g}; "
            f"measured ε ≥ {self.lower_bound:.4g} with {self.confidence:.1%} confidence{reachable}",
            *(f"  assumes {assumption}" for assumption in self.assumptions),
        ]
        if self.verdict == "not private":
            lines.append("  the run added no noise: no ε is claimed, and the attack should succeed")
        return "\n".join(lines)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return "inf" if isinstance(value, float) and math.isinf(value) else value
