"""The engine model's fold over columns: many whole runs at once, each with the bytes that the plain fold gives.

Vectors decide which runs are ordinary: every transition possible, every sequence number above the one before it, the
attempts at a step in ascending order, every text free of JSON escapes. Only those are folded here. Of any other run
this module says nothing, and the plain fold has the word; so a doubt costs time, never a byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET

from runstate.models.canonical import integer_max
from runstate.models.engine.column_events import (
    Attempts,
    Bools,
    Events,
    Ints,
    attempts_in,
    closes,
    closing,
    failed,
    kinds,
    read,
    refuse_impossible_run_events,
    run_failed,
    run_started,
    step_kinds,
)
from runstate.models.engine.column_payloads import encoder
from runstate.models.engine.column_texts import Texts, between
from runstate.models.engine.events import attempt_max

# The plain fold's own functions, not copies of them: what they make of an event must be the same both ways.
from runstate.models.engine.evolve import (
    RunFact,
    _artifact_refs,
    _artifacts,
    _elapsed_ms,
    _error,
    _payload,
    _skip_reason,
    may_hold_ref,
    run_transitions,
    step_transitions,
)
from runstate.models.engine.state import RunSnapshot
from runstate.models.model import Folded

_schema = pa.schema(
    [
        pa.field("step_id", pa.string()),
        pa.field("logical_attempt_id", pa.int64()),
        pa.field("engine_attempt_id", pa.int64()),
        pa.field("payload", pa.string()),
    ]
)

_row_schema = pa.schema([("seq", pa.int64()), ("type", pa.string()), ("emitted_at", pa.string()), *_schema])


class EngineColumns:
    """Runs and steps of a workflow engine, folded column by column."""

    @property
    def schema(self) -> pa.Schema:
        return _schema

    def facts(self, lines: Sequence[bytes]) -> pa.RecordBatch:
        """One row per stored line; `payload` is the text of one in which the fold finds something.

        A line that is left to the plain fold, such as one of contract v1, is a row of nulls. Nothing is raised: what
        is wrong with a line is for the plain fold to say.
        """
        facts, payloads = _read(lines, _tellings)
        return pa.RecordBatch.from_arrays(_facts(facts, payloads), schema=_schema)

    def rows(self, lines: Sequence[bytes]) -> pa.RecordBatch:
        """The same, with what else the fold needs of each line; for a fold at once, so no payload is left out."""
        facts, payloads = _read(lines, _closings)
        arrays = [
            pa.array([fact.run_seq for fact in facts], pa.int64()),
            pa.array([fact.event_type for fact in facts], pa.string()),
            pa.array([fact.emitted_at for fact in facts], pa.string()),
            *_facts(facts, payloads),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=_row_schema)

    def fold(self, streams: Sequence[str], starts: Sequence[int], batch: pa.RecordBatch) -> list[Folded | None]:
        """Each stream's state after all its events; None for a stream that is for `Model.fold`.

        `batch` holds whole streams from their first event on: stream i is the rows from `starts[i]` to `starts[i + 1]`,
        or to the batch's end. Its columns are `seq`, `type` and `emitted_at`, as the lines say them, and `schema`.
        """
        if not streams or not batch.num_rows:
            return [None] * len(streams)
        events = read(batch, np.asarray(starts, np.int64), len(streams))
        refuse_impossible_run_events(events)
        found = attempts_in(events)
        return _snapshots(streams, events, found, Texts(events))


# --- out of the lines ------------------------------------------------------------------------------------

_decode_fact = msgspec.json.Decoder(RunFact).decode
_anything = msgspec.json.Decoder()
_unusual = RunFact(
    run_seq=0, event_type="", emitted_at="", engine_attempt_id=-1, logical_attempt_id=-1, tenant_id=msgspec.Raw()
)
"""Stands for a line that is left to the plain fold. No event has such attempts: they are nulls in a row."""
_Payloads = list[Any]


def _read(
    lines: Sequence[bytes], payloads_of: Callable[[Sequence[RunFact]], _Payloads]
) -> tuple[list[RunFact], _Payloads]:
    """What the plain fold would read of each line, and their payloads."""
    try:
        facts = list(map(_decode_fact, lines))
        _check_usual(facts)
        return facts, payloads_of(facts)
    except (ValueError, RecursionError):  # Whatever msgspec raises is a ValueError.
        if len(lines) == 1:
            return [_unusual], [None]
        # Together is faster; so only those go alone that must.
        middle = len(lines) // 2
        halves = _read(lines[:middle], payloads_of), _read(lines[middle:], payloads_of)
        (facts, payloads), (more_facts, more_payloads) = halves
        return facts + more_facts, payloads + more_payloads


def _check_usual(facts: Sequence[RunFact]) -> None:
    if not all(fact.engine_run_ref is UNSET for fact in facts):
        raise ValueError("an engine's reference outside of a payload")
    for numbers, most in (
        ([fact.logical_attempt_id for fact in facts], attempt_max),
        ([fact.engine_attempt_id for fact in facts], attempt_max),
        ([fact.run_seq for fact in facts], integer_max),
    ):
        if not 0 <= min(numbers, default=0) <= max(numbers, default=0) <= most:
            raise ValueError("a number that no event has")


def _facts(facts: Sequence[RunFact], payloads: _Payloads) -> list[pa.Array]:
    """The columns of `_schema`."""
    attempts = [fact.logical_attempt_id for fact in facts]
    engine_attempts = [fact.engine_attempt_id for fact in facts]
    return [
        pa.array([None if fact.step_id is UNSET else fact.step_id for fact in facts], pa.string()),
        *(_or_null(np.array(numbers, np.int64)) for numbers in (attempts, engine_attempts)),
        pa.array(payloads, pa.string()),
    ]


def _or_null(attempts: Ints) -> pa.Array:
    return pa.array(attempts, mask=attempts < 0)


def _closings(facts: Sequence[RunFact]) -> _Payloads:
    """The payloads' texts of the events whose payloads the fold looks at."""
    found = [bytes(fact.payload) if fact.payload and _is_looked_at(fact) else None for fact in facts]
    texts = [text for text in found if text is not None]
    # All of them are decoded, as the plain fold does: one that cannot be read must not go by unseen.
    if len(_anything.decode_lines(b"\n".join(texts))) != len(texts):
        raise ValueError("a payload that is not one value")
    return found


