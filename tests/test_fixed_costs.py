"""The command that counts what a private step costs beside its arithmetic."""

from __future__ import annotations

import json

import pytest
import torch
from benchmarks import fixed_costs


def test_calls_and_processor_time_of_a_small_model(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        fixed_costs.main(["--models", "small", "--repeats", "2", "--json"])
    finally:
        torch.set_num_threads(threads)
    (found,) = json.loads(capsys.readouterr().out)["models"]
    # About 5,190 in November 2026, those of the tests' own wrappers among them: a step that does things twice shows.
    assert 500 < found["calls"] < 5_700
    assert found["plain_us"] > 0
    assert found["ratio"] == pytest.approx(found["private_us"] / found["plain_us"])
