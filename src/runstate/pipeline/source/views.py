"""What can be made of the streams of a shard, in the process that reads them: each view is a table of its own.

A view is a schema and a function from a task to record batches. Its module is imported only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import NamedTuple

import msgspec
import pyarrow as pa

from runstate.models.model import AnyModel
from runstate.models.registry import find_model
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.source.selection import Selection
from runstate.pipeline.source.shards import Shard


class Request(msgspec.Struct, frozen=True):
    """What a reader was asked for; it travels to the executors."""

    urls: tuple[str, ...]
    view: str
    model: str
    columns: tuple[str, ...] = ()
    """Those that are wanted, in order; none means all."""
    options: dict[str, str] = {}
    """The view's own."""
    selection: Selection = Selection()
    shard_weight_min: int = 1
    """Shards are at least this large, or there are fewer than was asked for."""
    base: str = ""
    """The driver's working directory, which relative URLs begin at."""
    marker: str = ""
    """Of the directory that the tasks write to: see `shared_storage`."""


class Task(NamedTuple):
    """One shard's work."""

    request: Request
    shard: Shard

    @property
    def model(self) -> AnyModel:
        return find_model(self.request.model)

    @property
    def schema(self) -> pa.Schema:
        return schema_of(self.request)


class View(NamedTuple):
    schema: Callable[[Request], pa.Schema]
    """With every column that it can give."""
    rows: Callable[[Task], Iterator[pa.RecordBatch]]
    """The task's rows, with the columns of `task.schema`."""
    plan: Callable[[Request, int], list[Shard]]
    options: frozenset[str] = frozenset()
    """What it understands beside `url`, `view`, `model` and `shards`."""
    selects: frozenset[str] = frozenset()
    """Which options of a selection it understands."""
    narrows: bool = False
    """Whether it gives the wanted columns alone."""


_views = {
    "events": "runstate.pipeline.source.events",
    "snapshots": "runstate.pipeline.replay.fold",
    "replay": "runstate.pipeline.replay.snapshot_table",
    "findings": "runstate.pipeline.audit.job",
    "spans": "runstate.pipeline.report.spans_view",
    "ingest": "runstate.pipeline.tables.ingest",
    "lines": "runstate.pipeline.source.plain_files",
    "compact": "runstate.pipeline.tables.compaction",
    "archive": "runstate.pipeline.archive.job",
}


def view_named(name: str) -> View:
    """
    Raises:
        InvalidOption: there is none of that name.
    """
    if name not in _views:
        raise InvalidOption(f"There is no view {name[:80]!r}; there are: {', '.join(_views)}")
    view: View = import_module(_views[name]).view
    return view


def schema_of(request: Request) -> pa.Schema:
    """The columns that a request wants, in its order.

    Raises:
        InvalidOption: the view has no such column.
    """
    whole = view_named(request.view).schema(request)
    if not request.columns:
        return whole
    if unknown := [name for name in request.columns if name not in whole.names]:
        raise InvalidOption(f"The view {request.view!r} has no column {unknown[0]!r}; it has: {', '.join(whole.names)}")
    return pa.schema([whole.field(name) for name in request.columns])
