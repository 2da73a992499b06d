"""Tasks in processes of their own, as many at a time as there are cores; messages come back while they run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from queue import Empty
from typing import Any, TypeVar

import torch

from quietgrad.lab.errors import LabError

Task = TypeVar("Task")

Message = dict[str, Any]

Send = Callable[[Message], None]
"""How a task reports its progress."""

OnMessage = Callable[[int, Message], None]
"""Called in the parent with a task's number and what it sent."""

RESULT, FAILURE = "result", "failure"


def run_parallel(
    tasks: Sequence[Task],
    work: Callable[[Task, Send], Any],
    on_message: OnMessage,
    *,
    workers: int | None = None,
) -> list[Any]:
    """`work(task, send)` of every task, in fresh processes of one thread each, so that peak memory is a task's own.

    On an interrupt each running task is asked to stop and may write its checkpoint; the first failure stops the others
    in the same way.
    """
    context = multiprocessing.get_context("spawn")
    messages = context.Queue()
    waiting, running = list(enumerate(tasks)), dict[int, BaseProcess]()
    results: dict[int, Any] = {}
    try:
        while waiting or running:
            while waiting and len(running) < (workers or cores()):
                number, task = waiting.pop(0)
                running[number] = context.Process(target=_run, args=(number, task, work, messages))
                running[number].start()
            for number, message in _next(messages):
                _take(number, message, results, on_message)
            for number in [n for n, process in running.items() if not process.is_alive()]:
                _check_ended(number, running.pop(number), messages, results, on_message)
    finally:
        _stop(running.values())
    return [results[number] for number in range(len(tasks))]


def cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _run(number: int, task: Any, work: Callable[[Any, Send], Any], messages: Any) -> None:
    torch.set_num_threads(1)
    try:
        messages.put((number, {RESULT: work(task, lambda message: messages.put((number, message)))}))
    except KeyboardInterrupt:
        pass
    except ValueError as error:
        messages.put((number, {FAILURE: str(error)}))
    except Exception:
        messages.put((number, {FAILURE: traceback.format_exc()}))


def _next(messages: Any, wait: float = 0.2) -> list[tuple[int, Message]]:
    """Return the messages so far, after waiting a moment for the first message."""
    found: list[tuple[int, Message]] = []
    try:
        while True:
            found.append(messages.get(timeout=0.0 if found else wait))
    except Empty:
        return found


def _take(number: int, message: Message, results: dict[int, Any], on_message: OnMessage) -> None:
    if FAILURE in message:
        raise LabError(message[FAILURE])
    if RESULT in message:
        results[number] = message[RESULT]
    else:
        on_message(number, message)


def _check_ended(
    number: int, process: BaseProcess, messages: Any, results: dict[int, Any], on_message: OnMessage
) -> None:
    """A process that ended has sent its result, perhaps just now; else it was killed."""
    process.join()
    for other, message in _next(messages):
        _take(other, message, results, on_message)
    if number not in results:
        raise LabError(
            f"A run ended with code {process.exitcode}, perhaps for lack of memory. Start the command again: it goes "
            "on where it was stopped."
        )


def _stop(processes: Any) -> None:
    left = list(processes)
    for process in left:
        if process.is_alive() and process.pid:
            os.kill(process.pid, signal.SIGTERM)
    for process in left:
        process.join()
