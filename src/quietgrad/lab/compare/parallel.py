"""Jobs in processes of their own, as many at a time as there are cores; messages come back while they run."""

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

Job = TypeVar("Job")
Tell = Callable[[dict[str, Any]], None]
Heard = Callable[[int, dict[str, Any]], None]
"""Called with a job's number and what it told."""

RESULT, FAILURE = "result", "failure"


def run_parallel(
    jobs: Sequence[Job], work: Callable[[Job, Tell], Any], heard: Heard, *, workers: int | None = None
) -> list[Any]:
    """`work(job, tell)` of every job, in fresh processes of one thread each, so that peak memory is a job's own.

    On an interrupt each running job is asked to stop and may write its checkpoint; the first failure stops the others
    in the same way.
    """
    context = multiprocessing.get_context("spawn")
    messages = context.Queue()
    waiting, running = list(enumerate(jobs)), dict[int, BaseProcess]()
    results: dict[int, Any] = {}
    try:
        while waiting or running:
            while waiting and len(running) < (workers or cores()):
                number, job = waiting.pop(0)
                running[number] = context.Process(target=_run, args=(number, job, work, messages))
                running[number].start()
            for number, message in _next(messages):
                _take(number, message, results, heard)
            for number in [n for n, process in running.items() if not process.is_alive()]:
                _check_ended(number, running.pop(number), messages, results, heard)
    finally:
        _stop(running.values())
    return [results[number] for number in range(len(jobs))]


def cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _run(number: int, job: Any, work: Callable[[Any, Tell], Any], messages: Any) -> None:
    torch.set_num_threads(1)
    try:
        messages.put((number, {RESULT: work(job, lambda message: messages.put((number, message)))}))
    except KeyboardInterrupt:
        pass
    except ValueError as error:
        messages.put((number, {FAILURE: str(error)}))
    except Exception:
        messages.put((number, {FAILURE: traceback.format_exc()}))


def _next(messages: Any, wait: float = 0.2) -> list[tuple[int, dict[str, Any]]]:
    """What was told, after waiting a moment for the first message."""
    found: list[tuple[int, dict[str, Any]]] = []
    try:
        while True:
            found.append(messages.get(timeout=0.0 if found else wait))
    except Empty:
        return found


def _take(number: int, message: dict[str, Any], results: dict[int, Any], heard: Heard) -> None:
    if FAILURE in message:
        raise LabError(message[FAILURE])
    if RESULT in message:
        results[number] = message[RESULT]
    else:
        heard(number, message)


def _check_ended(
    number: int, process: BaseProcess, messages: Any, results: dict[int, Any], heard: Heard
) -> None:
    """A process that ended has told its result, perhaps just now; else it was killed."""
    process.join()
    for other, message in _next(messages):
        _take(other, message, results, heard)
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
