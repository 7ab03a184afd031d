"""What a daemon's events fold into: six maps of records.

A record is never changed, only replaced. So a copy of the maps alone is a state of its own, and whoever holds one can
read or write it down while events go on being applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Literal, Self, TypeVar

import msgspec

from runstate.errors import InvalidJson
from runstate.models.canonical import canonical, embed
from runstate.models.daemon.events import Concurrency, Count, Name, Text

StepStatus = Literal["pending", "running", "waiting", "completed", "failed"]
ItemStatus = Literal["pending", "taken", "failed", "dead"]


class _Record(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """What a map holds. On file, nothing of it is left out."""


class Signal(_Record, frozen=True):
    """The last that an agent has said about its step."""

    kind: Name
    message: str | None


class Step(_Record, frozen=True):
    """One stay of a pipeline in a step."""

    name: Name
    begun_by: Text
    """The event that the pipeline came here by, so that it is recognised when it is applied again."""
    status: StepStatus
    agent_id: Name | None
    agent_signal: Signal | None
    reason: str | None
    """Why it waits."""
    error: str | None
    """Why it failed."""


class Pipeline(_Record, frozen=True):
    """A pipeline, where it stands, and which way it came."""

    id: Name
    kind: Name
    name: Text
    namespace: Text
    vars: dict[str, Any]
    runbook_hash: Text
    cwd: Text
    created_at_epoch_ms: Count
    current: Step
    history: tuple[Step, ...]
    """The steps before the current one, as they ended."""
    session_id: Name | None
    workspace_id: Name | None


class Session(_Record, frozen=True):
    id: Name
    pipeline_id: Name


class Workspace(_Record, frozen=True):
    id: Name
    path: Name
    branch: Text | None
    owner: Name | None
    mode: Text | None
    status: Literal["creating", "ready", "failed"]
    reason: str | None
    """Why it failed."""


class StoredRunbook(_Record, frozen=True):
    hash: Name
    version: Count
    runbook: Any


class WorkerRecord(_Record, frozen=True):
    name: Name
    namespace: Text
    project_root: Text
    runbook_hash: Text
    queue_name: Name
    concurrency: Concurrency
    dispatched: dict[Name, Name]
    """The items that it works on as pipelines: item id to pipeline id."""


class QueueItem(_Record, frozen=True):
    id: Name
    data: Any
    pushed_at_epoch_ms: Count
    status: ItemStatus
    worker_name: Name | None
    """Who has taken it."""
    error: str | None
    """Why it last failed."""
    failure_count: Count
    failed_by: tuple[Text, ...]
    """The events that were counted, so that each is counted once."""


Queue = dict[str, QueueItem]
"""The items of a queue by their ids, in the order in which they were pushed."""


class MaterializedState(msgspec.Struct, dict=True):
    """Everything that a daemon knows. Workers and queues are keyed by `scoped` names."""

    pipelines: dict[str, Pipeline] = {}
    sessions: dict[str, Session] = {}
    workspaces: dict[str, Workspace] = {}
    runbooks: dict[str, StoredRunbook] = {}
    workers: dict[str, WorkerRecord] = {}
    queue_items: dict[str, Queue] = {}

    def copy(self) -> Self:
        """The state as it is now, for a reader of its own."""
        queues = {key: dict(queue) for key, queue in self.queue_items.items()}
        return type(self)(
            dict(self.pipelines),
            dict(self.sessions),
            dict(self.workspaces),
            dict(self.runbooks),
            dict(self.workers),
            queues,
        )

    @property
    def agents(self) -> dict[str, set[str]]:
        """The pipelines whose current step has an agent, by that agent. It goes along with the state, and is no part
        of it."""
        found: dict[str, set[str]] | None = self.__dict__.get("agents_index")
        if found is None:
            found = {}
            for pipeline in self.pipelines.values():
                if pipeline.current.agent_id is not None:
                    found.setdefault(pipeline.current.agent_id, set()).add(pipeline.id)
            self.__dict__["agents_index"] = found
        return found


def scoped(namespace: str, name: str) -> str:
    """The key of a worker or a queue: `namespace/name`, or the bare name where there is no namespace."""
    return f"{namespace}/{name}" if namespace else name


# --- written down --------------------------------------------------------------------------------------------------

_piece_records = 500
"""Records that are encoded at once. Other threads wait for one piece, never for the whole state."""

R = TypeVar("R", bound=_Record)


def pieces(state: MaterializedState) -> Iterator[bytes]:
    """The state's RFC 8785 JSON, piece by piece."""
    for sign, name in zip("{,,,,,", _map_names, strict=True):
        yield f'{sign}"{name}":{{'.encode()
        if name == "queue_items":
            yield from _queues(state.queue_items)
        else:
            yield from _members(getattr(state, name))
        yield b"}"
    yield b"}"


def _members(records: Mapping[str, R]) -> Iterator[bytes]:
    comma = b""
    for names in _batches(_in_order(records)):
        parts = (b"%b:%b" % (_encode(name), _encode(_embedded(records[name]))) for name in names)
        yield comma + b",".join(parts)
        comma = b","


def _queues(queues: Mapping[str, Queue]) -> Iterator[bytes]:
    comma = b""
    for name in _in_order(queues):
        yield b"%b%b:[" % (comma, _encode(name))
        inner = b""
        for items in _batches(queues[name].values()):
            yield inner + _encode([_embedded(item) for item in items])[1:-1]
            inner = b","
        yield b"]"
        comma = b","


def _embedded(record: R) -> R | msgspec.Raw:
    """The record, in a form that the sorted encoder writes as RFC 8785 would. Only free values can spoil that."""
    for free in _free_members.get(type(record), ()):
        value = getattr(record, free)
        if value is not None and embed(value) is not value:
            return msgspec.Raw(canonical(msgspec.to_builtins(record)))
    return record


def _in_order(names: Iterable[str]) -> list[str]:
    """As RFC 8785 sorts them: by UTF-16 units."""
    found = list(names)
    if "".join(found).isascii():
        return sorted(found)
    return sorted(found, key=lambda name: name.encode("utf-16-be"))


T = TypeVar("T")


def _batches(found: Iterable[T]) -> Iterator[list[T]]:
    left = iter(found)
    while batch := list(islice(left, _piece_records)):
        yield batch


def load(data: bytes) -> MaterializedState:
    """
    Raises:
        InvalidJson: the bytes break `daemon.snapshot.schema.json`.
    """
    try:
        found = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidJson(f"Not the state of a daemon: {error}") from error
    queues = {key: {item.id: item for item in items} for key, items in found.queue_items.items()}
    return MaterializedState(found.pipelines, found.sessions, found.workspaces, found.runbooks, found.workers, queues)


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    pipelines: dict[Name, Pipeline]
    sessions: dict[Name, Session]
    workspaces: dict[Name, Workspace]
    runbooks: dict[Name, StoredRunbook]
    workers: dict[Name, WorkerRecord]
    queue_items: dict[Name, list[QueueItem]]


_map_names = sorted(_Stored.__struct_fields__)
_free_members: dict[type, tuple[str, ...]] = {
    Pipeline: ("vars",),
    StoredRunbook: ("runbook",),
    WorkerRecord: ("dispatched",),
    QueueItem: ("data",),
}
_encode = msgspec.json.Encoder(order="sorted").encode
_decoder = msgspec.json.Decoder(_Stored)
