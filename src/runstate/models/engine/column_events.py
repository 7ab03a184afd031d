"""A batch's events as vectors: which of its runs are ordinary, and which events make up an attempt at a step.

All here follows from the tables in `evolve`. A run with any event that they do not allow is `odd`, and left to the
plain fold, which knows what an impossible event does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from runstate.models.engine.evolve import run_transitions, step_transitions, terminal_states
from runstate.models.engine.state import RunSnapshot

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

kinds = [*step_transitions, *run_transitions]
"""The types that change a state, each by its number; `len(kinds)` is any other type."""
step_kinds = len(step_transitions)
failed, skipped = kinds.index("StepFailed"), kinds.index("StepSkipped")
run_started, run_failed = kinds.index("RunStarted"), kinds.index("RunFailed")
closing = frozenset(
    [kind for kind, (_, after) in step_transitions.items() if after != "RUNNING"]
    + [kind for kind, pairs in run_transitions.items() if terminal_states & set(pairs.values())]
)
"""The types that end a run or an attempt. The fold looks at their payloads, and at that of `RunStarted`."""
closes: Bools = np.array([kind in closing for kind in kinds] + [False])


@dataclass(slots=True)
class Events:
    """The columns of a batch, row by row, and what is known of each of its streams."""

    bounds: Ints
    """Stream i is the rows from `bounds[i]` to `bounds[i + 1]`."""
    stream: Ints
    seq: Ints
    kind: Ints
    attempt: Ints
    engine_attempt: Ints
    step: Ints
    """A number into `step_ids`; -1 where the event has no step."""
    step_ids: pa.StringArray
    time: pa.StringArray
    payload: pa.StringArray
    odd: Bools
    """Per stream: whether it is for the plain fold to take."""

    def refuse(self, rows: Bools | Ints) -> None:
        """Leave the streams of these rows to the plain fold."""
        self.odd[self.stream[rows]] = True

    def ordinary(self, rows: Ints) -> Ints:
        """Those of the rows whose stream is still folded here."""
        return rows[~self.odd[self.stream[rows]]] if self.odd.any() else rows


@dataclass(slots=True)
class Attempts:
    """The logical attempts at the steps, as a snapshot lists them: by stream, by step, oldest first."""

    opened: Ints
    """The row of the attempt's first event."""
    last: Ints
    """The row of its last event, which may be the same one."""
    first: Bools
    """Whether it is the first attempt at its step."""
    newest: Bools
    """Whether it is the newest attempt at its step."""


def read(batch: pa.RecordBatch, starts: Ints, streams: int) -> Events:
    """The batch's events; a stream with a null where a value must be, or with a text to escape, is odd."""
    bounds = starts if len(starts) > streams else np.append(starts, batch.num_rows)
    batch, bounds = batch.slice(bounds[0], bounds[-1] - bounds[0]), bounds - bounds[0]
    sizes = np.diff(bounds)
    kind, types = _coded(batch["type"])
    step, step_ids = _coded(batch["step_id"])
    numbers = {kind: number for number, kind in enumerate(kinds)}
    # The last place is for a null, whose code is -1; it makes the stream odd below.
    known = np.array([numbers.get(name, len(kinds)) for name in types.to_pylist()] + [len(kinds)])
    events = Events(
        bounds=bounds,
        stream=np.repeat(np.arange(streams), sizes),
        seq=_integers(batch["seq"]),
        kind=known[kind],
        attempt=_integers(batch["logical_attempt_id"]),
        engine_attempt=_integers(batch["engine_attempt_id"]),
        step=step,
        step_ids=step_ids,
        time=_texts(batch["emitted_at"]),
        payload=_texts(batch["payload"]),
        odd=sizes == 0,
    )
    for name in ("seq", "type", "emitted_at", "logical_attempt_id", "engine_attempt_id"):
        if batch[name].null_count:
            events.refuse(batch[name].is_null().to_numpy(zero_copy_only=False))
    events.refuse(_to_escape(events.time))
    unsafe = np.append(_to_escape(step_ids), False)
    if unsafe.any():
        events.refuse(unsafe[step])
    return events


def refuse_impossible_run_events(events: Events) -> None:
    """Mark the streams where a sequence number does not rise, or a run event meets a state that it cannot change."""
    before = np.concatenate(([0], events.seq[:-1]))
    before[events.bounds[:-1][np.diff(events.bounds) > 0]] = 0
    events.refuse(events.seq <= before)
    rows = np.flatnonzero((events.kind >= step_kinds) & (events.kind < len(kinds)))
    if len(rows):
        kind = events.kind[rows]
        previous = np.concatenate(([-1], kind[:-1]))
        previous[_changes(events.stream[rows])] = -1
        events.refuse(rows[~_possible[previous, kind]])


