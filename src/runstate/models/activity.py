"""What an event says about work being done, in words that every model shares.

Reports and the like are made of activities, so they need to know no model. A model joins them by defining
`Model.activities`. Payloads come from outside and may hold anything: the readers below give None for what is not what
it should be, and never raise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from runstate.models.canonical import integer_max, is_text

ActivityKind = Literal[
    "run_queued",
    "run_started",
    "run_resumed",
    "run_finished",
    "run_failed",
    "run_cancelled",
    "queued",
    "started",
    "finished",
    "failed",
    "skipped",
    "call_started",
    "call",
]
"""`run_…` is about the whole stream, `call…` about a call of a (language) model, the rest about a step of the run.

`run_started` begins a run once. `run_resumed` says that it goes on: it begins a run that has ended anew, and says
nothing about one that is at work. A `call` has ended; `outcome` says how.
"""

name_chars_max = 256
"""Characters of a name. Longer ones are cut: they are shown and grouped by, and nobody reads more."""


class Activity(msgspec.Struct, frozen=True, gc=False):
    """One thing that an event says about work being done. What the event does not say is empty, 0 or None."""

    kind: ActivityKind
    name: str = ""
    """Of the step, the worker, the model called or the plan of the run."""
    scope: str = ""
    """Tells what is done at the same time apart: equal scopes of one stream are one thing."""
    attempt: int = 0
    """From 1; 0 where the event does not say."""
    at: str = ""
    """The time to measure with, as its producer wrote it; empty where only the log has stamped one."""
    cost: float | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    duration_ms: float | None = None
    outcome: Literal["finished", "failed"] = "finished"


def read_name(value: Any) -> str:
    """A text to show, cut to what anybody reads; empty for anything else."""
    if type(value) is not str or not is_text(value):
        return ""
    return value if len(value) <= name_chars_max else value[: name_chars_max - 1] + "…"


def read_scope(value: Any) -> str:
    """A text to compare, whole; empty for anything else."""
    return value if type(value) is str and is_text(value) else ""


def read_count(value: Any) -> int | None:
    """A whole number from 0, small enough for every reader of JSON and every column; None for anything else."""
    if type(value) is float and value.is_integer() and 0 <= value <= integer_max:
        return int(value)  # JSON has one kind of number: 512.0 is the integer 512.
    return value if type(value) is int and 0 <= value <= integer_max else None


def read_amount(value: Any) -> float | None:
    """A finite number from 0; None for anything else."""
    if type(value) is int:
        return float(value) if 0 <= value <= integer_max else None
    return value if type(value) is float and math.isfinite(value) and value >= 0 else None


def first_count(members: Mapping[str, Any], *names: str) -> int | None:
    """The count under the first of the names that has one."""
    found = (read_count(members.get(name)) for name in names)
    return next((count for count in found if count is not None), None)


def first_amount(members: Mapping[str, Any], *names: str) -> float | None:
    """The amount under the first of the names that has one."""
    found = (read_amount(members.get(name)) for name in names)
    return next((amount for amount in found if amount is not None), None)
