"""The session model at its boundary: ids, keys, budgets, lines, and what is kept of old ones."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import mypy.api
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.models.session_lines import (
    at,
    begun,
    branch,
    capability,
    created,
    divergence,
    event,
    folded,
    gap,
    output,
    preferences,
    stored,
    trace,
)

import runstate
from runstate.errors import InvalidEvent, InvalidJson, KeyMismatch, SnapshotTooNew
from runstate.models.canonical import canonical
from runstate.models.envelope import Envelope
from runstate.models.model import check_stream
from runstate.models.session import SESSION, ids, keys
from runstate.models.session.budgets import cut, cut_marker
from runstate.models.session.events import EdgeCreated, NodeCreated, SessionCreated
from runstate.models.session.payloads import EdgeCreatedData, NodeCreatedData, SessionCreatedData

sha = "sha256:" + "0123456789abcdef" * 4

# --- ids --------------------------------------------------------------------------------------------------

id_makers = [ids.session_id, ids.run_id, ids.node_id, ids.event_id, ids.output_id, ids.gap_id, ids.attempt_id]
good_ids = ["a", "0", "a-b_c", "a" * 64]
bad_ids: list[Any] = [
    "",
    "A",
    "-a",
    "_a",
    "a" * 65,
    "a b",
    "a/b",
    "..",
    "a.b",
    "a:b",
    "a>b",
    "é",
    "a\n",
    "a\0",
    None,
    7,
    b"a",
]


@pytest.mark.parametrize("make", id_makers, ids=lambda make: make.__name__)
def test_an_id_is_taken_or_refused_by_its_form(make: Any) -> None:
    assert [make(text) for text in good_ids] == good_ids
    for text in bad_ids:
        with pytest.raises(InvalidEvent, match=r"is no .* id"):
            make(text)


@pytest.mark.parametrize("make", [ids.workflow_hash, ids.snapshot_ref, ids.content_digest])
def test_a_digest_is_taken_or_refused_by_its_form(make: Any) -> None:
    assert make(sha) == sha
    for text in (sha[7:], sha.upper(), sha[:-1], sha + "0", sha + "\n", "md5:" + sha[7:], None):
        with pytest.raises(InvalidEvent):
            make(text)


@pytest.mark.parametrize("make", [ids.workflow_id, ids.step_id])
def test_a_name_is_taken_or_refused_by_its_form(make: Any) -> None:
    assert [make(text) for text in ("a", "Fix.Bug", "wf:2-b_c", "x" * 128)] == ["a", "Fix.Bug", "wf:2-b_c", "x" * 128]
    for text in ("", ".a", "x" * 129, "a/b", "a b", "a\n", None):
        with pytest.raises(InvalidEvent):
            make(text)


@pytest.mark.parametrize("number", [-1, 2**53 - 1, 1.0, True, "1", None])
def test_what_is_no_event_index_is_refused(number: Any) -> None:
    assert [ids.event_index(0), ids.event_index(2**53 - 2)] == [0, 2**53 - 2]
    with pytest.raises(InvalidEvent):
        ids.event_index(number)


@given(st.from_regex(r"[a-z0-9][a-z0-9_-]{0,63}", fullmatch=True))
def test_every_session_id_is_a_stream_id(text: str) -> None:
    check_stream(ids.session_id(text))


@given(st.lists(st.text(alphabet="ab-_1", min_size=1), min_size=1, max_size=3))
def test_a_derived_id_is_an_id_that_the_same_parts_always_give(parts: list[str]) -> None:
    made = ids.node_id(ids.derived("node", *parts))
    assert made == ids.derived("node", *parts) != ids.derived("node", *parts, "more")


def test_parts_that_join_alike_give_different_ids() -> None:
    assert ids.derived("node", "a-b", "c") != ids.derived("node", "a", "b-c")


@pytest.mark.slow
def test_the_type_checker_keeps_ids_apart(tmp_path: Path) -> None:
    names = ["SessionId", "RunId", "NodeId", "EventId", "WorkflowId", "WorkflowHash", "SnapshotRef"]
    mixed = [(one, other) for one in names for other in names if one != other]
    lines = [f"from runstate.models.session.ids import {', '.join([*names, 'EventIndex'])}", "x: EventIndex = 1"]
    lines += [f"a{number}: {one} = {other}('a')" for number, (one, other) in enumerate(mixed)]
    (tmp_path / "mixed.py").write_text("\n".join([*lines, "fine: RunId = RunId('a')", ""]))
    told, _, _ = mypy.api.run([str(tmp_path / "mixed.py"), "--cache-dir", str(tmp_path / "cache")])
    assert told.count("error: Incompatible types in assignment") == len(mixed) + 1
    assert f"Found {len(mixed) + 1} errors in 1 file" in told


# --- keys -------------------------------------------------------------------------------------------------

long = "a" * 64
run, node, other, attempt, out, gap_name = (
    ids.run_id(long),
    ids.node_id(long),
    ids.node_id("b" * 64),
    ids.attempt_id(long),
    ids.output_id(long),
    ids.gap_id(long),
)
every_key = [
    keys.session_created(),
    keys.run_started(run),
    keys.node_created(run, node),
    keys.edge_created(run, node, other),
    keys.edge_created(run, other, node),
    keys.node_output_appended(node, out),
    keys.gap_recorded(gap_name),
    keys.observation_recorded("repo_root_digest", attempt),
    keys.observation_recorded("repo_root_digest", attempt, node),
    keys.preferences_changed(attempt),
    keys.preferences_changed(attempt, node),
    keys.capability_observed(node, "web_browsing", attempt),
    keys.divergence_recorded(node, attempt),
    keys.decision_trace_appended(node, attempt),
]


def test_no_two_things_share_a_key_and_the_longest_ids_fit() -> None:
    assert len(set(every_key)) == len(every_key)
    for key in every_key:
        SESSION.parse(event("session_created", {}, dedupeKey=key))


@pytest.mark.parametrize("key", ["", "A", "a b", "a/b", "é", "a" * 257, "a\n", "a.b"])
def test_a_key_of_another_form_is_refused(key: str) -> None:
    with pytest.raises(InvalidEvent):
        SESSION.parse(event("session_created", {}, dedupeKey=key))


def test_keys_are_what_the_documentation_says() -> None:
    assert keys.edge_created(ids.run_id("r"), ids.node_id("a"), ids.node_id("b")) == "edge_created:r:a>b"
    assert keys.preferences_changed(ids.attempt_id("t")) == "preferences_changed:t"
    assert keys.preferences_changed(ids.attempt_id("t"), ids.node_id("n")) == "preferences_changed:n:t"


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (created(), "session_created"),
        (begun[1], "run_started:r"),
        (begun[2], "node_created:r:n"),
        (
            event("edge_created", {"parentNodeId": "n", "childNodeId": "m", "edgeKind": "acked_step"}, "r"),
            "edge_created:r:n>m",
        ),
        (output("o"), "node_output_appended:n:o"),
        (gap("g"), "gap_recorded:g"),
        (branch("main"), None),
        (trace(), None),
    ],
)
def test_the_key_that_an_event_gives_by_itself(line: bytes, key: str | None) -> None:
    assert SESSION.expected_key(SESSION.parse(line)) == key


def test_an_event_fits_its_own_key_and_none_of_another() -> None:
    lines = {
        "session_created": created(),
        "run_started:r": begun[1],
        "node_created:r:n": begun[2],
        "edge_created:r:n>m": event(
            "edge_created", {"parentNodeId": "n", "childNodeId": "m", "edgeKind": "acked_step"}, "r"
        ),
        "node_output_appended:n:o": output("o"),
        "gap_recorded:g": gap("g"),
        "observation_recorded:git_branch:a": branch("main"),
        "observation_recorded:git_branch:n:a": branch("main", "n"),
        "preferences_changed:a": preferences("guided"),
        "preferences_changed:n:a": preferences("guided", "n"),
        "capability_observed:n:delegation:a": capability("available", "probe_step"),
        "divergence_recorded:n:a": divergence(),
        "decision_trace_appended:n:a": trace(),
    }
    for own, line in lines.items():
        for key in lines:
            said = msgspec.structs.replace(SESSION.parse(line), dedupe_key=ids.DedupeKey(key))
            assert keys.fits(said) == (key == own), (own, key)


def test_a_strict_store_refuses_a_key_that_the_ids_do_not_give() -> None:
    with runstate.open("memory:", SESSION, strict_keys=True) as store:
        with pytest.raises(KeyMismatch):
            store.append_event(SESSION.parse(event("session_created", {}, dedupeKey="mine")))
        store.append_event(SESSION.parse(event("session_created", {}, dedupeKey="session_created")))


# --- budgets ----------------------------------------------------------------------------------------------


@given(st.text(), st.integers(10, 40))
def test_a_cut_text_fits_shows_its_cut_and_is_cut_no_further(text: str, bytes_max: int) -> None:
    made = cut(text, bytes_max)
    assert len(made.encode()) <= bytes_max
    if made == text:
        assert len(text.encode()) <= bytes_max
    else:
        assert len(text.encode()) > bytes_max
        assert text.startswith(made.removesuffix(cut_marker))
        assert made.endswith(cut_marker)
        assert len(made.encode()) > bytes_max - 4
    assert cut(made, bytes_max) == made


budgeted: list[tuple[str, int, bool]] = [
    ("title", 200, True),
    ("summary", 1024, True),
    ("howToResolve", 2048, True),
    ("trace", 512, True),
    ("sessionKey", 256, False),
    ("notes", 16384, False),
    ("name", 256, False),
    ("branch", 256, False),
]


def with_text(place: str, text: str) -> bytes:
    artifact = {"name": text, "digest": sha, "contentType": "a/b", "byteLength": 1}
    made = {
        "title": lambda: event("session_created", {"title": text}),
        "sessionKey": lambda: event("session_created", {"sessionKey": text}),
        "summary": lambda: gap("g", summary=text),
        "howToResolve": lambda: gap("g", howToResolve=text),
        "trace": lambda: event(
            "decision_trace_appended", {"items": [{"kind": "entered_loop", "summary": text}]}, "r", "n"
        ),
        "notes": lambda: output("o", notes=text),
        "name": lambda: output("o", artifacts=[artifact]),
        "branch": lambda: branch(text),
    }
    return made[place]()


@pytest.mark.parametrize(("place", "bytes_max", "is_cut"), budgeted, ids=[place for place, _, _ in budgeted])
@pytest.mark.parametrize("sign", ["x", "é", "\U0001f600"])
def test_a_text_beyond_its_budget_of_bytes_is_cut_or_refused(
    place: str, bytes_max: int, is_cut: bool, sign: str
) -> None:
    fits = sign * (bytes_max // len(sign.encode()))
    kept = SESSION.draft(SESSION.parse(with_text(place, fits)))[1].render(1, at)
    assert fits.encode() in kept
    SESSION.check_line(kept)
    beyond = with_text(place, fits + "xxxx")
    if not is_cut:
        with pytest.raises(InvalidEvent):
            SESSION.parse(beyond)
        return
    line = SESSION.draft(SESSION.parse(beyond))[1].render(1, at)
    assert cut_marker.encode() in line
    SESSION.check_line(line)
    # No append wrote a longer one, so a stored line that has one is none of ours.
    with pytest.raises(InvalidEvent):
        SESSION.check_line(kept.replace(fits.encode(), (fits + "xxxx").encode()))


def test_an_event_is_cut_alike_whether_it_comes_as_a_line_or_as_a_struct() -> None:
    made = SessionCreated(
        event_id=ids.event_id("e-1"),
        session_id=ids.session_id("s-1"),
        dedupe_key=keys.session_created(),
        data=SessionCreatedData(title="x" * 300),
    )
    line = event("session_created", {"title": "x" * 300}, dedupeKey="session_created")
    assert SESSION.draft(made) == SESSION.draft(SESSION.parse(line))


def test_there_is_a_bound_on_how_many_things_an_event_holds() -> None:
    artifact = {"name": "a", "digest": sha, "contentType": "a/b", "byteLength": 1}
    item = {"kind": "entered_loop", "summary": "s"}
    for line in (
        output("o", artifacts=[artifact] * 65),
        event("decision_trace_appended", {"items": [item] * 33}, "r", "n"),
    ):
        with pytest.raises(InvalidEvent):
            SESSION.parse(line)


# --- lines ------------------------------------------------------------------------------------------------


def test_a_line_counts_from_zero_what_a_log_counts_from_one() -> None:
    stream, draft = SESSION.draft(SESSION.parse(created()))
    line = draft.render(1, at)
    assert stream == "s-1"
    assert line.startswith(b'{"eventIndex":0,"persistedAt":"2026-11-15T09:30:00.500Z",')
    assert SESSION.envelope(line) == Envelope("s-1", 1, "e-1", "session_created", "session_created:1", "", "", at)
    assert SESSION.envelope(created()) == Envelope(
        "s-1", None, "e-1", "session_created", "session_created:1", "", "", None
    )


def test_what_is_decoded_says_what_was_written() -> None:
    for line in (*begun, gap("g"), trace(), branch("ü\u2028"), output("o")):
        decoded = SESSION.decode(stored([line])[0])
        given = msgspec.json.decode(line)
        found = {
            n: v for n, v in json.loads(msgspec.json.encode(decoded)).items() if n not in ("eventIndex", "persistedAt")
        }
        assert found == given | {"eventId": "e-0", "dedupeKey": "k:0"}


@pytest.mark.parametrize("assigned", [{"eventIndex": 0}, {"persistedAt": at}, {"eventIndex": 0, "persistedAt": at}])
def test_a_producer_assigns_no_place_and_no_time(assigned: dict[str, Any]) -> None:
    line = event("session_created", {}, **assigned)
    with pytest.raises(InvalidEvent, match="assigned by the log"):
        SESSION.parse(line)
    if len(assigned) == 1:
        with pytest.raises(InvalidEvent):
            SESSION.check_line(line)


def test_a_retry_with_another_event_id_is_the_same_event_and_other_words_are_not() -> None:
    alerts: list[Any] = []
    with runstate.open("memory:", SESSION, on_alert=alerts.append) as store:
        first = store.append_event(SESSION.parse(created()))
        again = store.append_event(SESSION.parse(event("session_created", {}, eventId="e-2")))
        assert (first.persisted, again.idempotent, again.seq, alerts) == (True, True, first.seq, [])
        store.append_event(SESSION.parse(event("session_created", {"title": "other"})))
        assert [alert.code for alert in alerts] == ["IDEMPOTENCY_CONTENT_MISMATCH"]


@pytest.mark.parametrize(
    "made",
    [
        SessionCreated(event_id=7, session_id="s-1", dedupe_key="k", data=SessionCreatedData()),  # type: ignore[arg-type]
        SessionCreated(event_id="e", session_id="../s", dedupe_key="k", data=SessionCreatedData()),  # type: ignore[arg-type]
        SessionCreated(event_id="e", session_id="s", dedupe_key="k", data=None),  # type: ignore[arg-type]
        SessionCreated(event_id="e", session_id="s", dedupe_key="k", data=SessionCreatedData(title="\ud800")),  # type: ignore[arg-type]
        SessionCreated(event_id="e", session_id="s", dedupe_key="k", data=SessionCreatedData(title=object())),  # type: ignore[arg-type]
        SessionCreated(event_id="e", session_id="s", dedupe_key="k", data=SessionCreatedData(title=b"text")),  # type: ignore[arg-type]
        SessionCreated(event_id="e", session_id="s", dedupe_key="k", data=SessionCreatedData(title=Decimal(1))),  # type: ignore[arg-type]
        EdgeCreated(
            event_id="e",  # type: ignore[arg-type]
            session_id="s",  # type: ignore[arg-type]
            dedupe_key="k",  # type: ignore[arg-type]
            run_id="r",  # type: ignore[arg-type]
            data=EdgeCreatedData(parent_node_id="a", child_node_id="b", edge_kind="jumped"),  # type: ignore[arg-type]
        ),
        NodeCreated(
            event_id="e",  # type: ignore[arg-type]
            session_id="s",  # type: ignore[arg-type]
            dedupe_key="k",  # type: ignore[arg-type]
            run_id="r",  # type: ignore[arg-type]
            data=NodeCreatedData(node_id="n", node_kind="step", snapshot_ref="sha256:1", workflow_hash=sha),  # type: ignore[arg-type]
        ),
        {"kind": "session_created"},
        None,
    ],
    ids=range(11),
)
def test_a_struct_filled_with_something_else_is_refused(made: Any) -> None:
    with pytest.raises(InvalidEvent):
        SESSION.draft(made)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        b"{" * 500,
        created().replace(b"{}", b'{"title":"\\ud800"}'),
        created().replace(b'"kind"', b'"kind":"session_created","kind"'),
        created().replace(b'"session_created"', b"7"),
        created().replace(b'"data":{}', b'"data":NaN'),
    ],
    ids=lambda line: repr(line[:24]),
)
def test_what_is_no_event_is_refused(line: bytes) -> None:
    for check in (SESSION.parse, SESSION.check_line):
        with pytest.raises((InvalidEvent, InvalidJson)):
            check(line)


def test_an_integer_may_be_written_like_any_number_and_is_stored_as_an_integer() -> None:
    artifact = b'{"name":"a","digest":"%b","contentType":"a/b","byteLength":7.0}' % sha.encode()
    line = output("o").replace(b'"notes"', b'"artifacts":[%b],"notes"' % artifact)
    assert b'"byteLength":7}' in SESSION.draft(SESSION.parse(line))[1].render(1, at)


# --- snapshots --------------------------------------------------------------------------------------------


def test_a_snapshot_is_rfc_8785_and_comes_back() -> None:
    state = folded([*begun, gap("g", summary="é\u2028\0\x7f\U0001f600"), branch("ü"), output("o", notes='"\\/')])
    body = SESSION.dump(state)
    assert canonical(json.loads(body)) == body
    assert (SESSION.load(body), SESSION.dump(SESSION.load(body))) == (state, body)


@pytest.mark.parametrize("change", [{}, {"new": 1}, {"nodes": []}, {"sessionId": None}], ids=str)
def test_a_newer_snapshot_is_refused_as_such(change: dict[str, Any]) -> None:
    newer = json.loads(SESSION.dump(folded(begun))) | {"schemaVersion": 2} | change
    with pytest.raises(SnapshotTooNew, match="2"):
        SESSION.load(json.dumps(newer).encode())


def test_every_torn_snapshot_is_refused() -> None:
    body = SESSION.dump(folded(begun))
    for length in range(len(body)):
        with pytest.raises(InvalidJson):
            SESSION.load(body[:length])


# --- what was written once stays readable -----------------------------------------------------------------


def test_the_golden_events_are_written_and_folded_as_they_were(golden: Path) -> None:
    lines = (golden / "session_events.jsonl").read_bytes().removesuffix(b"\n").split(b"\n")
    kinds = set()
    for seq, line in enumerate(lines, 1):
        SESSION.check_line(line)
        members = {n: v for n, v in msgspec.json.decode(line).items() if n not in ("eventIndex", "persistedAt")}
        said = SESSION.envelope(line)
        draft = SESSION.draft(SESSION.parse(msgspec.json.encode(members)))[1]
        assert (said.seq, draft.render(seq, said.persisted_at or "")) == (seq, line)
        kinds.add(said.type)
    assert len(kinds) == 11
    state = SESSION.fold(SESSION.initial("golden"), lines)
    assert SESSION.dump(state) == (golden / "session_snapshot.json").read_bytes()
