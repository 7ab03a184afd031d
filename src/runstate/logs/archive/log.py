"""The port over an archive, as far as it can be read: what it held when it was opened. Nothing is ever written.

Runs are archived and restored by `runstate.retention`. Packs have no common order, so there is no feed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path, PurePath
from threading import Lock
from typing import NoReturn

from runstate.errors import InvalidUrl, LogDamaged, Unsupported
from runstate.logs.archive.directory import ArchiveDirectory, translated
from runstate.logs.archive.reading import Contents, Copy, records
from runstate.logs.archive.verify import verify_rest, verify_run
from runstate.logs.blob_collection import Collected, mark_blobs
from runstate.logs.blob_refs import BlobStates
from runstate.logs.handle import Handle
from runstate.logs.log import (
    AppendResult,
    BlobRef,
    Capability,
    FeedPage,
    Finding,
    Head,
    Position,
    Record,
    StoredSnapshot,
    StreamInfo,
    Tombstone,
    check_limit,
    refuse,
)
from runstate.models.model import Draft, check_stream
from runstate.storage.disk import Disk

_marked_max = 1024


def open_url(url: str, *, create: bool = True) -> ArchiveLog:
    """`archive:DIR`. It is never made: `runstate archive` does that."""
    return ArchiveLog(archive_path(url))


def archived_model(url: str) -> str:
    """The name of the model whose runs the archive at a URL holds.

    Raises:
        InvalidUrl, LogNotFound, NotALog, LogTooNew: there is no archive that can be read.
    """
    return ArchiveDirectory(archive_path(url)).info().model


def archive_path(url: str) -> Path:
    """The directory that a URL names.

    Raises:
        InvalidUrl: it names none.
    """
    path = url.removeprefix("archive:").removeprefix("//")
    if not path or "\0" in path:
        raise InvalidUrl(f"{url[:80]!r} names no directory: write archive:DIR")
    return Path(path)


class ArchiveLog(Handle):
    """An archive, to be read. Threads may share it."""

    capabilities = frozenset({Capability.DURABLE, Capability.BLOBS})

    def __init__(self, root: PurePath, *, disk: Disk | None = None) -> None:
        """
        Raises:
            LogNotFound, NotALog, LogTooNew: there is no archive that can be read.
        """
        self.directory = ArchiveDirectory(root, disk)
        self.info = self.directory.info()
        self.contents = Contents(self.directory)
        self._streams = sorted(self.contents.runs)
        self.recorded_model = "" if ":" in self.info.model else self.info.model
        """The model of its streams; older versions may have recorded a place, which is not a name."""
        # Where the last page of a stream ended: the next one begins there.
        self._marks: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._gate = Lock()
        super().__init__()

    # --- events --------------------------------------------------------------------------------------------

    def read(self, stream: str, *, after_seq: int = 0, limit: int = 1000) -> list[Record]:
        check_limit(limit)
        if (copy := self._copy(stream)) is None:
            return []
        start = self._marks.get(stream, (0, 0))
        found: list[Record] = []
        for record, end in self._records(copy, after_seq, start if start[0] == after_seq else (0, 0)):
            found.append(record)
            if len(found) == limit:
                self._remember(stream, record.seq, end)
                break
        return found

    def lines(self, stream: str, *, after_seq: int = 0, until_seq: int | None = None) -> Iterator[bytes]:
        copy = self._copy(stream)
        for record, _ in self._records(copy, after_seq) if copy is not None else ():
            if until_seq is not None and record.seq > until_seq:
                return
            yield record.body

    def find(self, stream: str, key: str) -> Record | None:
        copy = self._copy(stream)
        found = self._records(copy) if copy is not None else iter(())
        return next((record for record, _ in found if record.key == key), None)

    def streams(self, *, after: str = "", limit: int = 1000) -> list[StreamInfo]:
        check_limit(limit)
        self._check_listed()
        start = bisect_right(self._streams, after)
        runs = self.contents.runs
        return [runs[stream].run.info(self.recorded_model) for stream in self._streams[start : start + limit]]

    def stream(self, stream: str) -> StreamInfo | None:
        copy = self._copy(stream)
        return None if copy is None else copy.run.info(self.recorded_model)

    def heads(self, *, after: str = "", until: str | None = None, versions: bool = True) -> Iterator[Head]:
        self._check_listed()
        for stream in self._streams[bisect_right(self._streams, after) :]:
            if until is not None and stream > until:
                return
            run = self.contents.runs[stream].run
            yield Head(stream, run.events, run.sha256 if versions else "", run.last_seq, self.recorded_model)

    def load_snapshot(self, stream: str, model: str) -> StoredSnapshot | None:
        """None: a run's state is folded from its events, whoever asks."""
        self._copy(stream)
        return None

    def verify(self, stream: str | None = None) -> Iterator[Finding]:
        if stream is not None:
            copy = self._copy(stream)
            yield from () if copy is None else self._verify_runs([copy])
            return
        self._check_open()
        yield from self._verify_runs(self.contents.runs[name] for name in self._streams)
        yield from self.verify_rest()

    def _verify_runs(self, copies: Iterable[Copy]) -> Iterator[Finding]:
        states = BlobStates(self.get_blob)
        for copy in copies:
            yield from verify_run(self.directory, copy, states)

    def verify_rest(self) -> Iterator[Finding]:
        self._check_open()
        yield from verify_rest(self.directory, self.info, self.contents)

    def get_blob(self, ref: BlobRef) -> bytes:
        self._check_open()
        with translated():
            return self.directory.blobs.get(ref)

    def collect_blobs(self, *, dry_run: bool = False, grace_s: float | None = None) -> Collected:
        """Remove the blobs of runs whose packs were taken out of the archive.

        Raises:
            LogBusy: a job archives to this directory; try again. Nothing was removed.
            LogDamaged: `verify` finds damage other than in blobs. Nothing was removed.
        """
        self._check_open()
        with nullcontext() if dry_run else self.directory.alone():
            # What was there when this handle was opened is not all that is there now.
            with ArchiveLog(self.directory.root, disk=self.directory.disk) as newest:
                marked = mark_blobs(newest, grace_s)
            with translated():
                return self.directory.blobs.collect(marked, dry_run=dry_run)

    # --- what an archive does not do -----------------------------------------------------------------------

    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        self._refuse_change(stream)

    def delete_stream(
        self,
        stream: str,
        *,
        expected_seq: int | None = None,
        first_persisted_at: str = "",
        tombstone: Tombstone | None = None,
    ) -> None:
        self._refuse_change(stream)

    def tombstone(self, stream: str) -> Tombstone | None:
        check_stream(stream)
        self._check_open()
        return None

    def save_snapshot(self, stream: str, snapshot: StoredSnapshot) -> None:
        self._refuse_change(stream)

    def adopt(self, stream: str, records: Sequence[Record], *, model: str = "") -> int:
        self._refuse_change(stream)

    def repair(
        self, stream: str, *, dry_run: bool = False, salvage: bool = False, quarantine: int = 0
    ) -> list[Finding]:
        raise refuse(Capability.REPAIR, "archive")

    def feed(self, *, after: Position | None = None, limit: int = 1000) -> FeedPage:
        raise refuse(Capability.FEED, "archive")

    def put_blob(self, data: bytes) -> BlobRef:
        self._check_open()
        raise Unsupported(f"The archive {self.directory.root} is only read; blobs come with the runs that name them")

    def _refuse_change(self, stream: str) -> NoReturn:
        check_stream(stream)
        self._check_open()
        raise Unsupported(
            f"The archive {self.directory.root} is only read; restore the run to a log to go on with it: "
            f"runstate restore {self.directory.root} URL --stream {stream}"
        )

    # --- how -----------------------------------------------------------------------------------------------

    def _check_listed(self) -> None:
        self._check_open()
        self.contents.check()

    def _copy(self, stream: str) -> Copy | None:
        """Where a run is. That it is nowhere can only be said if all manifests can be read."""
        check_stream(stream)
        self._check_open()
        if (found := self.contents.runs.get(stream)) is None:
            self.contents.check()
        return found

    def _records(self, copy: Copy, after_seq: int = 0, start: tuple[int, int] = (0, 0)) -> Iterator[tuple[Record, int]]:
        with translated():
            try:
                file = self.directory.disk.open(self.directory.pack(copy.pack), read_only=True)
            except FileNotFoundError:
                raise LogDamaged(
                    f"The pack {copy.pack} is gone, and the run {copy.run.stream!r} with it",
                    stream=copy.run.stream,
                    seq=copy.run.first_seq,
                ) from None
            with closing(file):
                yield from records(file, copy.run, after_seq, start)

    def _remember(self, stream: str, seq: int, end: int) -> None:
        with self._gate:
            self._marks[stream] = seq, end
            self._marks.move_to_end(stream)
            if len(self._marks) > _marked_max:
                self._marks.popitem(last=False)
