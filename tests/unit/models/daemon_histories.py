"""Random histories of daemons over few names, so that events meet each other: known and unknown, early and late."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from hypothesis import strategies as st

from runstate.models.daemon import event_types
from runstate.models.daemon.events import DaemonEvent

_ids = ["a", "a", "a", "b"]
_choices: dict[str, list[Any]] = {
    "id": _ids,
    "pipeline_id": _ids,
    "owner": [None, "a", "b"],
    "step": ["build", "test"],
    "initial_step": ["build", "test"],
    "agent_id": ["ag-1", "ag-2"],
    "worker_name": ["w", "w", "v"],
    "queue_name": ["q"],
    "namespace": ["", "", "", "", "ns"],
    "item_id": ["1", "1", "2"],
    "vars": [{}, {"x": 1}, {"x": 2, "ÿ": [1.5]}],
    "data": [None, 1e20, {"ü": {"n": 0.1}}, "plain"],
    "exit_code": [0, 1, None],
    "concurrency": [1, 2],
    "kind": ["k"],
    "hash": ["h1", "h2"],
    "path": ["/w"],
    "command": ["c"],
    "name": ["n"],
}

of_steps = tuple(kind for kind in event_types if kind.__name__.startswith(("Pipeline", "Step", "Agent", "Shell")))
of_links = tuple(
    kind for kind in event_types if kind.__name__.startswith(("PipelineC", "PipelineD", "Session", "Workspace"))
)
of_queues = tuple(kind for kind in event_types if kind.__name__.startswith(("Worker", "Queue")))
Kinds = tuple[type[DaemonEvent], ...]


def _values(field: msgspec.structs.FieldInfo) -> list[Any]:
    if field.name in _choices:
        return _choices[field.name]
    if field.name.endswith("_ms") or field.name == "version":
        return [0, 7]
    return ["one", "two"] if field.required else [field.default]


_fields = {
    kind: [
        (field.name, _values(field))
        for field in msgspec.structs.fields(kind)
        if field.name not in ("daemon", "event_id", "items", "args", "duration_ms")
    ]
    for kind in event_types
}


def random_event(luck: random.Random, kinds: Kinds = event_types) -> DaemonEvent:
    kind = luck.choice(kinds)
    return kind(**{name: luck.choice(values) for name, values in _fields[kind]})


def random_history(luck: random.Random, kinds: Kinds = event_types, events_max: int = 20) -> list[DaemonEvent]:
    """Events with ids of their own; now and then one whose id its content gives."""
    found = [random_event(luck, kinds) for _ in range(luck.randint(0, events_max))]
    return [
        event if luck.random() < 0.1 else msgspec.structs.replace(event, event_id=f"{luck.getrandbits(64):x}")
        for event in found
    ]


def events(kinds: Kinds = event_types) -> st.SearchStrategy[DaemonEvent]:
    return st.integers(0, 2**32).map(lambda seed: random_event(random.Random(seed), kinds))


def histories(kinds: Kinds = event_types, events_max: int = 20) -> st.SearchStrategy[list[DaemonEvent]]:
    return st.integers(0, 2**32).map(lambda seed: random_history(random.Random(seed), kinds, events_max))
