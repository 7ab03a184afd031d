"""Small jobs, done by the driver itself: for a few thousand events, to start a Spark job costs more than the work."""

from __future__ import annotations

from typing import Any

import msgspec

from runstate.pipeline.source.shards import events_min
from runstate.pipeline.source.views import Request, Task, view_named

shards_max = 4
"""More work than so many of the smallest tasks is Spark's."""


def few_rows(request: Request) -> list[Any] | None:
    """What the tasks of a view give, worked off one after the other; None if that is too much for one process.

    Raises:
        RunstateError: as in a task.
    """
    view = view_named(request.view)
    request = msgspec.structs.replace(request, shard_weight_min=events_min)
    shards = view.plan(request, shards_max + 1)
    if len(shards) > shards_max:
        return None
    return [row for shard in shards for batch in view.rows(Task(request, shard)) for row in batch.to_pylist()]
