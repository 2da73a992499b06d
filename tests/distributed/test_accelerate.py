"""`accelerate launch` with two processes runs the Trainer's example and the documented loop."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import quietgrad as qg

ROOT = Path(__file__).parents[2]
pytest.importorskip("accelerate")


def accelerate(*arguments: str, folder: Path) -> str:
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [*command, "--main_process_port", "0", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_the_documented_loop_runs_under_accelerate(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "distributed.md").read_text()
    (script,) = re.findall(r"```python\n(# train_accelerate\.py\n.*?)```", page, flags=re.DOTALL)
    (tmp_path / "train.py").write_text(script)
    printed = accelerate("train.py", folder=tmp_path)
    assert 2.9 < float(printed.split("epsilon")[1]) <= 3.0
    assert len((tmp_path / "accelerate.jsonl").read_text().splitlines()) == 1 + 10


@pytest.mark.slow
def test_the_trainers_example_runs_under_accelerate(tmp_path: Path) -> None:
    from tests.integrations.tiny_text import bert
    from tests.integrations.tokens import tokenizer

    model: Any = bert(num_labels=2, max_position_embeddings=64)
    model.save_pretrained(tmp_path / "bert")
    tokenizer().save_pretrained(tmp_path / "bert")
    rows = [f"w{n % 7} w{n % 5}\t{n % 2}" for n in range(40)]
    for name, some in (("train.tsv", rows), ("dev.tsv", rows[:4])):
        (tmp_path / name).write_text("\n".join(["sentence\tlabel", *some]))
    example = str(ROOT / "examples" / "sst2_trainer.py")
    printed = accelerate(
        example, "train.tsv", "dev.tsv", "--model", "bert", "--epochs", "2", "--out", "out", folder=tmp_path
    )
    assert printed.count("epsilon = 8.00") == 2  # every process prints it
    # 40 records, batches of 64 · 16 · 2: one step an epoch, of one release for both processes.
    assert len((tmp_path / "out" / "ledger.jsonl").read_text().splitlines()) == 1 + 2
    assert (tmp_path / "out" / "checkpoint-2" / "privacy.pt").exists()


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA"])
def test_plugins_that_touch_gradients_are_refused(kind: str) -> None:
    pytest.importorskip("transformers")
    from quietgrad.integrations.hugging_face.refused_arguments import refuse_plugins

    refuse_plugins("MULTI_GPU", 1)
    with pytest.raises(qg.PrivacyError, match=f"configured with {kind}"):
        refuse_plugins(kind, 1)
