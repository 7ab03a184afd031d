"""Random histories: a log against a dictionary of lists, in whatever order Hypothesis can think of.

All histories run on one log. Each keeps to streams of its own and to the feed from where it began, so that a log
which is expensive to make is made once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, TypeVar

import hypothesis.strategies as st
import msgspec
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from runstate.conformance.notes import as_held, followed, note, snapshot, stored
from runstate.conformance.opener import Opener
from runstate.errors import ModelMismatch, SequenceConflict, StreamNotFound
from runstate.logs.log import AppendResult, Capability, Position, Record, StoredSnapshot

_streams = st.sampled_from(["a", "ü"])
_keys = st.sampled_from([f"k{number}" for number in range(12)])
_texts = st.sampled_from(["", "other", "\u2028"])
_drafts = st.lists(st.builds(note, _keys, _texts), max_size=5)
_models = st.sampled_from(["notes", "notes", "other"])

_saves = st.lists(st.builds(snapshot, st.integers(1, 4), version=st.integers(1, 2)), min_size=1, max_size=3)

F = TypeVar("F", bound=Callable[..., None])

Place = tuple[str, int, int]
"""Stream, how many times it was deleted before, seq: an event, told apart from one that had its place earlier."""


how_default = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def check_histories(opener: Opener, how: settings = how_default) -> None:
    """Run random histories on the log that `opener` opens.

    Raises:
        AssertionError: the log's answer was not the dictionary's; the shortest history that shows it is printed.
    """
    numbers = count()

    class History(LogMachine):
        def __init__(self) -> None:
            super().__init__(opener, f"h{next(numbers)}")

    run_state_machine_as_test(History, settings=how)


def offers(capability: Capability) -> Callable[[F], F]:
    """The rule is tried only on logs that declare the capability."""
    return precondition(lambda machine: capability in machine.log.capabilities)


class LogMachine(RuleBasedStateMachine):
    """One history. What the log should hold is kept in `streams`; every rule asks the log and compares."""

    def __init__(self, opener: Opener, name: str) -> None:
        super().__init__()
        self.opener, self.name, self.log = opener, name, opener()
        self.streams: dict[str, list[Record]] = {}
        self.models: dict[str, str] = {}
        self.deletions: dict[str, int] = {}
        self.snapshots: dict[str, StoredSnapshot] = {}
        begin = followed(self.log).next if Capability.FEED in self.log.capabilities else None
        self.positions: list[tuple[Position | None, frozenset[Place]]] = [(begin, frozenset())]

    def teardown(self) -> None:
        self.log.close()

    # --- writing ---------------------------------------------------------------------------------------

    @rule(short=_streams, drafts=_drafts, expected=st.sampled_from([None, None, 0, -1, 1]), model=_models)
    def append(self, short: str, drafts: list[Any], expected: int | None, model: str) -> None:
        """`expected` is how far off `expected_seq` is; None: none is given."""
        stream = self._stream(short)
        drafts = [msgspec.structs.replace(draft, model=model) for draft in drafts]
        held = self.streams.get(stream, [])
        by_key = {record.key: record for record in held}
        is_new = any(draft.key not in by_key for draft in drafts)
        expected_seq = None if expected is None else len(held) + expected
        try:
            results = self.log.append(stream, drafts, expected_seq=expected_seq)
        except ModelMismatch as refusal:
            assert self.models.get(stream) == refusal.details["recorded"] != model
            return
        except SequenceConflict as conflict:
            assert is_new and expected
            assert conflict.details["actual_seq"] == len(held)
            return
        assert not (is_new and expected)
        assert len(results) == len(drafts)
        assert not drafts or self.models.setdefault(stream, model) == model
        for draft, result in zip(drafts, results, strict=True):
            first = by_key.get(draft.key)
            if first is None:
                assert result == AppendResult(draft.event_id, len(held) + 1, result.persisted_at)
                by_key[draft.key] = _record(stream, draft, result)
                held = self.streams.setdefault(stream, held)
                held.append(by_key[draft.key])
            else:
                mismatch = not draft.same_content(first.body)
                assert result == AppendResult(first.event_id, first.seq, first.persisted_at, True, False, mismatch)

    @offers(Capability.ADOPT)
    @rule(short=_streams, overlap=st.integers(0, 3), drafts=_drafts)
    def adopt(self, short: str, overlap: int, drafts: list[Any]) -> None:
        """The stream's last records once more, and some that are new."""
        stream = self._stream(short)
        held = self.streams.get(stream, [])
        new = as_held(stream, drafts, after_seq=len(held))
        known = [record.key for record in held + new]
        try:
            known_records = held[len(held) - min(overlap, len(held)) :]
            adopted = self.log.adopt(stream, known_records + new, model=self.models.get(stream, "notes"))
        except SequenceConflict:
            assert len(set(known)) < len(known)
            return
        assert (adopted, len(set(known))) == (len(new), len(known))
        if new:
            self.streams[stream] = held + new
            self.models.setdefault(stream, "notes")

    @offers(Capability.DELETE)
    @rule(short=_streams, expected=st.sampled_from([None, 0, 0, 1, -1]))
    def delete(self, short: str, expected: int | None) -> None:
        stream = self._stream(short)
        expected_seq = None if expected is None else len(self.streams.get(stream, [])) + expected
        if stream not in self.streams:
            self._refused_as_unknown(partial(self.log.delete_stream, stream, expected_seq=expected_seq))
            return
        try:
            self.log.delete_stream(stream, expected_seq=expected_seq)
        except SequenceConflict:
            assert expected
            return
        assert not expected
        del self.streams[stream], self.models[stream]
        self.snapshots.pop(stream, None)
        self.deletions[stream] = self.deletions.get(stream, 0) + 1

    @offers(Capability.SNAPSHOTS)
    @rule(short=_streams, saves=_saves)
    def save_snapshots(self, short: str, saves: list[StoredSnapshot]) -> None:
        stream = self._stream(short)
        for new in saves:
            if stream not in self.streams:
                self._refused_as_unknown(partial(self.log.save_snapshot, stream, new))
                continue
            if new.seq > len(self.streams[stream]):
                continue  # No state is ahead of its stream; what becomes of one that claims to be is each log's matter.
            self.log.save_snapshot(stream, new)
            old = self.snapshots.get(stream)
            if old is None or old.version != new.version or old.seq <= new.seq:
                self.snapshots[stream] = new
            self._check_snapshot(stream)

    @offers(Capability.DURABLE)
    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = self.opener()

    # --- reading ---------------------------------------------------------------------------------------

    @rule(short=_streams, after_seq=st.integers(-1, 20), limit=st.integers(1, 10), span=st.integers(-1, 10))
    def read(self, short: str, after_seq: int, limit: int, span: int) -> None:
        stream, until = self._stream(short), after_seq + span
        held = self.streams.get(stream, [])
        after = [record for record in held if record.seq > after_seq]
        assert self.log.read(stream, after_seq=after_seq, limit=limit) == after[:limit]
        lines = list(self.log.lines(stream, after_seq=after_seq, until_seq=until))
        assert lines == [record.body for record in after if record.seq <= until]

    @rule(short=_streams, key=_keys)
    def find(self, short: str, key: str) -> None:
        stream = self._stream(short)
        held = {record.key: record for record in self.streams.get(stream, [])}
        assert self.log.find(stream, key) == held.get(key)

    @offers(Capability.SNAPSHOTS)
    @rule(short=_streams)
    def load_snapshot(self, short: str) -> None:
        self._check_snapshot(self._stream(short))

    @offers(Capability.FEED)
    @rule(data=st.data(), limit=st.integers(1, 6))
    def follow(self, data: st.DataObject, limit: int) -> None:
        """From any position ever handed out, the rest of the feed is whatever had not been seen by then."""
        after, seen = data.draw(st.sampled_from(self.positions))
        page = self.log.feed(after=after, limit=limit)
        more = followed(self.log, page.next, page=limit)
        rest = page.records + more.records
        live = {self._place(record): record for held in self.streams.values() for record in held}
        assert {self._place(record): record for record in rest} == {
            place: record for place, record in live.items() if place not in seen
        }
        for stream in self.streams:
            of_stream = [record.seq for record in rest if record.stream == stream]
            assert of_stream == sorted(set(of_stream))
        self.positions.append((page.next, seen | {self._place(record) for record in page.records}))
        self.positions.append((more.next, seen | {self._place(record) for record in rest}))

    @invariant()
    def lists_what_it_holds(self) -> None:
        mine = [info for info in self.log.streams(after=f"{self.name}-") if info.stream.startswith(f"{self.name}-")]
        assert [(info.stream, info.last_seq, info.events, info.model) for info in mine] == [
            (stream, len(held), len(held), self.models[stream]) for stream, held in sorted(self.streams.items())
        ]
        for info in mine:
            assert stored(self.log, info.stream, page=7) == self.streams[info.stream]

    # --- how -------------------------------------------------------------------------------------------

    def _stream(self, short: str) -> str:
        return f"{self.name}-{short}"

    def _place(self, record: Record) -> Place:
        return record.stream, self.deletions.get(record.stream, 0), record.seq

    def _check_snapshot(self, stream: str) -> None:
        assert self.log.load_snapshot(stream, "notes") == self.snapshots.get(stream)

    @staticmethod
    def _refused_as_unknown(call: Any) -> None:
        try:
            call()
        except StreamNotFound:
            return
        raise AssertionError("a stream that is not there must be refused with StreamNotFound")


def _record(stream: str, draft: Any, result: AppendResult) -> Record:
    envelope = (draft.event_id, draft.type, draft.key, draft.tenant, draft.emitted_at, result.persisted_at)
    return Record(stream, result.seq, *envelope, draft.render(result.seq, result.persisted_at))
