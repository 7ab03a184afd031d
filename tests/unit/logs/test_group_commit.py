"""The line in which jobs wait for a shared flush: who leads it, who shares it, and what an interrupt leaves behind."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from linecache import getline
from time import monotonic, sleep
from types import FrameType
from typing import Any

import pytest

from runstate.errors import AppendOutcomeUnknown, LogClosed, LogFull
from runstate.logs import group_commit
from runstate.logs.group_commit import GroupCommit

patience_s = 20


class Jobs:
    """A flush that can be held up, and that answers each job with its double. Negative ones are refused."""

    def __init__(self, **options: Any) -> None:
        self.groups: list[list[int]] = []
        self.leaders: list[threading.Thread] = []
        self.is_open = threading.Event()
        self.is_open.set()
        self.has_begun = threading.Event()
        self.failure: Exception | None = None
        self.line = GroupCommit(self._flush, self._answer, **options)

    def _flush(self, jobs: list[int]) -> None:
        self.groups.append(jobs)
        self.leaders.append(threading.current_thread())
        self.has_begun.set()
        assert self.is_open.wait(patience_s)
        if self.failure is not None:
            raise self.failure

    def _answer(self, job: int) -> int:
        if job < 0:
            raise LogFull()
        return 2 * job

    def hold(self) -> None:
        self.is_open.clear()
        self.has_begun.clear()

    def wait_for_line(self, length: int) -> None:
        deadline = monotonic() + patience_s
        while len(self.line._line) != length:
            assert monotonic() < deadline
            sleep(0.0005)


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    jobs = Jobs()
    yield jobs
    jobs.is_open.set()
    jobs.line.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as pool:
        yield pool


def lead(jobs: Jobs, pool: ThreadPoolExecutor, number: int = 0) -> Future[int]:
    """A caller that leads a flush which is held up."""
    jobs.hold()
    leader = pool.submit(jobs.line.run, number)
    assert jobs.has_begun.wait(patience_s)
    return leader


def follow(jobs: Jobs, pool: ThreadPoolExecutor, *numbers: int) -> list[Future[int]]:
    """Callers in line behind it, in this order."""
    followers = []
    for number in numbers:
        before = len(jobs.line._line)
        followers.append(pool.submit(jobs.line.run, number))
        jobs.wait_for_line(before + 1)
    return followers


def test_a_lone_caller_flushes_in_its_own_thread(jobs: Jobs) -> None:
    assert [jobs.line.run(1), jobs.line.run(2)] == [2, 4]
    assert (jobs.groups, jobs.leaders) == ([[1], [2]], [threading.current_thread()] * 2)


def test_callers_that_wait_share_the_next_flush(jobs: Jobs, pool: ThreadPoolExecutor) -> None:
    leader, followers = lead(jobs, pool), follow(jobs, pool, 1, 2, 3)
    jobs.is_open.set()
    assert [leader.result(patience_s), *(each.result(patience_s) for each in followers)] == [0, 2, 4, 6]
    assert jobs.groups == [[0], [1, 2, 3]]


def test_a_group_is_bounded_by_the_weight_of_its_jobs(pool: ThreadPoolExecutor) -> None:
    jobs = Jobs(weigh=lambda job: job, weight_max=5)
    leader, followers = lead(jobs, pool), follow(jobs, pool, 2, 3, 9, 1)
    jobs.is_open.set()
    wait_for([leader, *followers], patience_s)
    assert jobs.groups == [[0], [2, 3], [9], [1]]


def test_a_refused_job_fails_alone(jobs: Jobs, pool: ThreadPoolExecutor) -> None:
    leader, (good, bad) = lead(jobs, pool), follow(jobs, pool, 1, -1)
    jobs.is_open.set()
    assert (leader.result(patience_s), good.result(patience_s)) == (0, 2)
    with pytest.raises(LogFull):
        bad.result(patience_s)


def test_a_flush_that_fails_is_the_answer_of_all_its_jobs(jobs: Jobs, pool: ThreadPoolExecutor) -> None:
    leader = lead(jobs, pool)
    jobs.failure = AppendOutcomeUnknown()
    followers = [*follow(jobs, pool, 1, 2), jobs.line.submit(3)]
    jobs.is_open.set()
    for each in (leader, *followers):
        with pytest.raises(AppendOutcomeUnknown):
            each.result(patience_s)


def test_many_jobs_of_one_caller_are_flushed_at_once_and_answered_in_order(jobs: Jobs) -> None:
    *answers, refused = jobs.line.run_all([3, 1, 2, -1])
    assert (answers, jobs.groups) == ([6, 2, 4], [[3, 1, 2, -1]])
    assert isinstance(refused, LogFull)
    assert jobs.line.run_all([]) == []


def test_more_jobs_of_one_caller_than_a_flush_takes_are_all_flushed() -> None:
    jobs = Jobs(weight_max=4)
    assert jobs.line.run_all(range(10)) == [2 * number for number in range(10)]
    assert list(map(len, jobs.groups)) == [4, 4, 2]


def test_submitted_jobs_share_flushes_of_one_background_thread(jobs: Jobs) -> None:
    jobs.hold()
    futures = [jobs.line.submit(0)]
    assert jobs.has_begun.wait(patience_s)
    futures += [jobs.line.submit(number) for number in range(1, 100)]
    jobs.is_open.set()
    assert [future.result(patience_s) for future in futures] == [2 * number for number in range(100)]
    assert jobs.groups == [[0], list(range(1, 100))]
    assert len(set(jobs.leaders)) == 1
    assert jobs.leaders[0] is not threading.current_thread()


def test_no_thread_is_started_before_something_is_submitted(jobs: Jobs) -> None:
    jobs.line.run_all([1, 2])
    assert jobs.line._thread is None


def test_submitted_jobs_go_with_the_flush_of_a_caller_that_waits(jobs: Jobs, pool: ThreadPoolExecutor) -> None:
    leader = lead(jobs, pool)
    future = jobs.line.submit(1)
    (follower,) = follow(jobs, pool, 2)
    jobs.is_open.set()
    assert [each.result(patience_s) for each in (leader, future, follower)] == [0, 2, 4]
    assert jobs.groups == [[0], [1, 2]]


def test_a_callback_of_a_future_may_run_jobs_itself(jobs: Jobs) -> None:
    done: Future[int] = Future()
    for number in range(50):
        jobs.line.submit(number)
    jobs.line.submit(50).add_done_callback(lambda _: done.set_result(jobs.line.run(51)))
    for number in range(50):
        jobs.line.submit(number)
    assert done.result(patience_s) == 102


def test_a_future_that_is_cancelled_in_time_is_not_flushed(jobs: Jobs, pool: ThreadPoolExecutor) -> None:
    leader = lead(jobs, pool)
    cancelled, kept = jobs.line.submit(1), jobs.line.submit(2)
    assert cancelled.cancel()
    jobs.is_open.set()
    assert (leader.result(patience_s), kept.result(patience_s)) == (0, 4)
    assert jobs.groups == [[0], [2]]
    with pytest.raises(CancelledError):
        cancelled.result()


def test_closing_flushes_what_was_accepted_and_refuses_the_rest(jobs: Jobs, pool: ThreadPoolExecutor) -> None:
    leader, (follower,) = lead(jobs, pool), follow(jobs, pool, 1)
    futures = [jobs.line.submit(number) for number in (2, 3)]
    closing = pool.submit(jobs.line.close)
    jobs.wait_for_line(4)
    for refused in (jobs.line.run, jobs.line.submit):
        with pytest.raises(LogClosed):
            refused(4)
    jobs.is_open.set()
    closing.result(patience_s)
    assert [each.result(0) for each in futures] == [4, 6]
    assert [each.result(patience_s) for each in (leader, follower)] == [0, 2]
    assert jobs.groups == [[0], [1, 2, 3]]


def test_a_leader_waits_a_moment_for_the_callers_of_the_last_group(pool: ThreadPoolExecutor) -> None:
    jobs = Jobs(gather_pause_s=patience_s)
    leader, followers = lead(jobs, pool), follow(jobs, pool, 1, 2)
    jobs.is_open.set()
    wait_for([leader, *followers], patience_s)
    # The last group had two: the next one is flushed with the second job, long before the time is over.
    wait_for([pool.submit(jobs.line.run, number) for number in (3, 4)], patience_s)
    assert list(map(sorted, jobs.groups)) == [[0], [1, 2], [3, 4]]


class Interrupted(BaseException):
    """Raised where a signal could be, as Python's own handler of SIGINT does."""