def attempts_in(events: Events) -> Attempts:
    """The attempts of all ordinary streams. A stream whose step events are not all possible turns odd on the way."""
    rows = np.flatnonzero(events.kind < step_kinds)
    events.refuse(rows[events.step[rows] < 0])
    rows = events.ordinary(rows)
    if not len(rows):
        return Attempts(rows, rows, rows > 0, rows > 0)
    rows = _sorted_by(_step_key(events, rows), rows)
    kind, attempt = events.kind[rows], events.attempt[rows]
    first = _changes(_step_key(events, rows))
    fresh = first | _changes(attempt)
    # Only ascending attempts: an event of an earlier one changes history, which the plain fold keeps in order.
    descends = ~first & _after(attempt[1:] < attempt[:-1])
    follows_start = _after(_is_start[kind[:-1]])
    events.refuse(rows[descends | (_opens[kind] != fresh) | ~(fresh | follows_start)])
    heads = np.flatnonzero(fresh)
    tails = np.append(heads[1:], len(rows)) - 1
    opened, last, first = rows[heads], rows[tails], first[heads]
    # A snapshot lists steps in the order of their first events; the attempts at each are in order already.
    order = _sorted_by(opened[first][np.cumsum(first) - 1], np.arange(len(heads)))
    order = order[~events.odd[events.stream[opened[order]]]]
    return Attempts(opened[order], last[order], first[order], np.append(first[1:], True)[order])


def _step_key(events: Events, rows: Ints) -> Ints:
    return events.stream[rows] * len(events.step_ids) + events.step[rows]


def _changes(values: Ints) -> Bools:
    return np.concatenate(([True], values[1:] != values[:-1]))


def _after(values: Bools) -> Bools:
    return np.concatenate(([False], values))


def _sorted_by(major: Ints, minor: Ints) -> Ints:
    """`minor`, no value of it twice, in the order of `major` and then its own."""
    bits = int(minor.max()).bit_length()
    if int(major.max()).bit_length() + bits > 63:
        return minor[np.lexsort((minor, major))]
    # Both in one number: sorting plain numbers is twenty times faster than sorting places by two keys.
    packed = (major << bits) | minor
    packed.sort()
    return packed & ((1 << bits) - 1)


# --- reading columns -------------------------------------------------------------------------------------


def _coded(column: pa.Array) -> tuple[Ints, pa.StringArray]:
    """A text column as numbers into its distinct values; -1 is a null."""
    values = column.dictionary if pa.types.is_dictionary(column.type) else None
    # A dictionary may say one thing twice, or null, and may come from a table much larger than this batch.
    if values is None or values.null_count or not len(values.unique()) == len(values) <= len(column):
        column = _texts(column).dictionary_encode()
    codes = column.indices.cast(pa.int64())
    if codes.null_count:
        codes = codes.fill_null(-1)
    return codes.to_numpy(zero_copy_only=False), _texts(column.dictionary)


def _texts(column: pa.Array) -> pa.StringArray:
    return column if column.type == pa.string() else column.cast(pa.string())


def _integers(column: pa.Array) -> Ints:
    column = column.cast(pa.int64())
    # A null makes its stream odd; what stands for it here is never looked at.
    numbers: Ints = (column.fill_null(0) if column.null_count else column).to_numpy(zero_copy_only=False)
    return numbers


def _to_escape(texts: pa.StringArray) -> Bools:
    """Which of the texts JSON cannot hold between quotes just as they are."""
    found = np.zeros(len(texts), np.bool_)
    _, places, data = texts.buffers()
    if not len(texts) or data is None:
        return found
    ends = np.frombuffer(places, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    signs = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    at = np.flatnonzero((signs < 0x20) | (signs == ord('"')) | (signs == ord("\\")))
    if len(at):
        found[np.searchsorted(ends, at + ends[0], side="right") - 1] = True
    return found


# --- the tables, as vectors by kind ----------------------------------------------------------------------

_opens: Bools = np.array([before == "PENDING" for before, _ in step_transitions.values()])
_is_start: Bools = np.array([after == "RUNNING" for _, after in step_transitions.values()])


def _possible_pairs() -> Bools:
    """Whether a run event can follow another one; the last row is for the first event of a run.

    Each type leads to one state, whatever the state before it, so the event before tells the state.
    """
    table = np.zeros((len(kinds) + 1, len(kinds)), np.bool_)
    states = {number: set(run_transitions.get(kind, {}).values()) for number, kind in enumerate(kinds)}
    states[-1] = {RunSnapshot("").status}
    for previous, reached in states.items():
        for number, kind in enumerate(kinds):
            table[previous, number] = len(reached) == 1 and reached <= run_transitions.get(kind, {}).keys()
    return table


_possible = _possible_pairs()
