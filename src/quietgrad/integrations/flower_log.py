"""Filter what Flower logs of private rounds.

Who was drawn, answered or failed is private, so only known messages pass.

Flower writes in each round how many clients were sampled and how many results came back, who failed, and how long it
took. Under Poisson sampling the number of clients is what a neighbour changes, and ε does not pay for telling it.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque

FLOWER = "flwr"
"""The one logger of Flower."""

WITHOUT_SECONDS = {
    "fit progress: (%s, %s, %s, %s)": "fit progress: (%s, %s, %s)",
    "Run finished %s round(s) in %.2fs": "Run finished %s round(s)",
}
"""Messages whose last argument, a time, depends on the draw → what passes of them."""

SAME_FOR_ALL_DRAWS = {
    "",
    "[INIT]",
    "Using initial global parameters provided by strategy",
    "Starting evaluation of initial global parameters",
    "Evaluation returned no results (`None`)",
    "initial parameters (loss, other metrics): %s, %s",
    "[ROUND %s]",
    "configure_evaluate: no clients selected, skipping evaluation",
    "[SUMMARY]",
    *WITHOUT_SECONDS.values(),
}
"""Messages that no draw changes."""


class PublicMessages(logging.Filter):
    """Pass all messages until closed, then only those that no draw changes.

    A list of what passes and not of what is held back: a message that another version of Flower adds is private until
    somebody has looked at it.

    Attributes:
        withheld: the last messages that did not pass, for the operator. Private.
    """

    def __init__(self, most: int = 1000) -> None:
        super().__init__()
        self.closed = False
        self.withheld: deque[str] = deque(maxlen=most)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record passes; its seconds never do."""
        if not self.closed:
            return True
        template = str(record.msg)
        if template in WITHOUT_SECONDS and isinstance(record.args, tuple):
            record.msg, record.args = WITHOUT_SECONDS[template], record.args[:-1]
            return True
        # Lines of the History have no template of their own; it holds public metrics only.
        of_history = template == "\t%s" and record.funcName == "run_fl"
        if template in SAME_FOR_ALL_DRAWS or of_history:
            return True
        self.withheld.append(record.getMessage())
        return False


def withhold(owner: object) -> PublicMessages:
    """Filter Flower's log for as long as the owner lives."""
    messages = PublicMessages()
    logger = logging.getLogger(FLOWER)
    logger.addFilter(messages)
    weakref.finalize(owner, logger.removeFilter, messages)
    return messages
