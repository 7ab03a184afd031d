"""Threads that start together, for tests that race."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Event
from typing import TypeVar

from runstate.errors import RunstateError

T = TypeVar("T")


def race(tasks: Sequence[Callable[[], T]]) -> list[T | RunstateError]:
    """Run every task in a thread of its own, all at once; what each returned, or the error that it met."""
    start = Barrier(len(tasks))

    def run(task: Callable[[], T]) -> T | RunstateError:
        start.wait()
        try:
            return task()
        except RunstateError as error:
            return error

    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(run, tasks))


def race_all(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Like `race`, where no task may fail.

    Raises:
        RunstateError: the first that a task met.
    """
    answers: list[T] = []
    for answer in race(tasks):
        if isinstance(answer, RunstateError):
            raise answer
        answers.append(answer)
    return answers


@contextmanager
def meanwhile(watch: Callable[[Callable[[], bool]], T]) -> Iterator[Future[T]]:
    """Run `watch` in a thread while the block runs. It is handed a question to ask: is the block over?"""
    over = Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(watch, over.is_set)
        finally:
            over.set()