def _is_looked_at(fact: RunFact) -> bool:
    return fact.event_type in closing or (fact.event_type == "RunStarted" and may_hold_ref(fact.payload))


def _tellings(facts: Sequence[RunFact]) -> _Payloads:
    return [_telling(fact) if fact.payload and _is_looked_at(fact) else None for fact in facts]


def _telling(fact: RunFact) -> str | None:
    """The payload's text, if the fold would find something in it."""
    payload = _payload(fact)  # All of it, for the same reason.
    if fact.event_type == "RunStarted":
        tells = payload.get("engineRunRef") is not None
    elif _artifacts(payload) or _artifact_refs(payload):
        tells = True
    elif fact.event_type == "StepSkipped":
        tells = _skip_reason(payload) is not None
    else:
        tells = fact.event_type in ("StepFailed", "RunFailed") and _error(payload) is not None
    return bytes(fact.payload).decode() if tells else None  # type: ignore[arg-type]


# --- into the bytes --------------------------------------------------------------------------------------


def _run_items(events: Events, texts: Texts, numbers: Ints) -> tuple[memoryview, list[int]]:
    """The items of all streams, each event's with a comma before them, and where each stream's begin.

    `numbers` are those of the events' artifacts, or of their references to artifacts.
    """
    rows = np.flatnonzero(numbers != texts.empty)
    pieces = np.full((len(rows), 2), texts.add(b","))
    pieces[:, 1] = numbers[rows]
    return _by_stream(events, rows, texts, pieces)


def _run_steps(events: Events, found: Attempts, texts: Texts) -> tuple[memoryview, list[int]]:
    """The `steps` of all streams, each with a comma before it, and where each stream's begin.

    A step is eight pieces per attempt. What the newest one has produced comes first, then the earlier attempts, then
    the rest of the newest.
    """
    kind = events.kind[found.last]
    empty = texts.empty
    pieces = np.full((len(kind), 8), empty)
    ends_many = found.newest & ~found.first
    pieces[~ends_many, 0] = texts.add(b',{"artifactRefs":[')
    own = texts.both[found.last]
    pieces[:, 1] = np.where(ends_many, empty, own)
    pieces[found.first, 1] = own[found.newest]
    role = np.where(found.first, np.where(found.newest, _only, _first_of_many), _later)
    pieces[:, 2] = np.array([[texts.add(_opening(r, k)) for k in range(step_kinds)] for r in range(3)])[role, kind]
    for place in np.flatnonzero((role == _first_of_many) & (own != texts.nothing)).tolist():
        pieces[place, 2] = texts.add(_opening(_first_of_many, int(kind[place]), texts.added(int(own[place]))))
    pieces[:, 3] = np.where(_is_running[kind], empty, found.last)
    pieces[:, 4] = _middles(events, found, texts)
    pieces[:, 5] = np.where(_is_skipped[kind], empty, found.opened)
    endings = [[texts.add(_ending(newest, k)) for k in range(step_kinds)] for newest in (False, True)]
    pieces[:, 6] = np.array(endings)[found.newest.astype(np.int64), kind]
    pieces[:, 7] = np.where(found.newest, texts.step_base + events.step[found.last], empty)
    return _by_stream(events, found.opened, texts, pieces)


