"""What the statuses of all models have in common: groups, so that reports count `COMPLETED` and `done` together."""

from __future__ import annotations

from typing import Literal, get_args

StatusGroup = Literal["waiting", "running", "paused", "completed", "failed", "cancelled", "unknown"]
"""`paused` has begun, and goes on only when somebody acts. `unknown` is a status that no group is known for."""

status_groups: tuple[StatusGroup, ...] = get_args(StatusGroup)

_words: dict[StatusGroup, str] = {
    "waiting": "pending queued created approved scheduled waiting idle",
    "running": "running started resumed in_progress working active",
    "paused": "paused blocked suspended",
    "completed": "completed complete finished success succeeded done",
    "failed": "failed failure error errored timed_out",
    "cancelled": "cancelled canceled aborted skipped",
}
_groups: dict[str, StatusGroup] = {word: group for group, words in _words.items() for word in words.split()}


def usual_group(status: str) -> StatusGroup:
    """The group of a status by its word, in upper or lower case; `unknown` for a word that is not usual."""
    return _groups.get(status.casefold().replace("-", "_").replace(" ", "_"), "unknown")
