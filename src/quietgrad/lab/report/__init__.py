"""One self-contained HTML page about runs or a comparison."""

from __future__ import annotations

from quietgrad.lab.report.page import write_report

__all__ = ["write_report"]
