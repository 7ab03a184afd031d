"""The lines of a run directory and the chain that links them, held against hashes that were computed without us."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from runstate.errors import InvalidEvent, InvalidJson
from runstate.models.hash_chain import compact
from runstate.models.rundir import RUNDIR, RunEvent, event_hash
from runstate.models.rundir.model import RunDraft

Json = dict[str, Any]
at = "2026-11-15T09:30:00.000Z"


@pytest.fixture
def lines(golden: Path) -> list[bytes]:
    return (golden / "rundir_events.ndjson").read_bytes().split(b"\n")[:-1]


def event_of(event_id: str = "e-1", kind: str = "SITE_PUBLISHED", **fields: Any) -> RunEvent:
    members: Json = {"payload": {}, "trace_id": "0" * 32, "span_id": "0" * 16}
    return RunEvent(event_id=event_id, run_id="r-1", type=kind, **members | fields)


def draft_of(event: RunEvent) -> RunDraft:
    stream, draft = RUNDIR.draft(event)
    assert stream == "r-1"
    assert isinstance(draft, RunDraft)
    return draft


def render(event: RunEvent, previous: bytes | None = None) -> Json:
    return dict(json.loads(draft_of(event).render(1, at, previous)))


def first_break(lines: list[bytes]) -> int | None:
    """The first line whose hashes are not what the lines say, by the formula and nothing of ours; None if all fit."""
    previous = ""
    for place, line in enumerate(lines):
        event = json.loads(line)
        # Python writes this large double as 1e+21, as RFC 8785 does; the other members have one form.
        payload = json.dumps(event["payload"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        text = event["event_id"] + event["ts"] + event["type"] + payload + previous
        if event["prev_hash"] != previous or event["event_hash"] != hashlib.sha256(text.encode()).hexdigest():
            return place
        previous = event["event_hash"]
    return None


# --- the formula -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({}, "{}"),
        ({"b": 1, "a": [True, None, "x"]}, '{"a":[true,null,"x"],"b":1}'),
        ({"a": {"d": 1, "c": 2}}, '{"a":{"c":2,"d":1}}'),
        ({"a": 1.0, "b": -0.0, "c": 1e21, "d": 1e20, "e": 1e-7, "f": 0.1}, None),
        ({"é": "é", "\U0001f600": 1, "\ufb33": 2}, '{"é":"é","\U0001f600":1,"\ufb33":2}'),
        ({"a": '"\\/\n\x01\u2028'}, '{"a":"\\"\\\\/\\n\\u0001\u2028"}'),
    ],
    ids=str,
)
def test_the_hash_is_sha256_over_id_time_type_payload_and_the_hash_before(payload: Json, text: str | None) -> None:
    numbers = '{"a":1,"b":0,"c":1e+21,"d":100000000000000000000,"e":1e-7,"f":0.1}'
    previous = hashlib.sha256(b"before").hexdigest()
    whole = "e-1" + at + "SITE_PUBLISHED" + (text or numbers) + previous
    line = render(event_of(payload=payload), json.dumps({"event_hash": previous}).encode())
    assert line["event_hash"] == hashlib.sha256(whole.encode()).hexdigest()


def test_the_function_is_the_formula() -> None:
    # printf 'e-12026-11-15T09:30:00.000ZRUN_CREATED{}' | sha256sum
    known = "ef0019d33d0c12672ae6228894bdf4ab96909bc26aeca08eed4e245b61d39de3"
    assert event_hash("e-1", at, "RUN_CREATED", "{}", "") == known


def test_the_first_link_is_empty() -> None:
    assert render(event_of())["prev_hash"] == ""


def test_a_link_is_the_hash_of_the_line_before() -> None:
    first = draft_of(event_of("e-1")).render(1, at)
    assert render(event_of("e-2"), first)["prev_hash"] == json.loads(first)["event_hash"]


def test_a_payload_is_hashed_the_same_however_it_was_written() -> None:
    texts = ['{"a":1,"b":[2.50]}', '{ "b" : [25e-1], "a" : 1.0 }']
    assert len({compact(json.loads(text)) for text in texts}) == 1


# --- the golden log --------------------------------------------------------------------------------------


def test_the_chain_of_the_golden_log_is_whole(lines: list[bytes]) -> None:
    assert (first_break(lines), len(lines)) == (None, 24)


def test_the_golden_events_are_written_as_they_were(lines: list[bytes]) -> None:
    rendered: list[bytes] = []
    for line in lines:
        event = RUNDIR.parse(line)
        _, draft = RUNDIR.draft(event)
        rendered.append(draft.render(len(rendered) + 1, "never used", rendered[-1] if rendered else None))
    assert rendered == lines


def test_the_golden_events_are_as_their_schema_says(
    lines: list[bytes], schemas: Callable[[str], dict[str, Any]]
) -> None:
    validator = jsonschema_rs.Draft202012Validator(schemas("event"))
    for line in lines:
        validator.validate(json.loads(line))


def test_the_golden_events_fold_into_the_golden_snapshot(lines: list[bytes], golden: Path) -> None:
    state = RUNDIR.fold(RUNDIR.initial("site-2026-11-15"), lines)
    assert RUNDIR.dump(state) == (golden / "rundir_snapshot.json").read_bytes()


def test_a_stored_line_is_decoded_with_every_member(lines: list[bytes]) -> None:
    for line in lines:
        assert msgspec.to_builtins(RUNDIR.decode(line)) == json.loads(line)


# --- a broken chain --------------------------------------------------------------------------------------


@pytest.mark.parametrize("member", ["event_id", "ts", "type", "prev_hash", "event_hash"])
def test_a_changed_member_breaks_the_chain_at_its_line(member: str, lines: list[bytes]) -> None:
    for place in range(len(lines)):
        event = json.loads(lines[place])
        event[member] = event[member][:-1] + "x"
        changed = [*lines[:place], json.dumps(event).encode(), *lines[place + 1 :]]
        assert first_break(changed) == place


def test_a_changed_payload_breaks_the_chain_at_its_line(lines: list[bytes]) -> None:
    for place in range(len(lines)):
        event = json.loads(lines[place])
        event["payload"]["more"] = 1
        assert first_break([*lines[:place], json.dumps(event).encode(), *lines[place + 1 :]]) == place


def test_a_dropped_line_breaks_the_chain(lines: list[bytes]) -> None:
    assert [first_break(lines[:place] + lines[place + 1 :]) for place in range(len(lines) - 1)] == [*range(23)]


def test_two_lines_that_changed_places_break_the_chain(lines: list[bytes]) -> None:
    for place in range(len(lines) - 1):
        assert first_break([*lines[:place], lines[place + 1], lines[place], *lines[place + 2 :]]) == place


def test_the_chain_does_not_cover_the_run_and_its_spans(lines: list[bytes]) -> None:
    """The formula is not ours to change; what it leaves out is said in docs/formats/rundir.md."""
    event = json.loads(lines[0]) | {"trace_id": "f" * 32, "span_id": "f" * 16, "run_id": "another"}
    assert first_break([json.dumps(event).encode(), *lines[1:]]) is None


# --- logs without hashes ---------------------------------------------------------------------------------


def without_hashes(lines: list[bytes]) -> list[bytes]:
    members = [json.loads(line) for line in lines]
    return [json.dumps({n: v for n, v in m.items() if not n.endswith("_hash")}).encode() for m in members]


def test_a_log_without_hashes_is_folded(lines: list[bytes], golden: Path) -> None:
    state = RUNDIR.fold(RUNDIR.initial("site-2026-11-15"), without_hashes(lines))
    assert RUNDIR.dump(state) == (golden / "rundir_snapshot.json").read_bytes()


def test_a_log_without_hashes_is_decoded(lines: list[bytes]) -> None:
    events = [RUNDIR.decode(line) for line in without_hashes(lines)]
    assert {(event.prev_hash, event.event_hash) for event in events} == {(msgspec.UNSET, msgspec.UNSET)}


def test_a_log_without_hashes_is_parsed(lines: list[bytes]) -> None:
    assert [RUNDIR.parse(line).event_id for line in without_hashes(lines)] == [RUNDIR.parse(x).event_id for x in lines]


def test_a_chain_begins_after_the_last_line_without_a_hash(lines: list[bytes]) -> None:
    assert render(event_of(), without_hashes(lines)[-1])["prev_hash"] == ""


# --- what is the log's to say ----------------------------------------------------------------------------


def test_the_log_stamps_the_time_that_a_producer_leaves_out() -> None:
    assert render(event_of())["ts"] == at


def test_the_time_of_a_producer_is_kept_as_it_was_written() -> None:
    assert render(event_of(ts="2020-01-01T00:00:00+01:00"))["ts"] == "2020-01-01T00:00:00+01:00"


def test_the_hashes_of_a_producer_are_not_believed() -> None:
    claimed = event_of(prev_hash="a" * 64, event_hash="b" * 64)
    assert draft_of(claimed).render(1, at) == draft_of(event_of()).render(1, at)


def test_the_members_of_a_line_stand_in_the_order_of_the_schema() -> None:
    event = event_of(payload={"z": 1, "a": 2}, parent_span_id="1" * 16)
    names = ["event_id", "run_id", "ts", "type", "payload", "trace_id", "span_id", "parent_span_id"]
    assert list(render(event)) == [*names, "prev_hash", "event_hash"]


def test_a_line_is_one_line() -> None:
    line = draft_of(event_of('"\\', payload={"a\nb": "\r\n\u2028\x85\0"})).render(1, at)
    assert not {b"\n", b"\r", b"\0"} & {line[place : place + 1] for place in range(len(line))}


def test_the_payload_stands_in_the_line_as_it_was_given() -> None:
    assert list(render(event_of(payload={"z": 1, "a": 2}))["payload"]) == ["z", "a"]


def test_a_draft_is_named_by_its_event_id() -> None:
    draft = draft_of(event_of("e-7"))
    assert (draft.key, draft.event_id, draft.chained) == ("e-7", "e-7", True)


# --- retries ---------------------------------------------------------------------------------------------

first = event_of(payload={"a": 1, "b": [1e21]})


@pytest.mark.parametrize(
    "retry",
    [
        first,
        event_of(payload={"b": [1e21], "a": 1.0}),
        event_of(payload={"a": 1, "b": [1e21]}, ts="2020-01-01T00:00:00Z"),
        event_of(payload={"a": 1, "b": [1e21]}, prev_hash="a" * 64),
    ],
    ids=repr,
)
def test_a_retry_says_the_same(retry: RunEvent) -> None:
    stored = draft_of(first).render(1, at, b'{"event_hash":"before"}')
    assert draft_of(retry).same_content(stored)


@pytest.mark.parametrize(
    "other",
    [
        event_of(payload={"a": True, "b": [1e21]}),
        event_of(payload={"a": 1}),
        event_of(kind="SITE_MOVED", payload=first.payload),
        event_of(payload=first.payload, span_id="f" * 16),
        event_of(payload=first.payload, parent_span_id="f" * 16),
    ],
    ids=repr,
)
def test_something_else_under_the_same_id_does_not(other: RunEvent) -> None:
    assert not draft_of(other).same_content(draft_of(first).render(1, at))


# --- bad lines from outside ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"event_id":"e","event_id":"e"}',
        '{"a":NaN}',
        '{"payload":{"n":9007199254740993}}',
        '{"a":"\\ud800"}',
    ],
)
def test_a_line_that_is_no_event_is_refused_with_an_error_of_ours(text: str) -> None:
    with pytest.raises((InvalidEvent, InvalidJson)):
        RUNDIR.parse(text.encode())


def test_a_refused_payload_names_its_type_and_member() -> None:
    with pytest.raises(InvalidEvent, match=r"WORK_ITEM_STARTED.*work_item_id"):
        RUNDIR.draft(event_of(kind="WORK_ITEM_STARTED"))