def interrupt_at(step: int) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that interrupts before the N-th line of the module that this thread runs."""
    left = [step]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != group_commit.__file__:
            return None
        # The end of a `with` is traced as its first line once more. No signal can come there, before the lock is free.
        if event == "line" and "with self._" not in getline(frame.f_code.co_filename, frame.f_lineno):
            left[0] -= 1
            if left[0] == 0:
                raise Interrupted
        return trace

    return trace


def run_interrupted(jobs: Jobs, step: int, numbers: list[int]) -> bool:
    """Run jobs with an interrupt at a step; whether it came."""
    sys.settrace(interrupt_at(step))
    try:
        jobs.line.run_all(numbers)
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    return False


def interrupt_in_line(jobs: Jobs, pool: ThreadPoolExecutor, step: int, place: str) -> tuple[bool, list[Future[int]]]:
    """Interrupt a caller that leads at once, that is appointed, or that waits for others; and those others."""
    if place == "first":
        jobs.hold()
        interrupted, others = pool.submit(run_interrupted, jobs, step, [8, 9]), []
    else:
        others = [lead(jobs, pool), *follow(jobs, pool, *([1] if place == "behind" else []))]
        interrupted = pool.submit(run_interrupted, jobs, step, [8, 9])
    deadline = monotonic() + patience_s
    while not interrupted.done() and not (jobs.has_begun.is_set() and (place == "first" or len(jobs.line._line) > 1)):
        assert monotonic() < deadline
        sleep(0.0001)
    others += [pool.submit(jobs.line.run, number) for number in (2, 3)]
    others.append(jobs.line.submit(4))
    jobs.is_open.set()
    return interrupted.result(patience_s), others


@pytest.mark.parametrize("place", ["first", "next", "behind"])
def test_a_caller_that_is_interrupted_at_any_line_leaves_no_other_waiting(pool: ThreadPoolExecutor, place: str) -> None:
    step, was_interrupted = 0, True
    while was_interrupted:
        step += 1
        jobs = Jobs()
        was_interrupted, others = interrupt_in_line(jobs, pool, step, place)
        assert {2, 3, 4} <= {other.result(patience_s) // 2 for other in others}
        assert jobs.line.run(5) == 10
        jobs.line.close()
        assert not jobs.line._line
    assert step > 20
