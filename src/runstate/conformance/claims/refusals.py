"""Claims about what a log refuses: what it has not declared, ids that are none, and everything once it is closed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest

from runstate.conformance.fixtures import LogKit
from runstate.conformance.notes import as_held, keys, notes, numbered, snapshot, stored
from runstate.errors import InvalidStream, LogClosed, LogFailed, SequenceConflict, Unsupported
from runstate.logs.log import BlobRef, Capability, EventLog
from runstate.models.model import Draft

bad_streams = {
    "empty": "",
    "nul": "a\0b",
    "newline": "a\nb",
    "control": "a\x1bb",
    "delete": "a\x7fb",
    "surrogate": "a\ud800b",
    "long": "x" * 513,
    "long-in-bytes": "ü" * 257,
}
"""Every log refuses these."""

path_like_streams = {
    "dot": ".",
    "dots": "..",
    "escape": "../../x",
    "slash": "a/b",
    "absolute": "/etc/passwd",
    "backslash": "a\\b",
    "long": "x" * 512,
    "long-in-bytes": "ü" * 150,
}
"""A log that names files by its streams refuses these; any other log keeps them as they are."""

_no_blob = BlobRef(f"sha256:{'0' * 64}")

unwritable = Draft(
    event_id="", type="noted", key="broken", tenant="", emitted_at="", prefix=b"%d %d %d", tail=b"", model="notes"
)
"""A draft of a broken model: its prefix has a place too many, so that rendering it fails inside the log."""


class Call(NamedTuple):
    """One method of the port, called on a stream; and the capability without which it is refused."""

    name: str
    run: Callable[[EventLog, str], object]
    capability: Capability | None = None


calls = [
    Call("append", lambda log, stream: log.append(stream, notes("x"))),
    Call("append-nothing", lambda log, stream: log.append(stream, [])),
    Call("read", lambda log, stream: log.read(stream)),
    Call("lines", lambda log, stream: list(log.lines(stream))),
    Call("find", lambda log, stream: log.find(stream, "x")),
    Call("stream", lambda log, stream: log.stream(stream)),
    Call("verify", lambda log, stream: list(log.verify(stream))),
    Call("load_snapshot", lambda log, stream: log.load_snapshot(stream, "notes"), Capability.SNAPSHOTS),
    Call("save_snapshot", lambda log, stream: log.save_snapshot(stream, snapshot(1)), Capability.SNAPSHOTS),
    Call("tombstone", lambda log, stream: log.tombstone(stream)),
    Call("delete_stream", lambda log, stream: log.delete_stream(stream), Capability.DELETE),
    Call("adopt", lambda log, stream: log.adopt(stream, as_held(stream, notes("x"))), Capability.ADOPT),
    Call("adopt-nothing", lambda log, stream: log.adopt(stream, []), Capability.ADOPT),
    Call("repair", lambda log, stream: log.repair(stream), Capability.REPAIR),
    Call("quarantine", lambda log, stream: log.repair(stream, quarantine=1), Capability.REPAIR),
]
"""Every method that takes a stream."""

more_calls = [
    Call("streams", lambda log, _: log.streams()),
    Call("verify-all", lambda log, _: list(log.verify())),
    Call("feed", lambda log, _: log.feed(), Capability.FEED),
    Call("put_blob", lambda log, _: log.put_blob(b"data"), Capability.BLOBS),
    Call("get_blob", lambda log, _: log.get_blob(_no_blob), Capability.BLOBS),
]
"""The rest of the port."""


class RefusalClaims(LogKit):
    """What a log cannot or must not do, it says, and does nothing."""

    def test_what_is_not_declared_is_refused_and_what_is_declared_is_not(self, log: EventLog) -> None:
        for number, call in enumerate(call for call in calls + more_calls if call.capability):
            log.append(f"s{number}", notes("a"))
            refused = answer(partial(call.run, log, f"s{number}")) is Unsupported
            assert refused == (call.capability not in log.capabilities), call.name

    def test_every_bad_stream_id_is_refused(self, log: EventLog) -> None:
        for call in calls:
            declared = call.capability is None or call.capability in log.capabilities
            answers = {name: answer(partial(call.run, log, stream)) for name, stream in bad_streams.items()}
            expected = {InvalidStream} if declared else {InvalidStream, Unsupported}
            assert {name: told for name, told in answers.items() if told not in expected} == {}, call.name

    def test_a_bad_stream_id_leaves_nothing_behind(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        for stream in bad_streams.values():
            with pytest.raises(InvalidStream):
                log.append(stream, notes("x", "y"))
        assert [info.stream for info in log.streams()] == ["s"]
        assert list(log.verify()) == []

    @pytest.mark.parametrize("stream", path_like_streams.values(), ids=path_like_streams)
    def test_an_id_like_a_path_is_kept_as_it_is_or_refused_by_every_call(self, log: EventLog, stream: str) -> None:
        if answer(lambda: log.append(stream, notes("a"))) is None:
            assert [record.stream for record in log.read(stream)] == [info.stream for info in log.streams()] == [stream]
            assert log.find(stream, "a") is not None
            assert list(log.verify()) == []
            return
        declared = [call for call in calls if call.capability is None or call.capability in log.capabilities]
        assert {call.name: answer(partial(call.run, log, stream)) for call in declared} == {
            call.name: InvalidStream for call in declared
        }
        assert log.streams() == []

    def test_a_draft_that_cannot_be_written_leaves_nothing_behind(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        before = stored(log, "s")
        with pytest.raises(LogFailed):
            log.append("s", [*notes("b"), unwritable, *notes("c")])
        assert stored(log, "s") == before
        assert log.append("s", notes("b"))[0].seq == 2

    def test_a_draft_that_cannot_be_written_is_an_error_of_ours_whatever_else_is_wrong(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        with pytest.raises(SequenceConflict):
            log.append("s", [unwritable], expected_seq=7)
        for expected_seq in (None, 1):
            with pytest.raises(LogFailed):
                log.append("s", [unwritable], expected_seq=expected_seq)
        with pytest.raises(LogFailed):
            log.append("t", [unwritable])
        assert [info.stream for info in log.streams()] == ["s"]
        assert keys(stored(log, "s")) == ["a"]

    def test_a_closed_log_refuses_everything(self, log: EventLog) -> None:
        log.append("s", numbered(3))
        log.close()
        for call in calls + more_calls:
            declared = call.capability is None or call.capability in log.capabilities
            with pytest.raises(LogClosed if declared else (LogClosed, Unsupported)):
                call.run(log, "s")

    def test_leaving_the_block_closes_the_log(self, log: EventLog) -> None:
        with log as entered:
            entered.append("s", notes("a"))
        with pytest.raises(LogClosed):
            log.read("s")

    def test_closing_twice_is_no_error(self, log: EventLog) -> None:
        log.close()
        log.close()


def answer(call: Callable[[], object]) -> type[Exception] | None:
    """The kind of error that a call ends in, or None."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the test compares it with the one that it expects
        return type(error)
    return None
