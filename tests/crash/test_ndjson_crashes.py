"""Every disk that a crash can leave of a run directory: nothing acknowledged is lost, and the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any

import pytest

from runstate.conformance.notes import keys, note, stored
from runstate.logs.log import StoredSnapshot
from runstate.logs.ndjson import NdjsonLog
from runstate.logs.simulated_disk import SimulatedDisk, every_crash, every_kill
from runstate.models.canonical import digest
from runstate.models.model import Draft
from runstate.models.rundir import RUNDIR, RunEvent

root = PurePosixPath("/runs")
sent = [f"k{number}" for number in range(5)]


def run_draft(key: str) -> Draft:
    payload: dict[str, Any] = {"section": key, "new_state": "DONE"}
    event = RunEvent(
        event_id=key, run_id="r", type="SECTION_STATE_CHANGED", payload=payload, trace_id="a" * 32, span_id="b" * 16
    )
    return RUNDIR.draft(event)[1]


def fold_run(lines: list[bytes]) -> bytes:
    return RUNDIR.dump(RUNDIR.fold(RUNDIR.initial("r"), lines))


def fold_notes(lines: list[bytes]) -> bytes:
    return digest(b"\n".join(lines)).encode()


Form = tuple[str, Callable[[str], Draft], Callable[[list[bytes]], bytes]]
forms: list[Form] = [("rundir", run_draft, fold_run), ("notes", note, fold_notes)]
each_form = pytest.mark.parametrize("form", forms, ids=["bare", "framed"])


def append_and_keep(log: NdjsonLog, form: Form, batch: list[str]) -> None:
    model, draft, fold = form
    log.append("r", [draft(key) for key in batch])
    lines = list(log.lines("r"))
    body = fold(lines)
    log.save_snapshot("r", StoredSnapshot(model, 1, len(lines), digest(body), body))


def history(form: Form, batches: list[list[str]]) -> Callable[[SimulatedDisk], Iterator[str]]:
    def scenario(disk: SimulatedDisk) -> Iterator[str]:
        log = NdjsonLog(root, disk=disk)
        for batch in batches:
            log.append("r", [form[1](key) for key in batch])
            yield from batch
            append_and_keep(log, form, batch)
        log.close()

    return scenario


def check_recovered(disk: SimulatedDisk, form: Form, acknowledged: tuple[str, ...], during: str) -> None:
    """Acknowledged ⊆ stored ⊆ sent, before recovery and after it; the snapshot is what a replay gives; it goes on."""
    log = NdjsonLog(root, disk=disk)
    seen = keys(stored(log, "r"))
    assert seen == sent[: len(seen)], during
    assert len(seen) >= len(acknowledged), during
    assert [finding for finding in log.verify() if finding.severity == "damage"] == [], during
    check_snapshot(log, form)
    append_and_keep(log, form, ["after"])
    recovered = keys(stored(log, "r"))
    assert recovered[: len(seen)] == seen, during
    assert recovered[:-1] == sent[: len(recovered) - 1], during
    check_snapshot(log, form)
    log.close()
    again = NdjsonLog(root, disk=next(iter(reversed(list(disk.crash_states(states_max=16))))))
    assert keys(stored(again, "r")) == recovered, during
    assert list(again.verify()) == [], during


def check_snapshot(log: NdjsonLog, form: Form) -> None:
    model, _, fold = form
    found = log.load_snapshot("r", model)
    if found is not None:
        lines = list(log.lines("r", until_seq=found.seq))
        assert len(lines) == found.seq
        assert found.body == fold(lines)


@pytest.mark.slow
@each_form
def test_every_crash_of_five_events_with_a_snapshot_after_each_is_recovered(form: Form) -> None:
    scenario = history(form, [[key] for key in sent])
    count = 0
    for crash in every_crash(scenario, states_max=400):
        count += 1
        check_recovered(crash.disk, form, crash.acknowledged, crash.during)
    assert count > 500
