"""Idempotency keys: which events are the same event, however often they are sent.

The key is the lower-case hex SHA-256 of the fields joined by `|`. Tenant, project, environment and the
platform's own attempt counter never take part: a retry that another machine makes is still the same event.
"""

from __future__ import annotations

from typing import Any

from runstate.errors import InvalidEvent
from runstate.models.canonical import digest, is_text
from runstate.models.engine.events import check_attempt, check_attempt_text, check_level

run_level = "RUN"
"""Stands for the step id in the keys of run-level events."""


def idempotency_key(
    *,
    run_id: str,
    step_id: str | None,
    logical_attempt_id: int,
    event_type: str,
    plan_id: str,
    plan_version: str,
) -> str:
    """The key of contract v2.

    Raises:
        InvalidEvent: no valid event has these fields. A step event needs a `step_id`, an attempt is an integer from 1,
            every other field is text that is not empty and holds no `|`.
    """
    check_attempt(logical_attempt_id, "logicalAttemptId")
    step = _step_field(event_type, step_id)
    return _key(run_id, step, str(logical_attempt_id), event_type, plan_id, plan_version)


def idempotency_key_v1(
    *, run_id: str, step_id: str | None, logical_attempt_id: str, event_type: str, plan_version: str
) -> str:
    """The key of contract v1, which has no plan id and keeps attempts as strings.

    Raises:
        InvalidEvent: no valid event has these fields, as for `idempotency_key`. An attempt is a counter in base 10.
    """
    check_attempt_text(logical_attempt_id, "logicalAttemptId")
    step = _step_field(event_type, step_id)
    return _key(run_id, step, logical_attempt_id, event_type, plan_version)


def _step_field(event_type: str, step_id: str | None) -> Any:
    if type(event_type) is str:
        check_level(event_type, bool(step_id))
    return run_level if step_id is None else step_id


def _key(*fields: Any) -> str:
    for field in fields:
        if type(field) is not str or not field:
            raise InvalidEvent(f"Each field of a key is text that is not empty, got {field!r:.80}")
        if "|" in field:
            raise InvalidEvent(f"'|' separates the fields of a key and may not stand in one: {field[:80]!r}")
        if not is_text(field):
            raise InvalidEvent(f"A field of a key must be text, and {field[:80]!r} has a lone surrogate")
    return digest("|".join(fields).encode("utf-8"))
