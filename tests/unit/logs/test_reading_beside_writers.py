"""File logs that are read while a thread of the same process begins to write: what is not durable is not shown."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import PurePath, PurePosixPath
from threading import Event

import pytest

from runstate.conformance.notes import keys, notes, stored
from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.logs.log import AppendResult
from runstate.logs.ndjson import NdjsonLog
from runstate.logs.wal import WalLog
from runstate.storage.disk import File

data_files = {"events.ndjson", "wal.jsonl"}


class WriterMeanwhile(SimulatedDisk):
    """Just when somebody looks for a stream's file, another thread writes its first events, and waits in its flush."""

    def __init__(self) -> None:
        super().__init__()
        self.begin: Callable[[], list[AppendResult]] | None = None
        self.written: Future[list[AppendResult]]
        self.writer = ThreadPoolExecutor(1)
        self.is_flushing, self.may_end = Event(), Event()

    def open(self, path: PurePath, *, create: bool = False, read_only: bool = False) -> File:
        if read_only and path.name in data_files and self.begin is not None:
            begin, self.begin = self.begin, None
            self.written = self.writer.submit(begin)
            assert self.is_flushing.wait(20)
        return super().open(path, create=create, read_only=read_only)

    def create(self, path: PurePath) -> File:
        file = super().create(path)
        if path.name in data_files:
            sync = file.sync

            def wait_and_sync() -> None:
                self.is_flushing.set()
                assert self.may_end.wait(20)
                sync()

            file.sync = wait_and_sync  # type: ignore[method-assign]
        return file


@pytest.mark.parametrize("kind", [NdjsonLog, WalLog])
def test_what_is_not_flushed_yet_is_not_shown_to_whoever_was_looking(kind: type[NdjsonLog | WalLog]) -> None:
    disk = WriterMeanwhile()
    with kind(PurePosixPath("/logs"), disk=disk) as log:
        disk.begin = lambda: log.append("s", notes("a", "b"))
        try:
            assert (log.read("s"), log.stream("s")) == ([], None)
        finally:
            disk.may_end.set()
        disk.written.result()
        assert keys(stored(log, "s")) == ["a", "b"]