def _by_stream(events: Events, rows: Ints, texts: Texts, pieces: Ints) -> tuple[memoryview, list[int]]:
    data, places = texts.gather(pieces)
    begins = np.searchsorted(events.stream[rows], np.arange(len(events.bounds)))
    return data, places[begins * pieces.shape[1]].tolist()


_statuses = [after for _, after in step_transitions.values()]
"""An attempt's status, by the kind of its last event."""
_is_running: Bools = np.array([after == "RUNNING" for after in _statuses])
_is_skipped: Bools = np.array([before != "RUNNING" != after for before, after in step_transitions.values()])
_later, _first_of_many, _only = range(3)


def _opening(role: int, kind: int, items: bytes = between) -> bytes:
    """What stands before `completedAt`. The first of many attempts has its step's newest artifacts before this."""
    history = (b"", b'"attempts":[{"artifactRefs":[%b],' % items, b'"attempts":[],')[role]
    return b'],%b"completedAt":%b' % (history, b"null" if _is_running[kind] else b'"')


def _middle(kind: int, engine_attempt: int, note: bytes, attempt: int) -> bytes:
    """What stands between an attempt's two times."""
    return b'%b,"engineAttemptId":%d,"error":%b,"logicalAttemptId":%d,"skipReason":%b,"startedAt":%b' % (
        b"" if _is_running[kind] else b'"',
        engine_attempt,
        note if kind == failed else b"null",
        attempt,
        note if _is_skipped[kind] else b"null",
        b"null" if _is_skipped[kind] else b'"',
    )


def _ending(newest: bool, kind: int) -> bytes:
    """What follows `startedAt`: the end of an earlier attempt, or all but the step's id, which is the next piece."""
    quote, end = b"" if _is_skipped[kind] else b'"', b',"stepId":"' if newest else b"}"
    return b'%b,"status":"%b"%b' % (quote, _statuses[kind].encode(), end)


def _middles(events: Events, found: Attempts, texts: Texts) -> Ints:
    columns = [column[found.last] for column in (events.kind, events.engine_attempt, texts.note, events.attempt)]
    codes: Ints = np.zeros(len(found.last), np.int64)
    for column in columns:
        part = _small(column)
        codes = _small(codes * (part.max(initial=0) + 1) + part)
    # Few combinations of the four make up a whole fleet, and each is formatted once, by any attempt that has it.
    example = np.full(codes.max(initial=0) + 1, -1)
    example[codes] = np.arange(len(codes))
    used = np.flatnonzero(example >= 0)
    middles = np.zeros(len(example), np.int64)
    rows = zip(*(column[example[used]].tolist() for column in columns), strict=True)
    middles[used] = [texts.add(_middle(kind, engine, texts.notes[note], number)) for kind, engine, note, number in rows]
    return middles[codes]


def _small(values: Ints) -> Ints:
    """Numbers from 0 that are alike where the values are, below 100,000 or the count of the values."""
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    if high - low < 100_000:
        return values - low
    codes: Ints = pa.array(values).dictionary_encode().indices.to_numpy().astype(np.int64)
    return codes


# --- the whole snapshot ----------------------------------------------------------------------------------

_before_hash = b'{"artifactRefs":[%b],"artifacts":[%b],"completedAt":%b,"engineRunRef":%b'
_after_hash = (
    b',"inconsistent":false,"lastEventSeq":%d,"rootCause":%b,"runId":%b,"startedAt":%b,"status":"%b","steps":['
)
_run_statuses = {n: next(iter(run_transitions[kind].values())) for n, kind in enumerate(kinds) if n >= step_kinds}
_run_statuses[-1] = RunSnapshot("").status


