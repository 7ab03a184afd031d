"""The checks of one stream: each finds what was planted, tells it once, and says nothing about what is healthy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runstate.errors import LogDamaged, LogFailed
from runstate.logs.log import Finding, Record
from runstate.models.canonical import digest
from runstate.models.engine import ENGINE, RunEventWrite
from runstate.models.engine.evolve import run_transitions, step_transitions
from runstate.models.model import Alert, AlertSink, Draft, Model
from runstate.models.rundir import RUNDIR, RunEvent
from runstate.models.tagged import Fact, TaggedModel
from runstate.pipeline.audit import checks
from runstate.pipeline.audit.checks import Audited, Bounds, Kept, audit_stream, conflicts
from runstate.pipeline.audit.stream_findings import Told, told_max

AnyModel = Model[Any, Any, Any]
Write = Callable[..., RunEventWrite]
begin = datetime(2026, 11, 15, 9, 30, tzinfo=UTC)
_bounds = Bounds(as_of=begin + timedelta(hours=1))


def _at(seconds: float) -> str:
    return (begin + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _stored(
    model: AnyModel, event: Any, seq: int, persisted_at: str | None = None, previous: bytes | None = None
) -> Record:
    """An event as a log would hold it."""
    stream, draft = model.draft(event)
    at = persisted_at or _at(seq)
    return Record(
        stream,
        seq,
        draft.event_id,
        draft.type,
        draft.key,
        draft.tenant,
        draft.emitted_at,
        at,
        draft.render(seq, at, previous),
    )


@pytest.fixture
def healthy(write: Write) -> list[Record]:
    """A run of four events, from its start to its end."""
    events = [write(), write("StepStarted", "load"), write("StepCompleted", "load"), write("RunCompleted")]
    return [_stored(ENGINE, event, seq) for seq, event in enumerate(events, 1)]


def _changed(record: Record, **members: Any) -> Record:
    return msgspec.structs.replace(record, **members)


class _Outcome:
    def __init__(self, told: Told, audited: Audited) -> None:
        self.findings, self.audited = told.findings(), audited

    @property
    def codes(self) -> list[str]:
        return [finding.code for finding in self.findings]

    @property
    def only(self) -> Finding:
        (finding,) = self.findings
        return finding


def _audit(
    records: Iterator[Record] | Sequence[Record],
    model: AnyModel = ENGINE,
    *,
    log_told: Sequence[Finding] = (),
    bounds: Bounds = _bounds,
    **more: Any,
) -> _Outcome:
    told = Told("r-1")
    for finding in log_told:
        told.pass_on(finding)
    return _Outcome(told, audit_stream("r-1", iter(records), model, bounds, told, **more))


# --- healthy -----------------------------------------------------------------------------------------------------


def test_a_healthy_stream_has_no_finding(healthy: list[Record]) -> None:
    outcome = _audit(healthy)
    assert not outcome.findings
    assert outcome.audited.events == 4


def test_an_empty_stream_has_no_finding() -> None:
    assert _audit([]).audited.events == 0
    assert not _audit([]).findings


def test_a_run_directory_that_gives_no_times_is_healthy_in_any_log() -> None:
    def event(number: int, kind: str) -> RunEvent:
        spans = {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7"}
        payload: dict[str, Any] = {"config": {}, "parameters": {}} if number == 1 else {}
        return RunEvent(event_id=f"e-{number}", run_id="r-1", type=kind, payload=payload, **spans)

    first = _stored(RUNDIR, event(1, "RUN_CREATED"), 1)
    second = _stored(RUNDIR, event(2, "RUN_COMPLETED"), 2, previous=first.body)
    assert not _audit([first, second], RUNDIR).findings


_possible = sorted({*run_transitions, "SignalAccepted"})
_possible_of_steps = sorted(step_transitions)
_steps = st.tuples(
    st.sampled_from(_possible + _possible_of_steps),
    st.sampled_from(["extract", "load"]),
    st.integers(1, 2),
    st.integers(0, 90),
    st.integers(0, 59),
)


@given(st.lists(_steps, max_size=40), st.integers(0, 40), st.sampled_from([1, 2, 7, 256]), st.sampled_from([0, 4096]))
def test_what_a_log_has_stored_is_never_called_damaged(
    drawn: list[tuple[str, str, int, int, int]], kept_at: int, block_records: int, sorted_from: int
) -> None:
    records: list[Record] = []
    now = 0.0
    for seq, (kind, step, attempt, pause_s, ahead_s) in enumerate(drawn, 1):
        now += pause_s
        event = RunEventWrite(
            event_id=f"00000000-0000-4000-8000-{seq:012d}",
            event_type=kind,
            emitted_at=_at(now + ahead_s),
            run_id="r-1",
            tenant_id="acme",
            project_id="p",
            environment_id="e",
            plan_id="n",
            plan_version="1",
            engine_attempt_id=1,
            logical_attempt_id=attempt,
            idempotency_key=f"{kind}-{seq}",
            step_id=step if kind in step_transitions else msgspec.UNSET,
        )
        records.append(_stored(ENGINE, event, seq, _at(now)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checks, "_block_records", block_records)
        patched.setattr(checks, "_sorted_from", sorted_from)
        outcome = _audit(records, kept=[_kept(records, min(kept_at, len(records)))])
    assert outcome.audited.events == len(records)
    # Whatever producers have sent, only what no state allows is flagged.
    assert set(outcome.codes) <= {"INVALID_TRANSITION", "PROJECTOR_CAUSAL_VIOLATION"}
    assert all(finding.severity == "warning" for finding in outcome.findings)


# --- order and uniqueness ----------------------------------------------------------------------------------------


def test_a_gap_is_a_warning_that_says_from_where_to_where(write: Write) -> None:
    records = [_stored(ENGINE, write(), 1), _stored(ENGINE, write("RunCompleted"), 5)]
    found = _audit(records).only
    assert (found.code, found.severity, found.seq, found.details) == ("audit.gap", "warning", 2, {"from": 2, "to": 4})


def test_a_stream_that_does_not_begin_at_one_has_a_gap(write: Write) -> None:
    assert _audit([_stored(ENGINE, write("SignalAccepted"), 3)]).only.details == {"from": 1, "to": 2}


def test_a_gap_that_the_log_has_told_of_is_not_told_again(write: Write) -> None:
    records = [_stored(ENGINE, write(), 1), _stored(ENGINE, write("RunCompleted"), 5)]
    missing = Finding(code="log.events_missing", message="gone", seq=2)
    assert _audit(records, log_told=[missing]).codes == ["log.events_missing"]


def test_two_events_with_one_seq_are_damage(healthy: list[Record], write: Write) -> None:
    found = _audit([*healthy, _stored(ENGINE, write("SignalAccepted"), 4)]).only
    assert (found.code, found.severity, found.seq) == ("audit.seq_twice", "damage", 4)


def test_events_out_of_order_are_damage(healthy: list[Record], write: Write) -> None:
    found = _audit([*healthy, _stored(ENGINE, write("SignalAccepted"), 2, _at(9))]).only
    assert (found.code, found.seq, found.details) == ("audit.out_of_order", 2, {"after": 4})


def test_a_seq_below_one_is_out_of_order(write: Write) -> None:
    record = _changed(_stored(ENGINE, write(), 1), seq=0)
    assert "audit.out_of_order" in _audit([record]).codes


@pytest.mark.parametrize(("member", "code"), [("key", "audit.key_twice"), ("event_id", "audit.event_id_twice")])
@pytest.mark.parametrize("sorted_from", [0, 4096])
def test_what_must_be_unique_and_is_not_is_damage(
    healthy: list[Record], member: str, code: str, sorted_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_sorted_from", sorted_from)
    records = [*healthy]
    records[3] = _changed(records[3], **{member: getattr(records[1], member)})
    found = [finding for finding in _audit(records).findings if finding.code == code]
    assert [(f.seq, f.severity, f.details) for f in found] == [(4, "damage", {"firstSeq": 2})]


def test_a_key_that_the_log_has_found_twice_is_not_told_again(healthy: list[Record]) -> None:
    records = [*healthy, _changed(healthy[3], seq=5)]
    codes = _audit(records, log_told=[Finding(code="log.key_twice", message="twice", seq=5)]).codes
    assert "log.key_twice" in codes
    assert "audit.key_twice" not in codes


def test_a_repetition_far_behind_is_found_in_a_long_stream(write: Write) -> None:
    record = _stored(ENGINE, write("SignalAccepted"), 1)
    many = (
        _changed(record, seq=seq, key=f"k{seq % 29_999}", event_id=f"e{seq}", persisted_at=_at(1))
        for seq in range(1, 30_001)
    )
    found = [finding for finding in _audit(many, _Counting()).findings if finding.code == "audit.key_twice"]
    assert [(f.seq, f.details["firstSeq"]) for f in found] == [(30_000, 1)]


def test_of_repeated_keys_the_earlier_event_is_the_first(write: Write) -> None:
    record = _stored(ENGINE, write("SignalAccepted"), 1)
    many = (
        _changed(record, seq=seq, key=f"k{seq % 3000}", event_id=f"e{seq}", persisted_at=_at(1))
        for seq in range(1, 9001)
    )
    found = [finding for finding in _audit(many, _Counting()).findings if finding.code == "audit.key_twice"]
    assert {found.seq - found.details["firstSeq"] for found in found[:-1] if found.seq} == {3000}
    assert found[-1].details == {"andMore": 6000 - told_max}


# --- the line and its envelope -----------------------------------------------------------------------------------


@pytest.mark.parametrize("member", ["stream", "key", "type", "event_id", "tenant", "emitted_at"])
def test_an_envelope_that_its_line_contradicts_is_damage(healthy: list[Record], member: str) -> None:
    records = [*healthy]
    records[1] = _changed(records[1], **{member: "2026-11-15T09:30:01.000Z"})
    found = _audit(records).only
    assert (found.code, found.severity, found.seq) == ("audit.envelope_differs", "damage", 2)
    assert list(found.details["line"]) == [member]


def test_a_line_of_another_stream_is_damage(healthy: list[Record]) -> None:
    records = [_changed(healthy[0], body=healthy[0].body.replace(b'"r-1"', b'"r-2"')), *healthy[1:]]
    assert _audit(records).only.details == {"line": {"stream": "r-2"}}


def test_a_record_of_another_stream_is_damage() -> None:
    record = Record("r-2", 1, "e", "t", "k", "", "", _at(1), b"{}")
    assert _audit([record], _Counting()).codes == ["audit.envelope_differs"]


def test_a_line_that_stands_at_another_place_than_it_says_is_damage(healthy: list[Record]) -> None:
    records = [*healthy]
    records[2] = _changed(records[2], body=records[2].body.replace(b'"runSeq":3', b'"runSeq":9'))
    found = _audit(records).findings[0]
    assert (found.code, found.seq, found.details) == ("audit.envelope_differs", 3, {"line": {"seq": 9}})


def test_a_line_that_cannot_be_read_contradicts_its_envelope(healthy: list[Record]) -> None:
    records = [*healthy[:3], _changed(healthy[3], body=b'{"torn')]
    assert _audit(records).codes == ["audit.envelope_differs", "model.failed"]


def test_of_an_unknown_models_line_the_place_alone_is_compared() -> None:
    record = Record("r-1", 1, "e", "t", "k", "", "", _at(1), b'{"no":1,"type":"anything"}')
    assert not _audit([record], _Counting()).findings
    assert _audit([_changed(record, body=b'{"no":2}')], _Counting()).only.details == {"line": {"seq": 2}}


class _Rang(msgspec.Struct, tag="rang", frozen=True):
    pass


class _Bell(msgspec.Struct):
    times: int = 0


class _Bells(TaggedModel[_Rang, _Bell]):
    name, version = "bells", 1
    events, state = _Rang, _Bell

    def evolve(self, state: _Bell, event: Fact[_Rang]) -> _Bell:
        return _Bell(state.times + 1)


def test_a_tagged_models_line_is_held_against_its_envelope() -> None:
    record = _stored(_Bells(), Fact("r-1", _Rang(), "k-1"), 1)
    assert not _audit([record], _Bells()).findings
    assert list(_audit([_changed(record, key="k-2")], _Bells()).only.details["line"]) == ["key"]


# --- reading -----------------------------------------------------------------------------------------------------


def _until(records: Sequence[Record], error: Exception) -> Iterator[Record]:
    yield from records
    raise error


def test_damage_while_reading_is_told_and_what_was_before_it_counts(healthy: list[Record]) -> None:
    outcome = _audit(_until(healthy[:3], LogDamaged("line 4", stream="r-1", seq=4, offset=7)))
    assert outcome.audited.events == 3
    assert (outcome.only.code, outcome.only.seq, outcome.only.details) == ("log.damaged", 4, {"offset": 7})


def test_damage_that_the_log_has_told_of_is_not_told_again(healthy: list[Record]) -> None:
    broken = Finding(code="EVENT_CHAIN_BROKEN", message="chain", seq=4)
    outcome = _audit(_until(healthy[:3], LogDamaged("line 4", stream="r-1", seq=4)), log_told=[broken])
    assert outcome.codes == ["EVENT_CHAIN_BROKEN"]


def test_any_other_failure_of_a_log_is_told_with_its_code(healthy: list[Record]) -> None:
    assert _audit(_until(healthy, LogFailed("no"))).codes == ["log.failed"]
    assert _audit(_until(healthy, OSError("no"))).codes == ["audit.failed"]


def test_a_record_of_wrong_types_is_told_and_does_not_raise(healthy: list[Record]) -> None:
    outcome = _audit([_changed(healthy[0], seq="one")])
    assert outcome.codes == ["audit.failed"]


def test_damage_is_not_silence(healthy: list[Record]) -> None:
    late = Bounds(as_of=begin + timedelta(days=9))
    assert "audit.silent" not in _audit(_until(healthy[:2], LogDamaged("x", seq=3)), bounds=late).codes


# --- the fold ----------------------------------------------------------------------------------------------------


def test_an_impossible_event_is_a_warning_with_the_alerts_details(healthy: list[Record], write: Write) -> None:
    records = [*healthy, _stored(ENGINE, write("StepCompleted", "other"), 5)]
    outcome = _audit(records)
    assert outcome.codes == ["INVALID_TRANSITION", "PROJECTOR_CAUSAL_VIOLATION"]
    assert {(f.severity, f.seq, f.details["attemptedState"]) for f in outcome.findings} == {("warning", 5, "SUCCESS")}


def test_of_many_alerts_the_first_are_told_and_the_others_counted(write: Write) -> None:
    records = [_stored(ENGINE, write("SignalAccepted", attempt=seq), seq) for seq in range(1, told_max + 32)]
    findings = _audit(records, _Alarming()).findings
    assert [finding.seq for finding in findings] == [*range(1, told_max + 1), None]
    assert findings[-1].details == {"andMore": 31}


class _Counting(Model[Any, bytes, int]):
    """A stranger's model: its lines have a place called `no`, and any JSON beside it."""

    name, version, seq_name = "counting", 3, "no"

    def parse(self, line: bytes) -> Any:
        raise ValueError("never asked")

    def draft(self, event: Any) -> tuple[str, Draft]:
        raise ValueError("never asked")

    def decode(self, body: bytes) -> bytes:
        return body

    def initial(self, stream: str) -> int:
        return 0

    def evolve(self, state: int, event: bytes) -> int:
        return state + 1

    def dump(self, state: int) -> bytes:
        return b"%d" % state

    def load(self, data: bytes) -> int:
        return int(data)


