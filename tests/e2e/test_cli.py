"""The command line as a user meets it: what it prints where, and with which exit code."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Cli

import runstate
from runstate.models.engine import idempotency_key


def event(event_type: str = "RunStarted", run: str = "r-1", step: str | None = None, **changes: Any) -> dict[str, Any]:
    number = abs(hash((event_type, run, step))) % 10**12
    members: dict[str, Any] = {
        "eventId": f"00000000-0000-4000-8000-{number:012d}",
        "eventType": event_type,
        "emittedAt": "2026-11-15T09:30:00.000Z",
        "runId": run,
        "tenantId": "acme",
        "projectId": "sales",
        "environmentId": "prod",
        "planId": "nightly",
        "planVersion": "1",
        "engineAttemptId": 1,
        "logicalAttemptId": 1,
        "idempotencyKey": "k"
        if "|" in run or (step is None and event_type.startswith("Step"))
        else idempotency_key(
            run_id=run, step_id=step, logical_attempt_id=1, event_type=event_type, plan_id="nightly", plan_version="1"
        ),
    }
    if step is not None:
        members["stepId"] = step
    return members | changes


def ndjson(*events: Any) -> bytes:
    return b"".join(e if isinstance(e, bytes) else json.dumps(e).encode() + b"\n" for e in events)


history = [
    event("RunStarted"),
    event("StepStarted", step="extract"),
    event("StepCompleted", step="extract", payload={"artifacts": [{"uri": "s3://a"}]}),
    event("RunCompleted"),
]


@pytest.fixture
def filled(cli: Cli) -> Cli:
    assert cli("append", "sqlite:runs.db", stdin=ndjson(*history)).code == 0
    return cli


def test_append_prints_one_result_a_line_in_the_shape_of_the_contract(cli: Cli) -> None:
    outcome = cli("append", "sqlite:runs.db", stdin=ndjson(*history))
    assert [row["runSeq"] for row in outcome.rows] == [1, 2, 3, 4]
    assert set(outcome.rows[0]) == {"eventId", "runSeq", "persistedAt", "idempotent", "persisted"}
    assert "4 appended, 0 known already" in outcome.err


def test_appending_the_same_file_again_changes_nothing(filled: Cli) -> None:
    outcome = filled("append", "sqlite:runs.db", stdin=ndjson(*history))
    assert all(row["idempotent"] and not row["persisted"] for row in outcome.rows)
    assert [row["runSeq"] for row in outcome.rows] == [1, 2, 3, 4]


def test_append_takes_a_file_too(cli: Cli) -> None:
    Path("events.ndjson").write_bytes(ndjson(*history))
    assert len(cli("append", "sqlite:runs.db", "events.ndjson").rows) == 4


def test_other_content_under_a_known_key_is_said_and_not_written(filled: Cli) -> None:
    changed = history[0] | {"payload": {"other": True}}
    outcome = filled("append", "sqlite:runs.db", stdin=ndjson(changed))
    assert outcome.code == 0
    assert "line 1" in outcome.err
    assert "payload" not in filled("fetch", "sqlite:runs.db", "r-1").rows[0]["event"]


def test_fetch_prints_records_in_order_with_the_events_own_lines(filled: Cli) -> None:
    rows = filled("fetch", "sqlite:runs.db", "r-1").rows
    assert [row["seq"] for row in rows] == [1, 2, 3, 4]
    assert {k: v for k, v in rows[0]["event"].items() if k not in ("runSeq", "persistedAt")} == history[0]


def test_fetch_and_tail_have_one_shape_with_and_without_json(filled: Cli) -> None:
    outputs = {
        filled(*command).out
        for command in (
            ("fetch", "sqlite:runs.db", "r-1"),
            ("fetch", "sqlite:runs.db", "r-1", "--json"),
            ("tail", "sqlite:runs.db"),
            ("tail", "sqlite:runs.db", "--json"),
        )
    }
    assert len(outputs) == 1


def test_fetch_pages_by_after_and_limit(filled: Cli) -> None:
    outcome = filled("fetch", "sqlite:runs.db", "r-1", "--after", "1", "--limit", "2")
    assert [row["seq"] for row in outcome.rows] == [2, 3]
    assert "--after 3" in outcome.err


def test_fetch_as_json_gives_the_whole_record(filled: Cli) -> None:
    row = filled("fetch", "sqlite:runs.db", "r-1", "--json", "-n", "1").rows[0]
    assert (row["stream"], row["seq"], row["type"], row["tenant"]) == ("r-1", 1, "RunStarted", "acme")
    assert row["event"]["eventType"] == "RunStarted"


def test_tail_prints_the_feed_and_where_to_go_on(filled: Cli) -> None:
    filled("append", "sqlite:runs.db", stdin=ndjson(event(run="r-2")))
    first = filled("tail", "sqlite:runs.db", "--limit", "2")
    assert [row["seq"] for row in first.rows] == [1, 2]
    position = first.err.strip().split()[-1]
    rest = filled("tail", "sqlite:runs.db", "--after", position)
    assert [(row["stream"], row["seq"]) for row in rest.rows] == [("r-1", 3), ("r-1", 4), ("r-2", 1)]


def test_tail_of_one_stream_leaves_the_others_out(filled: Cli) -> None:
    filled("append", "sqlite:runs.db", stdin=ndjson(event(run="r-2")))
    assert [row["stream"] for row in filled("tail", "sqlite:runs.db", "--stream", "r-2").rows] == ["r-2"]


def test_streams_lists_status_and_last_seq(filled: Cli) -> None:
    row = filled("streams", "sqlite:runs.db", "--json").rows[0]
    assert (row["stream"], row["status"], row["lastSeq"], row["events"]) == ("r-1", "COMPLETED", 4, 4)
    assert "COMPLETED" in filled("streams", "sqlite:runs.db").out


def test_snapshot_prints_the_kept_state_byte_for_byte_as_a_projection(filled: Cli) -> None:
    kept = filled("snapshot", "sqlite:runs.db", "r-1", "--json").out
    assert kept == filled("snapshot", "sqlite:runs.db", "r-1", "--project", "--json").out
    assert json.loads(kept)["status"] == "COMPLETED"


def test_snapshot_at_a_place_shows_the_state_of_then(filled: Cli) -> None:
    assert json.loads(filled("snapshot", "sqlite:runs.db", "r-1", "--at-seq", "2").out)["status"] == "RUNNING"


def test_snapshot_at_a_time_needs_a_zone(filled: Cli) -> None:
    assert filled("snapshot", "sqlite:runs.db", "r-1", "--at-time", "2026-01-01T00:00:00").code == 2
    before = filled("snapshot", "sqlite:runs.db", "r-1", "--at-time", "2020-01-01T00:00:00Z")
    assert json.loads(before.out)["lastEventSeq"] == 0


def test_diff_shows_what_changed(filled: Cli) -> None:
    rows = filled("diff", "sqlite:runs.db", "r-1", "--from", "2", "--to", "3", "--json").rows
    assert {"path": "/steps/0/status", "kind": "changed", "before": "RUNNING", "after": "SUCCESS"} in rows
    assert "/steps/0/status" in filled("diff", "sqlite:runs.db", "r-1", "--from", "2", "--to", "3").out


def test_replay_check_passes_on_a_healthy_store(filled: Cli) -> None:
    outcome = filled("replay", "sqlite:runs.db", "--check")
    assert (outcome.code, outcome.err.strip()) == (0, "1 stream: 1 right, 0 wrong")


def test_replay_check_finds_a_snapshot_that_was_tampered_with_and_replay_mends_it(filled: Cli) -> None:
    _sql("UPDATE snapshots SET body = replace(body, 'COMPLETED', 'CANCELLED')")
    assert filled("replay", "sqlite:runs.db", "--check").code == 1
    assert filled("replay", "sqlite:runs.db").code == 0
    assert filled("replay", "sqlite:runs.db", "--check").code == 0


def test_replay_check_names_a_stream_without_a_snapshot(filled: Cli) -> None:
    _sql("DELETE FROM snapshots")
    outcome = filled("replay", "sqlite:runs.db", "--check")
    assert (outcome.code, outcome.err) == (1, "1 stream: 0 right, 1 wrong\n")
    assert outcome.out == "r-1: log.damaged: No snapshot is stored; rebuild it with 'runstate replay'\n"


def test_replay_check_of_a_log_without_streams_is_not_fine(cli: Cli) -> None:
    runstate.open("sqlite:empty.db").close()
    outcome = cli("replay", "sqlite:empty.db", "--check")
    assert (outcome.code, outcome.err) == (1, "nothing to compare: the log has no streams\n")


def test_verify_repair_and_replay_agree_about_an_edited_snapshot(filled: Cli) -> None:
    _sql("UPDATE snapshots SET body = CAST(replace(body, 'COMPLETED', 'FAILED') AS BLOB)")
    assert filled("verify", "sqlite:runs.db").code == 1
    assert filled("replay", "sqlite:runs.db", "--check").code == 1
    # The answer is right all the same: the edited snapshot is not believed.
    assert '"status":"COMPLETED"' in filled("snapshot", "sqlite:runs.db", "r-1", "--json").out
    proposed = filled("repair", "sqlite:runs.db", "--dry-run")
    assert (proposed.code, proposed.out) == (0, "r-1: snapshot.rebuilt: The snapshot is rebuilt from the log\n")
    assert filled("verify", "sqlite:runs.db").code == 1
    assert filled("repair", "sqlite:runs.db").code == 0
    for check in (("verify",), ("replay", "--check"), ("repair",)):
        assert filled(check[0], "sqlite:runs.db", *check[1:]).code == 0
    assert filled("repair", "sqlite:runs.db").err == "nothing to repair\n"


def test_repair_sets_changed_events_aside_and_then_every_command_agrees(filled: Cli) -> None:
    _sql(
        "DROP TRIGGER events_are_never_updated", "UPDATE events SET body = replace(body, 'acme', 'evil') WHERE seq = 3"
    )
    for command in (("fetch", "r-1"), ("replay", "--check"), ("verify",)):
        assert filled(command[0], "sqlite:runs.db", *command[1:]).code == 1
    proposed = filled("repair", "sqlite:runs.db", "--dry-run")
    assert (proposed.code, "kept: 1 to 2; set aside in set_aside_events: 3 (changed)" in proposed.out) == (0, True)
    assert filled("repair", "sqlite:runs.db").out == proposed.out
    for command in (("fetch", "r-1"), ("replay", "--check"), ("verify",), ("repair",)):
        assert filled(command[0], "sqlite:runs.db", *command[1:]).code == 0
    assert "log.set_aside" in filled("verify", "sqlite:runs.db").out


def test_repair_says_when_there_is_damage_that_it_cannot_help_with(filled: Cli) -> None:
    filled("append", "sqlite:runs.db", stdin=ndjson(*history))
    _sql("DELETE FROM streams")
    outcome = filled("repair", "sqlite:runs.db")
    assert outcome.code == 1
    assert "backup" in outcome.err


def test_a_model_that_cannot_fold_a_stream_is_told_and_the_others_are_replayed(filled: Cli) -> None:
    Path("broken.py").write_text(thermostat.replace("return Room", "return 1 / 0, Room"))
    filled("append", "sqlite:runs.db", "-m", "broken.py:Thermostat", stdin=ndjson(heating))
    failed = filled("replay", "sqlite:runs.db", "kitchen", "-m", "broken.py:Thermostat")
    assert (failed.code, "kitchen: model.failed" in failed.out) == (1, True)
    outcome = filled("replay", "sqlite:runs.db")
    assert (outcome.code, outcome.out.startswith("kitchen: ")) == (1, True)
    assert "1 stream replayed, 1 failed" in outcome.err


@pytest.mark.parametrize("name", ["[/x]", "no[bold]pe"])
def test_what_a_user_types_is_shown_as_it_was_typed(filled: Cli, name: str) -> None:
    assert name in filled("fetch", "sqlite:runs.db", name.replace("/", "|")).err.replace("|", "/")


def test_verify_finds_an_edited_event_and_says_where(filled: Cli) -> None:
    assert filled("verify", "sqlite:runs.db").code == 0
    _sql(
        "DROP TRIGGER events_are_never_updated",
        "UPDATE events SET body = replace(body, 'acme', 'evil') WHERE seq = 3",
    )
    outcome = filled("verify", "sqlite:runs.db", "--json")
    assert outcome.code == 1
    assert [(row["code"], row["stream"], row["seq"]) for row in outcome.rows] == [("log.event_changed", "r-1", 3)]


def test_validate_reports_file_line_and_reason(cli: Cli) -> None:
    Path("events.ndjson").write_bytes(ndjson(history[0], b"{nonsense\n", event(idempotencyKey="abc123")))
    outcome = cli("validate", "events.ndjson")
    assert outcome.code == 1
    lines = outcome.out.strip().split("\n")
    assert lines[0].startswith("events.ndjson:2: json.invalid:")
    assert lines[1].startswith("events.ndjson:3: event.key_mismatch:")


def test_validate_accepts_what_fetch_prints(filled: Cli) -> None:
    lines = filled("fetch", "sqlite:runs.db", "r-1").out.encode()
    assert filled("validate", "-", stdin=lines).code == 0


# --- bad input: a code, what to do, a line number, and nothing written --------------------------------------

deep = b'{"a":' * 1000 + b"1" + b"}" * 1000
bad_lines = {
    "breaks its schema": (event(logicalAttemptId="one"), "event.invalid"),
    "misses a member": ({k: v for k, v in history[0].items() if k != "tenantId"}, "event.invalid"),
    "holds | in a key field": (event(run="a|b"), "event.invalid"),
    "stepId on a run event": (event(stepId="x"), "event.invalid"),
    "no stepId on a step event": (event("StepStarted"), "event.invalid"),
    "time without zone": (event(emittedAt="2026-11-15T09:30:00"), "event.invalid"),
    "NaN": (ndjson(event(payload={"x": float("nan")})), "json.invalid"),
    "10 MB of payload": (event(payload={"x": "y" * 10_000_000}), "event.too_large"),
    "1,000-deep JSON": (deep + b"\n", "json.invalid"),
    "control character in the run id": (event(run="a\u0001b"), "stream.invalid"),
    "not JSON": (b"hello\n", "json.invalid"),
    "duplicate name": (b'{"a":1,"a":2}\n', "json.invalid"),
    "2^63": (ndjson(event(payload={"x": 2**63})), "json.invalid"),
    "lone surrogate": (b'{"a":"\\ud800"}\n', "json.invalid"),
    "not UTF-8": (b'{"a":"\xff"}\n', "json.invalid"),
    "assigned by the store": (event(runSeq=3, persistedAt="2026-11-15T09:30:00Z"), "event.invalid"),
    "not an object": (b"[1]\n", "event.invalid"),
}


@pytest.mark.parametrize("case", bad_lines)
def test_a_bad_line_is_refused_with_its_number_and_nothing_is_written(cli: Cli, case: str) -> None:
    line, code = bad_lines[case]
    outcome = cli("append", "sqlite:runs.db", "--json", stdin=ndjson(history[0], line, history[3]))
    assert outcome.code == 2
    told = json.loads(outcome.err.strip().split("\n")[-1])
    assert (told["code"], told["details"]["line"]) == (code, 2)
    assert not Path("runs.db").exists()


def test_the_size_limit_can_be_raised(cli: Cli) -> None:
    big = ndjson(event(payload={"x": "y" * 2_000_000}))
    assert cli("append", "sqlite:runs.db", stdin=big).code == 2
    assert cli("append", "sqlite:runs.db", "--event-bytes-max", "3000000", stdin=big).code == 0


def test_strict_keys_refuse_a_foreign_key(cli: Cli) -> None:
    line = ndjson(event(idempotencyKey="abc123"))
    assert cli("append", "sqlite:runs.db", "--strict-keys", stdin=line).code == 2
    assert cli("append", "sqlite:runs.db", stdin=line).code == 0


def test_checked_transitions_name_the_line_of_an_impossible_event(cli: Cli) -> None:
    lines = ndjson(event("RunStarted"), event("StepCompleted", step="never"))
    outcome = cli("append", "sqlite:runs.db", "--check-transitions", stdin=lines)
    assert outcome.code == 2
    assert "event.invalid_transition" in outcome.err
    assert cli("streams", "sqlite:runs.db", "--json").rows == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("fetch", "foo:bar", "r-1"), 2, "url.invalid"),
        (("fetch", "no-colon", "r-1"), 2, "url.invalid"),
        (("fetch", "sqlite:", "r-1"), 2, "url.invalid"),
        (("fetch", "sqlite:a.db?x=1", "r-1"), 2, "url.invalid"),
        (("fetch", "sqlite:missing.db", "r-1"), 3, "log.not_found"),
        (("append", "sqlite:no/such/dir.db"), 2, "log.failed"),
        (("fetch", "sqlite:runs.db", "missing"), 3, "stream.not_found"),
        (("snapshot", "sqlite:runs.db", "missing"), 3, "stream.not_found"),
        (("verify", "sqlite:runs.db", "missing"), 3, "stream.not_found"),
        (("replay", "sqlite:runs.db", "missing"), 3, "stream.not_found"),
        (("fetch", "sqlite:runs.db", "a\x01b"), 2, "stream.invalid"),
        (("tail", "sqlite:runs.db", "--after", "x"), 2, "log.invalid_position"),
        (("append", "sqlite:runs.db", "--model", "nope"), 2, "model.unknown"),
        (("append", "sqlite:runs.db", "--model", "missing.py:X"), 2, "model.unknown"),
    ],
)
def test_a_wrong_argument_says_what_is_wrong(filled: Cli, arguments: tuple[str, ...], code: int, said: str) -> None:
    outcome = filled(*arguments)
    assert outcome.code == code
    assert said in outcome.err
    assert outcome.out == ""


def test_a_file_that_is_no_database_is_left_untouched(cli: Cli) -> None:
    Path("notes.txt").write_text("not a database, but long enough to be taken for one" * 100)
    before = Path("notes.txt").read_bytes()
    outcome = cli("append", "sqlite:notes.txt", stdin=ndjson(*history))
    assert outcome.code == 2
    assert "log.not_a_log" in outcome.err
    assert Path("notes.txt").read_bytes() == before


def test_a_database_of_another_application_is_left_untouched(cli: Cli) -> None:
    connection = sqlite3.connect("other.db")
    connection.execute("CREATE TABLE cats (name TEXT)")
    connection.close()
    before = Path("other.db").read_bytes()
    outcome = cli("append", "sqlite:other.db", stdin=ndjson(*history))
    assert "log.not_a_log" in outcome.err
    assert Path("other.db").read_bytes() == before


def test_a_database_of_a_newer_version_is_refused_and_left_untouched(filled: Cli) -> None:
    _sql("INSERT INTO schema_version VALUES (99, 'later')")
    outcome = filled("append", "sqlite:runs.db", stdin=ndjson(event(run="r-9")))
    assert outcome.code == 2
    assert "log.too_new" in outcome.err
    assert "upgrade" in outcome.err


def test_a_log_that_another_process_holds_is_busy(filled: Cli) -> None:
    holder = sqlite3.connect("runs.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    outcome = filled("append", "sqlite:runs.db?busy_timeout_s=0.05", stdin=ndjson(event(run="r-9")))
    holder.close()
    assert outcome.code == 4
    assert "log.busy" in outcome.err


def test_the_file_of_a_new_log_is_private(filled: Cli) -> None:
    assert Path("runs.db").stat().st_mode & 0o777 == 0o600


# --- a model of one's own, and the real process --------------------------------------------------------------

thermostat = """
import msgspec
from runstate import Fact, TaggedModel

