"""Medians of what was timed in alternation: on a shared machine only neighbours in time can be compared.

A round times a block of calls of each side, one block after the other, and every second round in the reverse
order. A ratio is taken within its round; the median over all rounds is what we report, with p10 to p90.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.case import Case, Side, Thunk

rounds_wanted = 30
rounds_min = 5
calls_max = 50
"""Calls in a block. More would only move the sides further apart in time."""


@dataclass(frozen=True)
class Spread:
    """A median, and between which values four fifths of the samples lie."""

    p10: float
    median: float
    p90: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        ordered = sorted(samples)
        last = len(ordered) - 1
        return cls(ordered[round(last * 0.1)], median(ordered), ordered[round(last * 0.9)])


@dataclass(frozen=True)
class Timing:
    """How long one call of a side takes, and how many events it handles in a second."""

    side: str
    events: int
    seconds: Spread

    @property
    def rate(self) -> float:
        return self.events / self.seconds.median


@dataclass(frozen=True)
class Result:
    """A case, measured. `ratios` has one entry per limit: 1 is as fast as the limit, 0.5 half as fast."""

    case: Case
    ours: Timing
    limits: tuple[Timing, ...]
    ratios: tuple[Spread, ...]

    @property
    def measured(self) -> float:
        """The value that the aim is about."""
        kind = self.case.aim.kind if self.case.aim else "ratio"
        if kind == "ratio":
            return self.ratios[0].median
        return self.ours.rate if kind == "rate" else self.ours.seconds.median

    @property
    def missed(self) -> bool:
        return self.case.aim is not None and not self.case.aim.met(self.measured)


def measure(case: Case, root: Path, budget_s: float) -> Result:
    """Time all sides of a case for about `budget_s`, in files below `root`."""
    sides = (case.ours, *case.limits)
    with ExitStack() as stack:
        opened = [open_side(stack, side, root) for side in sides]
        calls = _calls_per_round(opened, budget_s)
        gc.collect()  # The garbage of building the stores is nobody's to pay for; from here on gc is left alone.
        samples: list[list[float]] = [[] for _ in sides]
        rounds: list[list[float]] = []
        deadline = time.perf_counter() + budget_s
        while len(rounds) < rounds_min or time.perf_counter() < deadline:
            medians = [0.0] * len(sides)
            order = range(len(sides)) if len(rounds) % 2 == 0 else reversed(range(len(sides)))
            for index in order:
                block = _time_calls(opened[index], calls[index])
                samples[index].extend(block)
                medians[index] = median(block) / sides[index].events
            rounds.append(medians)
    timings = [Timing(side.name, side.events, Spread.of(times)) for side, times in zip(sides, samples, strict=True)]
    ratios = [Spread.of([row[index] / row[0] for row in rounds]) for index in range(1, len(sides))]
    return Result(case, timings[0], tuple(timings[1:]), tuple(ratios))


def measure_rounds(case: Case, root: Path, rounds: int) -> Result:
    """`measure` for calls that take seconds: one call of each side in a round, and no calls to find out how many."""
    sides = (case.ours, *case.limits)
    times: list[list[float]] = [[] for _ in sides]
    with ExitStack() as stack:
        opened = [open_side(stack, side, root) for side in sides]
        gc.collect()
        for number in range(rounds):
            for index in range(len(sides)) if number % 2 == 0 else reversed(range(len(sides))):
                thunk = next(opened[index])
                start = time.perf_counter()
                thunk()
                times[index].append(time.perf_counter() - start)
    timings = [Timing(side.name, side.events, Spread.of(taken)) for side, taken in zip(sides, times, strict=True)]
    costs = [[t / side.events for t in taken] for side, taken in zip(sides, times, strict=True)]
    ratios = [Spread.of([limit / ours for limit, ours in zip(cost, costs[0], strict=True)]) for cost in costs[1:]]
    return Result(case, timings[0], tuple(timings[1:]), tuple(ratios))


def open_side(stack: ExitStack, side: Side, root: Path) -> Iterator[Thunk]:
    """A side in a directory of its own, which goes when the stack does."""
    directory = stack.enter_context(TemporaryDirectory(dir=root))
    return stack.enter_context(side.open(Path(directory)))


def _calls_per_round(opened: Sequence[Iterator[Thunk]], budget_s: float) -> list[int]:
    """Warm each side up, and let it fill its share of a round."""
    share_s = budget_s / rounds_wanted / len(opened)
    calls = []
    for thunks in opened:
        first = _time_calls(thunks, 3)
        if min(first) < share_s:
            first = _time_calls(thunks, min(calls_max, max(1, int(share_s / min(first)))))
        calls.append(max(1, min(calls_max, int(share_s / median(first)))))
    return calls


def _time_calls(thunks: Iterator[Thunk], calls: int) -> list[float]:
    times = []
    for _ in range(calls):
        thunk = next(thunks)
        start = time.perf_counter()
        thunk()
        times.append(time.perf_counter() - start)
    return times