def _snapshots(streams: Sequence[str], events: Events, found: Attempts, texts: Texts) -> list[Folded | None]:
    causes, run_refs = _root_causes(events, found, texts), _run_refs(events, texts)
    parts = [_run_items(events, texts, texts.refs), _run_items(events, texts, texts.artifacts)]
    parts.append(_run_steps(events, found, texts))
    columns = (
        streams,
        events.odd.tolist(),
        events.seq[events.bounds[1:] - 1].tolist(),
        *_run_columns(events),
        # Without the comma before the first of each.
        *([data[begin + 1 : end] for begin, end in pairwise(begins)] for data, begins in parts),
    )
    folded: list[Folded | None] = []
    for number, (stream, odd, seq, status, started, completed, refs, made, of_steps) in enumerate(
        zip(*columns, strict=True)
    ):
        if odd:
            folded.append(None)
            continue
        try:
            run_id = encoder.encode(stream)
            elapsed = None if completed is None else _elapsed_ms(started, completed)
        except (ValueError, TypeError, OverflowError):  # An id that is no text; a time without a zone.
            folded.append(None)
            continue
        before = _before_hash % (refs, made, _quoted(completed), run_refs.get(number, b"null"))
        after = _after_hash % (seq, causes.get(number, b"null"), run_id, _quoted(started), status.encode())
        end = b'],"totalDurationMs":null}' if elapsed is None else b'],"totalDurationMs":%d}' % elapsed
        hashed = sha256(before + after)
        hashed.update(of_steps)
        hashed.update(end)
        body = b"".join((before, b',"hash":"', hashed.hexdigest().encode(), b'"', after, of_steps, end))
        folded.append(Folded(seq, status, body))
    return folded


def _run_refs(events: Events, texts: Texts) -> dict[int, bytes]:
    """By stream: the engine's reference, where there is one."""
    rows = np.flatnonzero((events.kind == run_started) & (texts.note > 0))
    notes = texts.note[rows].tolist()
    return {stream: texts.notes[note] for stream, note in zip(events.stream[rows].tolist(), notes, strict=True)}


def _root_causes(events: Events, found: Attempts, texts: Texts) -> dict[int, bytes]:
    """By stream: the root cause of a run that failed, where there is one. A run with steps after its end turns odd."""
    rows = np.flatnonzero(events.kind == run_failed)
    if not len(rows):
        return {}
    of_steps = np.flatnonzero(events.kind < step_kinds)
    last_step = np.full(len(events.odd), -1)
    last_step[events.stream[of_steps]] = of_steps
    events.refuse(rows[last_step[events.stream[rows]] > rows])
    culprits = found.last[found.newest & (events.kind[found.last] == failed)]
    # Steps are listed by stream, in the order of their appearance: the first of each stream counts.
    first = dict(zip(events.stream[culprits][::-1].tolist(), culprits[::-1].tolist(), strict=True))
    causes = dict[int, bytes]()
    for stream, row in zip(events.stream[rows].tolist(), rows.tolist(), strict=True):
        culprit = first.get(stream)
        note = texts.note[row] if culprit is None else texts.note[culprit] or texts.note[row]
        if culprit is not None:
            step = b'"%b"' % events.step_ids[int(events.step[culprit])].as_py().encode()
            causes[stream] = _cause % (texts.notes[note], b"%d" % int(events.attempt[culprit]), step)
        elif note:
            causes[stream] = _cause % (texts.notes[note], b"null", b"null")
    return causes


_cause = b'{"error":%b,"logicalAttemptId":%b,"stepId":%b}'


def _quoted(text: str | None) -> bytes:
    return b"null" if text is None else b'"%b"' % text.encode()


def _run_columns(events: Events) -> tuple[list[str], list[str | None], list[str | None]]:
    """Per stream: its status, when it started, and when it ended."""
    rows = np.flatnonzero((events.kind >= step_kinds) & (events.kind < len(kinds)))
    kind, stream = events.kind[rows], events.stream[rows]
    last = np.append(stream[1:] != stream[:-1], True)[: len(rows)]
    status = np.full(len(events.odd), -1)
    status[stream[last]] = kind[last]
    times = []
    for chosen in (kind == run_started, closes[kind]):
        at = np.full(len(events.odd), -1)
        at[stream[chosen]] = rows[chosen]
        times.append(events.time.take(pa.array(at, mask=at < 0)).to_pylist())
    return [_run_statuses[number] for number in status.tolist()], times[0], times[1]
