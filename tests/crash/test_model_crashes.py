"""After a power cut in the first append, a stream has its events and their model, or it does not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

import pytest

from runstate.conformance.notes import note, notes
from runstate.conformance.simulated_disk import SimulatedDisk, every_crash
from runstate.errors import ModelMismatch
from runstate.logs.log import EventLog
from runstate.logs.ndjson import NdjsonLog
from runstate.logs.segments import SegmentsLog
from runstate.logs.wal import WalLog

Opening = Callable[[SimulatedDisk], EventLog]
root = PurePosixPath("/log")
logs: dict[str, Opening] = {
    "ndjson": lambda disk: NdjsonLog(root, disk=disk),
    "segments": lambda disk: SegmentsLog(root, disk=disk),
    "wal": lambda disk: WalLog(root, disk=disk),
}


@pytest.fixture(params=logs)
def opening(request: pytest.FixtureRequest) -> Opening:
    return logs[request.param]


@pytest.mark.slow
def test_a_first_append_leaves_events_with_their_model_or_nothing(opening: Opening) -> None:
    def first_append(disk: SimulatedDisk) -> Iterator[str]:
        with opening(disk) as log:
            log.append("s", notes("a", "b"))
            yield "acknowledged"

    outcomes = set()
    for crash in every_crash(first_append):
        with opening(crash.disk) as log:
            info = log.stream("s")
            assert info is not None or not crash.acknowledged
            assert info is None or (info.events, info.model) == (2, "notes")
            model = append_again(log, "notes" if info else "other")
            assert [found.model for found in log.streams()] == [model]
        with opening(crash.disk) as log:
            assert [found.model for found in log.streams()] == [model]
        outcomes.add(info is None)
    assert outcomes == {True, False}


def append_again(log: EventLog, model: str) -> str:
    """Append with a model; the model that the stream records then. What was never stored does not decide it."""
    try:
        log.append("s", [note("c", model=model)])
    except ModelMismatch:
        # Recovery keeps more than a reader sees: an entry without its newline, seqs that zeros may hide.
        assert isinstance(log, WalLog)
        assert log.recoveries
        log.append("s", notes("c"))
        return "notes"
    return model
