"""Flower's log tells nothing of who was drawn: what Flower writes is imitated here, so Flower is not needed."""

from __future__ import annotations

import gc
import io
import logging
from collections.abc import Iterator

import pytest

from quietgrad.integrations.flower_log import FLOWER, PublicMessages, withhold


class Owner:
    """Stands for a strategy."""


@pytest.fixture
def screen() -> Iterator[io.StringIO]:
    """All that Flower's logger lets out, at every level."""
    text, logger = io.StringIO(), logging.getLogger(FLOWER)
    handler = logging.StreamHandler(text)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield text
    logger.removeHandler(handler)
    logger.setLevel(before)


def run_fl(sampled: int, failed: int, seconds: float) -> None:
    """The messages of a round, as Flower 1.36 words them."""
    log = logging.getLogger(FLOWER).log
    log(logging.INFO, "[ROUND %s]", 1)
    if sampled == 0:
        log(logging.INFO, "configure_fit: no clients selected, cancel")
    else:
        log(logging.INFO, "configure_fit: strategy sampled %s clients (out of %s)", sampled, 100)
        for client in range(failed):
            log(logging.ERROR, ValueError(f"client {client} is not there"))
            log(logging.WARNING, "Traceback (most recent call last): client %s", client)
        log(logging.INFO, "aggregate_fit: received %s results and %s failures", sampled - failed, failed)
    log(logging.DEBUG, "another version's words for %s clients", sampled)
    log(logging.INFO, "fit progress: (%s, %s, %s, %s)", 1, 0.5, {"accuracy": 0.5}, seconds)
    log(logging.INFO, "configure_evaluate: no clients selected, skipping evaluation")
    log(logging.INFO, "[SUMMARY]")
    log(logging.INFO, "Run finished %s round(s) in %.2fs", 1, seconds)
    log(logging.INFO, "\t%s", "History (loss, centralized):")


def test_the_log_is_the_same_whoever_was_drawn(screen: io.StringIO) -> None:
    owner, seen = Owner(), []
    messages = withhold(owner)
    messages.closed = True
    for sampled, failed, seconds in ((0, 0, 0.1), (1, 0, 1.5), (37, 5, 9.25)):
        run_fl(sampled, failed, seconds)
        seen.append(screen.getvalue())
        screen.seek(screen.truncate(0))
    assert seen[0] == seen[1] == seen[2]
    assert "[ROUND 1]" in seen[0]
    assert "History (loss, centralized)" in seen[0]
    assert "fit progress: (1, 0.5, {'accuracy': 0.5})" in seen[0]
    assert "configure_fit: strategy sampled 37 clients (out of 100)" in messages.withheld


def test_before_the_first_draw_all_passes_and_after_the_strategy_too(screen: io.StringIO) -> None:
    owner = Owner()
    messages = withhold(owner)
    logging.getLogger(FLOWER).warning("no TLS")
    messages.closed = True
    logging.getLogger(FLOWER).warning("client 3 left")
    del owner
    gc.collect()
    logging.getLogger(FLOWER).warning("another run")
    assert screen.getvalue().split("\n") == ["no TLS", "another run", ""]


def test_what_is_withheld_does_not_grow_for_ever() -> None:
    messages = PublicMessages(most=10)
    messages.closed = True
    for number in range(100):
        messages.filter(logging.LogRecord(FLOWER, logging.INFO, "", 0, "client %s", (number,), None))
    assert list(messages.withheld) == [f"client {number}" for number in range(90, 100)]
