"""What a benchmark is: ours, the limits beside it, and what we aim at.

A side is opened in an empty directory and gives thunks for ever. Making the next thunk is never timed, calling
it is: that is where a side puts the work that it does not want to measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Thunk = Callable[[], object]
Opener = Callable[[Path], AbstractContextManager[Iterator[Thunk]]]


@dataclass(frozen=True)
class Side:
    """One thing to time. `events` are what one call handles, so that unequal calls can be compared."""

    name: str
    open: Opener
    events: int = 1


@dataclass(frozen=True)
class Aim:
    """What we promised ourselves: a ratio to the first limit, a rate, or a duration."""

    kind: Literal["ratio", "rate", "seconds"]
    bound: float

    def met(self, value: float) -> bool:
        return value < self.bound if self.kind == "seconds" else value >= self.bound

    def show(self, value: float) -> str:
        if self.kind == "seconds":
            return show_seconds(value)
        return f"{value:.2f}x" if self.kind == "ratio" else f"{value:,.0f}/s"

    def __str__(self) -> str:
        return f"{'<' if self.kind == 'seconds' else '≥'} {self.show(self.bound)}"


@dataclass(frozen=True)
class Case:
    """Ours and its limits, timed in alternation. The aim, and the plot, look at the first limit."""

    name: str
    ours: Side
    limits: tuple[Side, ...]
    aim: Aim | None = None


def show_seconds(seconds: float) -> str:
    """Three digits and a unit that fits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