class TargetSet(msgspec.Struct, tag="target_set", frozen=True):
    celsius: float

class Room(msgspec.Struct):
    target: float = 20.0

class Thermostat(TaggedModel[TargetSet, Room]):
    name, version = "thermostat", 1
    events, state = TargetSet, Room

    def evolve(self, state, fact):
        return Room(fact.event.celsius)
"""


heating = {"stream": "kitchen", "key": "k1", "event": {"type": "target_set", "celsius": 21.5}}


def test_a_model_in_one_file_works_with_every_command(cli: Cli) -> None:
    Path("thermostat_model.py").write_text(thermostat)
    model = ("--model", "thermostat_model.py:Thermostat")
    line = heating
    assert cli("append", "sqlite:home.db", *model, stdin=ndjson(line)).rows[0]["seq"] == 1
    assert json.loads(cli("snapshot", "sqlite:home.db", "kitchen", *model).out) == {"target": 21.5}
    assert cli("replay", "sqlite:home.db", "--check", *model).code == 0
    assert cli("append", "sqlite:home.db", *model, stdin=ndjson(line | {"event": {"type": "x"}})).code == 2


def _process(*arguments: str, directory: Path) -> subprocess.Popen[bytes]:
    command = [str(Path(sys.executable).parent / "runstate"), *arguments]
    return subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.slow
def test_tail_follows_until_it_is_interrupted(filled: Cli, tmp_path: Path) -> None:
    follower = _process("tail", "sqlite:runs.db", "--follow", directory=tmp_path)
    assert follower.stdout is not None
    for expected in (1, 2, 3, 4):
        assert json.loads(follower.stdout.readline())["seq"] == expected
    filled("append", "sqlite:runs.db", stdin=ndjson(event(run="r-2")))
    assert json.loads(follower.stdout.readline())["stream"] == "r-2"
    follower.send_signal(signal.SIGINT)
    out, err = follower.communicate(timeout=20)
    assert (follower.returncode, out) == (0, b"")
    assert b"--after" in err


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(filled: Cli, tmp_path: Path) -> None:
    producer = _process("tail", "sqlite:runs.db", directory=tmp_path)
    assert producer.stdout is not None
    producer.stdout.close()
    assert producer.wait(timeout=20) == 0
    assert producer.stderr is not None
    assert b"Traceback" not in producer.stderr.read()
    producer.stderr.close()


def test_completion_is_offered_for_the_usual_shells(tmp_path: Path) -> None:
    script = Path(sys.executable).parent / "runstate"
    environment = os.environ | {"_RUNSTATE_COMPLETE": "source_bash"}
    done = subprocess.run([script], env=environment, capture_output=True, text=True, check=True)
    assert "runstate" in done.stdout


def _sql(*statements: str) -> None:
    connection = sqlite3.connect("runs.db")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
