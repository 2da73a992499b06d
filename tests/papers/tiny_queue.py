"""`quietgrad papers queue` over the tiny entries: python -m tests.papers.tiny_queue gip.table5 --scale quick."""

from __future__ import annotations

import sys

from quietgrad.lab.cli.app import app
from quietgrad.lab.papers import queue
from quietgrad.lab.papers.experiment import Place
from tests.papers.tiny_entries import install

_command = queue._papers_command


def tiny_command(item: queue.QueueItem, place: Place) -> list[str]:
    """The same command, run by the program that knows the tiny entries."""
    return ["tests.papers.tiny_entries" if part == "quietgrad" else part for part in _command(item, place)]


if __name__ == "__main__":
    install()
    queue._papers_command = tiny_command
    app(["papers", "queue", *sys.argv[1:]])
