"""Commands that compute nothing answer without torch: imports are counted, since times depend on the machine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "torch",
    "numpy",
    "scipy",
    "matplotlib",
    "pandas",
    "sklearn",
    "dp_accounting",
    "cryptography",
}

ASKED = """
import contextlib, io, json, os, sys
from quietgrad.__main__ import main
said = {}
for words in json.loads(sys.argv[1]):
    if words[:1] == ["TAB"]:
        os.environ |= {"COMP_WORDS": " ".join(words[1:]), "COMP_CWORD": str(len(words) - 2)}
        os.environ["_QUIETGRAD_COMPLETE"] = "complete_bash"
    sys.argv = ["quietgrad", *words]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(SystemExit):
        main()
    os.environ.pop("_QUIETGRAD_COMPLETE", None)
    said[" ".join(words)] = out.getvalue()
print(json.dumps({"said": said, "modules": sorted({name.split(".")[0] for name in sys.modules})}))
"""

COMMANDS = [
    ["--version"],
    ["--help"],
    ["train", "--help"],
    ["verify", "--help"],
    ["trian"],
    ["train", "--no-such-option"],
    ["TAB", "quietgrad", "ver"],
    ["TAB", "quietgrad", "train", "dp_sgd_emb"],
]


@pytest.fixture(scope="module")
def answer() -> dict[str, dict[str, str]]:
    done = subprocess.run(
        [sys.executable, "-c", ASKED, json.dumps(COMMANDS)], capture_output=True, text=True, check=True
    )
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


def test_help_version_completion_and_typos_import_nothing_heavy(answer: dict[str, dict[str, str]]) -> None:
    assert HEAVY & set(answer["modules"]) == set()


def test_each_of_them_answers(answer: dict[str, dict[str, str]]) -> None:
    said = answer["said"]
    assert said["--version"].startswith("quietgrad ")
    assert "verify" in said["--help"]
    assert "--resume" in said["train --help"]
    assert "train" in said["trian"]
    assert "No such option" in said["train --no-such-option"]
    assert said["TAB quietgrad ver"].split() == ["verify"]
    assert said["TAB quietgrad train dp_sgd_emb"].split() == ["dp_sgd_embedded_eps2"]
