"""Events that are intact in the log and say what cannot be: `verify` names each with its seq and why."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.commands import Cli

import runstate
from runstate.logs import unfoldable
from runstate.logs.log import EventLog
from runstate.logs.registry import open_log
from runstate.models.daemon.model import DaemonDraft

started = (
    b'{"type":"worker:started","worker_name":"w","project_root":"","runbook_hash":"","queue_name":"q","concurrency":1}'
)
completed = b'{"type":"queue:completed","queue_name":"q","item_id":"x"}'
stopped = b'{"type":"worker:stopped","worker_name":"w"}'
malformed = b'{"type":"worker:started","worker_name":7}'
unknown = b'{"type":"worker:cloned","worker_name":"w"}'


def append(log: EventLog, event_id: str, line: bytes) -> None:
    kind = msgspec.json.decode(line)["type"]
    envelope = {"event_id": event_id, "type": kind, "key": event_id, "tenant": "", "emitted_at": "", "model": "daemon"}
    log.append("daemon", [DaemonDraft(prefix=b"", tail=line, **envelope)])


def store(url: str, *lines: bytes) -> None:
    """Append lines as a daemon without checks, or of another version, would."""
    with open_log(url) as log:
        for number, line in enumerate(lines, 1):
            append(log, f"e{number}", line)


@pytest.mark.parametrize("scheme", ["wal", "ndjson", "segments", "sqlite"])
def test_an_impossible_event_is_a_warning_with_its_seq_and_why(cli: Cli, scheme: str) -> None:
    store(f"{scheme}:log", started, completed, stopped)
    verified = cli("verify", f"{scheme}:log", "--json")
    (found,) = verified.rows
    assert verified.code == 0
    assert (found["code"], found["severity"], found["seq"]) == ("event.invalid_transition", "warning", 2)
    assert "queue:completed" in found["message"]
    assert "The queue 'q' holds no item 'x'" in found["message"]


def test_the_advice_shows_the_impossible_event(cli: Cli) -> None:
    store("wal:log", started, completed, stopped)
    (found,) = cli("verify", "wal:log", "--json").rows
    command = found["message"].split("'runstate ")[1].split("'")[0].replace("URL", "wal:log")
    assert [row["type"] for row in cli(*command.split()).rows] == ["queue:completed"]


def test_an_impossible_event_behind_a_checkpoint_keeps_its_seq(cli: Cli) -> None:
    store("wal:log", started, started.replace(b'"w"', b'"v"'))
    assert cli("daemon", "checkpoint", "log").code == 0
    assert cli("daemon", "compact", "log").code == 0
    assert cli("fetch", "wal:log", "daemon").code != 0  # The events before the checkpoint are gone.
    with open_log("wal:log") as log:
        append(log, "late", completed)
    assert [row["seq"] for row in cli("verify", "wal:log", "--json").rows] == [3]


def test_of_very_many_impossible_events_the_first_are_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfoldable, "impossible_max", 2)
    store("wal:log", started, *[completed.replace(b'"x"', b'"%d"' % number) for number in range(5)])
    rows = cli("verify", "wal:log", "--json").rows
    assert [row["seq"] for row in rows] == [2, 3, None]
    assert rows[-1]["message"].startswith("3 more events")


def test_an_impossible_event_of_an_engine_is_named_too(cli: Cli) -> None:
    with runstate.open("sqlite:log") as runs:
        run = runs.run("r", tenant="t", plan="p")
        run.started()
        run.completed()
        first = runs.log.read("r")[0]
        other_id = "e" * len(first.event_id)
        body = first.body.replace(first.event_id.encode(), other_id.encode()).replace(b'"runSeq":1', b'"runSeq":3')
        again = msgspec.structs.replace(first, seq=3, event_id=other_id, key="k", body=body)
        runs.log.adopt("r", [again], model="engine")
    (found,) = cli("verify", "sqlite:log", "--json").rows
    assert (found["code"], found["seq"]) == ("event.invalid_transition", 3)


def test_a_malformed_event_is_damage_with_its_seq(cli: Cli) -> None:
    store("wal:log", started, malformed, stopped)
    verified = cli("verify", "wal:log", "--json")
    (found,) = verified.rows
    assert (verified.code, found["code"], found["seq"]) == (1, "event.invalid", 2)
    assert "worker:started" in found["message"]


def test_an_unknown_kind_is_kept_changes_nothing_and_is_named_with_its_seq(cli: Cli) -> None:
    store("wal:known", started, stopped)
    store("wal:log", started, unknown, stopped)
    assert cli("daemon", "state", "log").out == cli("daemon", "state", "known").out
    assert [row["type"] for row in cli("fetch", "wal:log", "daemon").rows][1] == "worker:cloned"
    verified = cli("verify", "wal:log", "--json")
    (found,) = verified.rows
    assert (verified.code, found["severity"], found["seq"]) == (0, "warning", 2)
    assert "worker:cloned is intact, and unknown to this version of the model: it changes nothing" in found["message"]
    assert cli("repair", "wal:log", "daemon", "--quarantine", "2").code == 0
    assert cli("verify", "wal:log").code == 0


def test_a_salvage_closes_the_gap_of_an_entry_that_was_deleted_by_hand(cli: Cli) -> None:
    store("wal:log", started, malformed, stopped)
    wal = Path("log/daemon/wal.jsonl")
    Path("kept.jsonl").write_bytes(wal.read_bytes())
    wal.write_bytes(b"".join(line for line in wal.read_bytes().splitlines(True) if b'{"seq":2,' not in line))
    assert cli("repair", "wal:log", "--salvage").code == 0
    assert cli("verify", "wal:log").code == 0
    assert [row["type"] for row in cli("fetch", "wal:log", "daemon").rows] == ["worker:started", "worker:stopped"]
    store("wal:log", started)  # The daemon appends again; a retry of the first event changes nothing.
    assert cli("daemon", "state", "log").code == 0
