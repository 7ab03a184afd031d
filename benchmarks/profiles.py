"""Why a case is as slow as it is: its functions by own time, those of the log's own threads included."""

from __future__ import annotations

import cProfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from benchmarks.case import Side, Thunk
from benchmarks.measure import open_side

functions_shown = 10
calls_max = 300
seconds_max = 2.0


def profile(side: Side, root: Path) -> list[tuple[str, float, str]]:
    """The thread, own seconds per call, and the function, longest first.

    Profiled code is slower than it is otherwise, small functions most of all: the order says more than the sum.
    A thread that waits for another one shows it as time in `acquire` or `get`.
    """
    others: list[cProfile.Profile] = []

    def start_in_thread(_frame: FrameType, _event: str, _arg: Any) -> None:
        # Python 3.12 has one profiler for all threads, and refuses a second one.
        with suppress(ValueError):
            other = cProfile.Profile()
            other.enable()
            others.append(other)

    threading.setprofile(start_in_thread)
    try:
        with ExitStack() as stack:
            thunks = open_side(stack, side, root)
            next(thunks)()
            for other in others:
                other.clear()
            caller, calls = _profile_calls(thunks)
            spent = _own_times("caller", caller) + sum((_own_times("other", p) for p in others), Counter())
    finally:
        threading.setprofile(None)
    return [(thread, seconds / calls, name) for (thread, name), seconds in spent.most_common(functions_shown)]


def _profile_calls(thunks: Iterator[Thunk]) -> tuple[cProfile.Profile, int]:
    caller, calls = cProfile.Profile(), 0
    deadline = time.perf_counter() + seconds_max
    while calls < calls_max and time.perf_counter() < deadline:
        thunk = next(thunks)
        with suppress(ValueError):
            caller.enable()
        thunk()
        caller.disable()
        calls += 1
    return caller, calls


def _own_times(thread: str, profiled: cProfile.Profile) -> Counter[tuple[str, str]]:
    spent: Counter[tuple[str, str]] = Counter()
    for entry in profiled.getstats():
        spent[thread, _name(entry.code)] += entry.inlinetime  # type: ignore[assignment]  # a Counter of seconds
    return spent


def _name(code: CodeType | str) -> str:
    if isinstance(code, str):
        return code.strip("<>")
    return f"{Path(code.co_filename).name}:{code.co_firstlineno} {code.co_name}"
