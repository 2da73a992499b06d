"""The documented example runs under torchrun as it stands, and so does a config."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def torchrun(*arguments: str, folder: Path) -> str:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *arguments,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_the_documented_loop_runs_under_torchrun(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "distributed.md").read_text()
    (script,) = re.findall(r"```python\n(# train\.py\n.*?)```", page, flags=re.DOTALL)
    (tmp_path / "train.py").write_text(script)
    printed = torchrun("train.py", "ledger.jsonl", folder=tmp_path)
    epsilon = float(printed.split("epsilon")[1])
    assert 2.9 < epsilon <= 3.0
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 1 + 20


@pytest.mark.slow
def test_a_config_trains_on_two_ranks(tmp_path: Path) -> None:
    config = ROOT / "configs" / "dp_sgd_embedded_eps2.toml"
    small = ["--set", "training.epochs=0.5", "--set", "data.private=2000", "--set", "data.test=200"]
    printed = torchrun("-m", "quietgrad.lab.run.train", str(config), "--out", "run", *small, folder=tmp_path)
    assert printed.count("accuracy") == 1  # one rank speaks
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["covered"]
    assert 1.9 < results["epsilon"] <= 2.0
    assert len((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()) == 1 + results["steps"]