class _Alarming(_Counting):
    seq_name = "runSeq"

    def refusals(self, state: int, event: bytes) -> list[Alert]:
        return [Alert(code="ALARM", level="P3", subject="r-1", details={"code": "x", "message": "y", "self": 1})]


class _Failing(_Counting):
    seq_name = "runSeq"

    def fold(self, state: int, lines: Any, alert: AlertSink | None = None) -> int:
        for number, _ in enumerate(lines, 1):
            if number == 3:
                raise KeyError("three")
        return state


def test_a_model_that_fails_is_damage_and_the_records_are_checked_to_their_end(
    healthy: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_block_records", 1)
    outcome = _audit([*healthy[:3], _changed(healthy[3], key=healthy[0].key)], _Failing())
    assert outcome.audited.events == 4
    assert [(found.code, found.severity, found.seq) for found in outcome.findings] == [
        ("model.failed", "damage", 3),
        ("audit.key_twice", "damage", 4),
    ]


def test_of_a_stream_that_is_not_whole_nothing_is_folded_and_no_gap_is_told(healthy: list[Record]) -> None:
    kept = Kept("the log", 9, ENGINE.version, "", b"")
    assert not _audit(healthy[2:], whole=False, kept=[kept], bounds=Bounds(begin + timedelta(days=9))).findings


# --- snapshots ---------------------------------------------------------------------------------------------------


def _kept(records: Sequence[Record], seq: int, **members: Any) -> Kept:
    body = ENGINE.dump(ENGINE.fold(ENGINE.initial("r-1"), [record.body for record in records[:seq]]))
    return Kept("the log", seq, ENGINE.version, digest(body), body)._replace(**members)


@pytest.mark.parametrize("seq", [0, 2, 4])
def test_a_snapshot_of_any_place_that_equals_the_fold_there_is_fine(healthy: list[Record], seq: int) -> None:
    assert not _audit(healthy, kept=[_kept(healthy, seq), _kept(healthy, 4)]).findings


@pytest.mark.parametrize(
    ("seq", "codes"), [(0, ["audit.snapshot_behind"]), (2, ["audit.snapshot_behind"]), (4, list[str]())]
)
def test_a_current_snapshot_that_is_right_and_does_not_go_to_the_end_is_behind(
    healthy: list[Record], seq: int, codes: list[str]
) -> None:
    outcome = _audit(healthy, kept=[_kept(healthy, seq, is_current=True)])
    assert outcome.codes == codes
    for found in outcome.findings:
        assert (found.severity, found.seq, found.details["lastSeq"]) == ("warning", seq or None, 4)


def test_a_current_snapshot_that_is_not_there_is_behind(healthy: list[Record]) -> None:
    found = _audit(healthy, kept=[Kept("DIR", 0, 0, "", None, is_current=True)]).only
    assert (found.code, found.severity, found.seq) == ("audit.snapshot_behind", "warning", None)
    assert "DIR has no snapshot of this stream" in found.message


def test_a_current_snapshot_that_is_wrong_is_not_called_behind_too(healthy: list[Record]) -> None:
    wrong = _kept(healthy, 4, is_current=True)._replace(seq=2)
    assert _audit(healthy, kept=[wrong]).codes == ["audit.snapshot_differs"]


def test_a_snapshot_that_is_not_what_the_events_fold_into_is_damage(healthy: list[Record]) -> None:
    wrong = _kept(healthy, 4)._replace(seq=2)
    found = _audit(healthy, kept=[wrong]).only
    assert (found.code, found.severity, found.seq) == ("audit.snapshot_differs", "damage", 2)
    assert {"path": "/status", "kind": "changed", "before": "RUNNING", "after": "COMPLETED"} in found.details["changes"]


def test_one_byte_that_is_only_written_differently_is_damage_too(healthy: list[Record]) -> None:
    kept = _kept(healthy, 4)
    spaced = (kept.body or b"").replace(b",", b", ", 1)
    assert _audit(healthy, kept=[kept._replace(body=spaced, digest=digest(spaced))]).codes == ["audit.snapshot_differs"]


def test_a_snapshot_that_is_no_json_is_damage(healthy: list[Record]) -> None:
    assert _audit(healthy, kept=[_kept(healthy, 4, body=b"\xff")]).only.details["changes"] == "not JSON"


def test_a_digest_that_does_not_fit_the_snapshot_is_damage(healthy: list[Record]) -> None:
    found = _audit(healthy, kept=[_kept(healthy, 4, digest="0" * 64)]).only
    assert (found.code, found.details["kept"]) == ("audit.snapshot_differs", "0" * 64)


def test_a_snapshot_ahead_of_its_events_is_damage(healthy: list[Record]) -> None:
    found = _audit(healthy, kept=[_kept(healthy, 4)._replace(seq=5)]).only
    assert (found.code, found.seq, found.details["lastSeq"]) == ("audit.snapshot_differs", 5, 4)


def test_a_snapshot_beyond_damage_is_not_judged(healthy: list[Record]) -> None:
    assert _audit(_until(healthy[:2], LogDamaged("x", seq=3)), kept=[_kept(healthy, 4)]).codes == ["log.damaged"]


def test_a_snapshot_by_another_version_of_the_model_is_ignored(healthy: list[Record]) -> None:
    assert not _audit(healthy, kept=[_kept(healthy, 4, version=ENGINE.version + 1, body=b"{}")]).findings


# --- clocks ------------------------------------------------------------------------------------------------------


def test_a_clock_that_goes_backwards_is_a_warning_that_says_how_far(healthy: list[Record]) -> None:
    records = [*healthy]
    records[2] = _changed(records[2], persisted_at=_at(0.5))
    found = _audit(records).only
    assert (found.code, found.severity, found.seq) == ("audit.clock_backwards", "warning", 3)
    assert found.details == {"backS": 1.5}


def test_a_clock_that_goes_backwards_between_two_blocks_is_found(write: Write) -> None:
    record = Record("r-1", 1, "e", "t", "k", "", "", "", b"{}")
    times = [_at(seq if seq != checks._block_records + 1 else 0) for seq in range(1, 400)]
    many = [
        _changed(record, seq=seq, key=f"k{seq}", event_id=f"e{seq}", persisted_at=at) for seq, at in enumerate(times, 1)
    ]
    assert _audit(many, _Counting()).only.seq == checks._block_records + 1


def test_of_producers_clocks_that_are_ahead_the_worst_is_told(write: Write) -> None:
    records = [
        _stored(ENGINE, write("SignalAccepted", attempt=seq, emitted_at=_at(seq + ahead)), seq)
        for seq, ahead in enumerate([0, 61, 4000.25, 60, -5000, 99], 1)
    ]
    found = _audit(records).only
    assert (found.code, found.severity, found.seq) == ("audit.clock_skew", "warning", 3)
    assert found.details == {"aheadS": 4000.25}
    assert not _audit(records, bounds=Bounds(skew_s=4001)).findings


@pytest.mark.parametrize("text", ["", "yesterday", "2026-11-15T09:30:00", "0000-01-01T00:00:00Z", b"2026", None])
def test_a_time_that_is_none_is_a_warning(healthy: list[Record], text: Any) -> None:
    found = _audit([*healthy[:3], _changed(healthy[3], persisted_at=text)]).only
    assert (found.code, found.severity, found.details) == (
        "audit.time_unreadable",
        "warning",
        {"member": "persisted_at"},
    )


def test_times_at_the_ends_of_the_calendar_are_compared(healthy: list[Record]) -> None:
    records = [*healthy]
    records[1] = _changed(records[1], persisted_at="9999-12-31T23:59:59.999-23:59")
    records[2] = _changed(records[2], persisted_at="0001-01-01T00:00:00+23:59")
    assert set(_audit(records).codes) == {"audit.clock_backwards", "audit.clock_skew"}


# --- silence -----------------------------------------------------------------------------------------------------


def test_a_run_that_is_not_over_and_says_nothing_is_a_warning(healthy: list[Record]) -> None:
    found = _audit(healthy[:2], bounds=Bounds(begin + timedelta(days=2))).only
    assert (found.code, found.severity, found.seq) == ("audit.silent", "warning", 2)
    assert found.details == {"status": "RUNNING", "silentS": 2 * 86_400 - 2}


def test_a_run_that_is_over_may_be_silent(healthy: list[Record]) -> None:
    assert not _audit(healthy, bounds=Bounds(begin + timedelta(days=2))).findings


def test_silence_has_a_bound_and_a_moment_that_it_is_measured_to(healthy: list[Record]) -> None:
    assert not _audit(healthy[:2], bounds=Bounds(begin + timedelta(days=1))).findings
    assert not _audit(healthy[:2], bounds=Bounds(begin + timedelta(days=2), silent_s=3e5)).findings
    assert not _audit(healthy[:2], bounds=Bounds()).findings


def test_a_model_without_statuses_has_no_silent_streams() -> None:
    record = Record("r-1", 1, "e", "t", "k", "", "", _at(1), b"{}")
    assert not _audit([record], _Counting(), bounds=Bounds(begin + timedelta(days=9))).findings


# --- two copies --------------------------------------------------------------------------------------------------


def test_copies_that_agree_as_far_as_both_go_do_not_conflict(healthy: list[Record]) -> None:
    assert conflicts(_audit(healthy).audited, _audit(healthy[:2]).audited) == []
    assert conflicts(_audit(healthy).audited, _audit([]).audited) == []


def test_copies_conflict_where_one_seq_has_two_events(healthy: list[Record]) -> None:
    other = [*healthy[:2], _changed(healthy[2], event_id="other"), healthy[3]]
    assert conflicts(_audit(healthy).audited, _audit(other).audited) == [3]
    assert conflicts(_audit(healthy[1:]).audited, _audit(other).audited) == [3]
