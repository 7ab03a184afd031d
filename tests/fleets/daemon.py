"""Daemons: pipelines with agents, queues whose items fail, die and are retried, signals, and events about nothing."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from runstate.models.model import stable_uuid


def histories(seed: int, runs: int) -> dict[str, list[bytes]]:
    names = [f"daemon-{seed}-{number:04d}" for number in range(runs)]
    return {name: _daemon(name, number, seed) for number, name in enumerate(names)}


def _daemon(name: str, number: int, seed: int) -> list[bytes]:
    luck = random.Random(f"{seed}-{number}")
    lines: list[bytes] = []

    def write(tag: str, **members: Any) -> None:
        event = {"type": tag, **members, "daemon": name, "event_id": stable_uuid(name, str(len(lines)))}
        lines.append(msgspec.json.encode(event))

    write("runbook:loaded", hash="h1", version=1, runbook={"steps": ["build", "prüfen"], "n": 1.5})
    write("worker:started", worker_name="w", project_root="/src", runbook_hash="h1", queue_name="builds", concurrency=2)
    for pipeline in ("p1", "p2"):
        _pipeline(write, pipeline, luck)
    for item in ("i1", "i2", "ü3"):
        place = {"queue_name": "builds", "item_id": item}
        write("queue:pushed", **place, data={"commit": item, "x": [1e21, None]}, pushed_at_epoch_ms=number)
        write("queue:taken", **place, worker_name="w")
        write("worker:item_dispatched", worker_name="w", item_id=item, pipeline_id="p1")
        while luck.random() < 0.4:
            write("queue:failed", **place, error="exit 1")
            write("queue:taken", **place, worker_name="w")
        if luck.random() < 0.6:
            write("queue:completed", **place)
        elif luck.random() < 0.5:
            write("queue:item_dead", **place)
    if number % 3 == 0:
        write(
            "worker:started",
            worker_name="w",
            project_root="/shop",
            runbook_hash="h1",
            queue_name="builds",
            concurrency=1,
            namespace="shop",
        )
        write("queue:pushed", queue_name="builds", item_id="i1", data=None, pushed_at_epoch_ms=7, namespace="shop")
        write("queue:item_retry", queue_name="builds", item_id="ü3")
    if number % 4 == 1:
        write("custom", name="note", data={"a": [1, 2]})
        write("step:failed", pipeline_id="unknown", step="build", error="late")
        write("queue:completed", queue_name="nowhere", item_id="none")
    if number % 4 != 3:
        write("worker:stopped", worker_name="w")
        write("shutdown")
    return lines


def _pipeline(write: Any, pipeline: str, luck: random.Random) -> None:
    write(
        "pipeline:created",
        id=pipeline,
        kind="build",
        name="nightly",
        vars={"ä": 1},
        runbook_hash="h1",
        cwd="/src",
        initial_step="build",
        created_at_epoch_ms=7,
    )
    write("workspace:created", id=f"ws-{pipeline}", path="/ws", owner=pipeline, branch=None)
    write("workspace:ready", id=f"ws-{pipeline}")
    write("session:created", id=f"s-{pipeline}", pipeline_id=pipeline)
    write("step:started", pipeline_id=pipeline, step="build", agent_id=f"ag-{pipeline}")
    write("agent:signal", agent_id=f"ag-{pipeline}", kind="progress", message="half")
    write("agent:exited", agent_id=f"ag-{pipeline}", exit_code=0 if luck.random() < 0.7 else 1)
    write("pipeline:advanced", id=pipeline, step="prüfen")
    write("step:started", pipeline_id=pipeline, step="prüfen")
    write("shell:exited", pipeline_id=pipeline, step="prüfen", exit_code=0)
    write("pipeline:updated", id=pipeline, vars={"ä": 2, "b": "c"})
    if luck.random() < 0.3:
        write("session:deleted", id=f"s-{pipeline}")
        write("pipeline:deleted", id=pipeline)
