"""The port over a directory with a write-ahead log per stream: one writer per stream, readers never blocked.

The append authority is the stream's kernel lock, held from the first append until the log is closed. Files are reached
through `Disk` alone. There is no order across streams, so there is no feed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import chain, islice
from pathlib import PurePath

from runstate.errors import LogDamaged, StreamNotFound, Truncated
from runstate.logs.adoption import check_records
from runstate.logs.blobs import Blobs
from runstate.logs.bulk import Answer
from runstate.logs.file_blobs import FileBlobs
from runstate.logs.log import (
    AppendResult,
    Capability,
    FeedPage,
    Finding,
    Head,
    Position,
    Record,
    StoredSnapshot,
    StreamInfo,
    Tombstone,
    check_expected,
    check_limit,
    check_same_stream,
    refuse,
)
from runstate.logs.quarantine import check_intact
from runstate.logs.stream_directories import LOCKS, files_beside, prepare_root, streams_among
from runstate.logs.stream_models import model_after
from runstate.logs.submitting import Append, StreamwiseLog
from runstate.logs.tombstone_files import (
    check_deletable,
    counting_tombstone,
    drop_if_restored,
    replace_tombstone,
    verify_tombstones,
)
from runstate.logs.wal.adoption import records_to_adopt
from runstate.logs.wal.compaction import checkpoint, find_kept, flush_in_place, is_newer
from runstate.logs.wal.evidence import read_evidence
from runstate.logs.wal.files import WAL, StreamFiles, own_files
from runstate.logs.wal.findings import damage_finding, logger
from runstate.logs.wal.ledger import Ledger, read_ledger
from runstate.logs.wal.options import WalOptions, checked
from runstate.logs.wal.reader import WalReader
from runstate.logs.wal.reading import View, check_known
from runstate.logs.wal.recovery import stands_in
from runstate.logs.wal.repair import rehearse_repair, repair_stream
from runstate.logs.wal.snapshots import find_snapshots, write_snapshot
from runstate.logs.wal.tickets import Ticket
from runstate.logs.wal.verify import verify_stream
from runstate.logs.wal.writer import Writer
from runstate.logs.wal.writers import OpenedWal, Writers
from runstate.models.model import Draft, check_file_stream
from runstate.storage.disk import Disk, RealDisk
from runstate.storage.disk_errors import translated
from runstate.storage.removed_directories import Sweeper, remove_directory

_seq_max = 2**63 - 1


class WalLog(StreamwiseLog, FileBlobs):
    """A directory of streams. Threads may share it; another process may write to other streams."""

    capabilities = frozenset(Capability) - {Capability.MULTI_PROCESS, Capability.FEED}

    def __init__(
        self, root: PurePath, *, options: WalOptions | None = None, create: bool = True, disk: Disk | None = None
    ) -> None:
        """Open a directory, and make it if it is not there.

        Raises:
            InvalidUrl: an option out of bounds.
            LogNotFound: it is not there, and `create` is false.
            NotALog: a file is there.
            LogFailed: it cannot be made: no such directory above it, no permission.
        """
        super().__init__()
        self.root, self.options = root, checked(options or WalOptions())
        self.recoveries: list[Finding] = []
        """What opening streams for writing has cut off or rotated away."""
        self._disk: Disk = disk or RealDisk(shared_below=root)
        self._blobs = Blobs(self._disk, root / ".blobs", root / LOCKS / ".blobs")
        self._sweeper = Sweeper(self._disk, root)
        is_new = prepare_root(self._disk, root, create, self._has_streams, "wal")
        self._writers = Writers(self._disk, root, self.options, self.recoveries, is_settled=is_new)

    # --- appending -----------------------------------------------------------------------------------------

    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        self._check_open()
        if not drafts:
            return super().append(stream, drafts)
        return self._writers.on(stream, Writer.append, drafts, expected_seq)

    def _append_to(self, stream: str, appends: list[Append]) -> list[Answer]:
        return self._writers.on(stream, lambda writer, *_: writer.append_all(appends), (), None)

    def append_buffered(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> Ticket:
        """Append to the buffer: the seqs are known at once, durability comes with the next flush.

        That is after `flush_interval_ms`, with `flush_entries`, or when anybody waits or calls `flush`. Whoever runs
        far ahead of the disk is made to wait for it.

        Raises:
            what `append` raises for what is wrong with the drafts. A failed flush is told by the ticket; after one
            whose outcome is unknown, the stream refuses everything until the log is opened again.
        """
        self._check_open()
        return self._writers.on(stream, Writer.submit, drafts, expected_seq)

    def flush(self, stream: str | None = None) -> None:
        """Return once everything that was appended before is durable.

        Raises:
            AppendOutcomeUnknown, LogFull, LogFailed: it is not.
        """
        self._check_open()
        for writer in self._writers.all():
            if stream in (None, writer.files.stream):
                writer.flush()

    def adopt(self, stream: str, records: Sequence[Record], *, model: str = "") -> int:
        check_file_stream(stream)
        self._check_open()
        check_records(stream, records)
        if not records:
            return 0
        with self._writers.leading(stream) as writer:
            with writer.quiet() as held:
                model = model_after(stream, held.model, model, held.last_seq)
                new = records_to_adopt(self._disk, writer.files, held, records)
                ticket = writer.submit_records(new, model) if new else None
            if ticket is not None:
                writer.write_out()
                ticket.wait()
                drop_if_restored(self._disk, self.root, stream, new[-1].seq)
            return len(new)

    # --- reading -------------------------------------------------------------------------------------------

    def read(self, stream: str, *, after_seq: int = 0, limit: int = 1000) -> list[Record]:
        check_file_stream(stream)
        check_limit(limit)
        after = max(0, min(after_seq, _seq_max))
        with self._view(stream, is_needed=True) as view:
            return [] if view is None else list(view.records(after, limit))

    def lines(self, stream: str, *, after_seq: int = 0, until_seq: int | None = None) -> Iterator[bytes]:
        check_file_stream(stream)
        return chain.from_iterable(self._bodies(stream, max(0, min(after_seq, _seq_max)), until_seq))

    def _bodies(self, stream: str, after_seq: int, until_seq: int | None) -> Iterator[Sequence[bytes]]:
        with self._view(stream, is_needed=True) as view:
            if view is not None:
                yield from view.bodies(after_seq, until_seq)

    def reader(self, stream: str, *, processed_seq: int = 0) -> WalReader:
        """A reader that begins behind `processed_seq`, as a snapshot tells it, and goes on behind corrupt lines."""
        check_file_stream(stream)
        self._check_open()
        return WalReader(stream, processed_seq, partial(self._opened, stream), partial(self._writers.end_of, stream))

    def find(self, stream: str, key: str) -> Record | None:
        """The event that a key stands for, or None: also where the event was removed by a checkpoint."""
        check_file_stream(stream)
        with self._view(stream) as view, suppress(Truncated):
            if view is None:
                return None
            held = None if (writer := self._writers.get(stream)) is None else writer.held
            if held is not None and (seq := held.keys.get(key)) is not None:
                return next(view.records(seq - 1, 1), None)
            if held is None or view.archived():
                return next((record for record in view.records(view.begins_after()) if record.key == key), None)
        return None

    def known(self, stream: str, key: str) -> int | None:
        """The seq that an append of this key is answered with: its event is buffered, stored, or was removed by a
        checkpoint not long ago. None: it would be a new event."""
        check_file_stream(stream)
        self._check_open()
        with self._writers.writing(stream) as writer:
            return writer.known(key)

    def feed(self, *, after: Position | None = None, limit: int = 1000) -> FeedPage:
        raise refuse(Capability.FEED, "wal")

    def streams(self, *, after: str = "", limit: int = 1000) -> list[StreamInfo]:
        check_limit(limit)
        self._check_open()
        found = (info for stream in self._names(after) if (info := self.stream(stream)) is not None)
        return list(islice(found, limit))

    def stream(self, stream: str) -> StreamInfo | None:
        check_file_stream(stream)
        self._check_open()
        writer = self._writers.get(stream)
        if writer is not None and (held := writer.held) is not None:
            return held.info(stream)
        with self._view(stream) as view:
            # The ledger last: it tells of what compaction is about to remove, before that is gone.
            return None if view is None else view.info(read_ledger(self._disk, self._files(stream)))

    def heads(self, *, after: str = "", until: str | None = None, versions: bool = True) -> Iterator[Head]:
        self._check_open()
        for stream in self._names(after, until):
            with self._view(stream) as view:
                if view is None:
                    yield Head(stream, 0, "gone", 0, "")
                else:
                    yield view.head(read_ledger(self._disk, self._files(stream)))

    # --- snapshots -----------------------------------------------------------------------------------------

    def load_snapshot(self, stream: str, model: str) -> StoredSnapshot | None:
        """The snapshot of a model, or None. One that is corrupt is kept as `.bak` by the holder of the stream's
        lock, and the one before it stands in for it.

        Raises:
            SnapshotTooNew: a newer Runstate wrote it; it was left untouched.
        """
        check_file_stream(stream)
        self._check_open()
        with translated():
            kept = find_snapshots(self._disk, self._files(stream), model)
            writer = self._writers.get(stream) if kept.corrupt else None
            if writer is not None and writer.held is not None:
                with writer.upkeep:
                    return find_kept(writer, model, self.recoveries).newest
            for error in kept.corrupt:
                logger.warning("%s: %s; %s", stream, error, stands_in(kept.newest))
            return kept.newest

    def save_snapshot(self, stream: str, snapshot: StoredSnapshot) -> None:
        check_file_stream(stream)
        self._check_exists(stream)
        with self._writers.keeping(stream) as writer:
            if is_newer(writer, find_kept(writer, snapshot.model, self.recoveries), snapshot):
                flush_in_place(writer)
                write_snapshot(self._disk, writer.files, snapshot, zstd=self.options.zstd)

    def checkpoint(self, stream: str, snapshot: StoredSnapshot) -> None:
        """Keep a snapshot, and the one before it. The entries before that one are removed, or archived.

        Writers go on meanwhile. A snapshot that is older than what is kept is ignored.

        Raises:
            StreamNotFound: there is no such stream.
            ValueError: the stream has not come that far.
            LogFull, LogFailed, LogDamaged: nothing that is needed was removed; writers go on.
            SnapshotTooNew: a newer Runstate, or a newer version of the model, wrote the one that is kept.
        """
        check_file_stream(stream)
        self._check_exists(stream)
        with self._writers.keeping(stream) as writer:
            checkpoint(writer, snapshot, self.recoveries)

    # --- the whole stream ----------------------------------------------------------------------------------

    def recover(self, stream: str) -> list[Finding]:
        """Take the stream's lock and recover it now, not with the first append. What was found, and done.

        Raises:
            LogBusy: another writer holds it.
        """
        check_file_stream(stream)
        self._check_open()
        before = len(self.recoveries)
        with self._writers.keeping(stream) as writer:
            writer.load()
        return self.recoveries[before:]

    def delete_stream(
        self,
        stream: str,
        *,
        expected_seq: int | None = None,
        first_persisted_at: str = "",
        tombstone: Tombstone | None = None,
    ) -> None:
        check_file_stream(stream)
        has_events = self.stream(stream) is not None
        with translated():
            check_deletable(self._disk, self.root, stream, tombstone, has_events=has_events)
            self._sweeper.sweep()
        with self._writers.leading(stream) as writer, writer.quiet() as held:
            has_events = held.last_seq > 0
            check_deletable(self._disk, self.root, stream, tombstone, has_events=has_events)
            if has_events:
                check_expected(stream, held.last_seq, expected_seq)
                check_same_stream(stream, held.first_at, first_persisted_at)
            writer.forget()
            replace_tombstone(self._disk, self.root, stream, tombstone)
            if has_events:
                remove_directory(self._disk, writer.files.home, writer.files.lock)
                writer.closed = True

    def tombstone(self, stream: str) -> Tombstone | None:
        info = self.stream(stream)
        with translated():
            return counting_tombstone(self._disk, self.root, stream, info)

    def files_beside(self, stream: str) -> list[str]:
        check_file_stream(stream)
        return files_beside(self._disk, self._files(stream).home, own_files)

    def verify(self, stream: str | None = None) -> Iterator[Finding]:
        if stream is not None:
            check_file_stream(stream)
        self._check_open()
        for name in self._names("") if stream is None else [stream]:
            with translated():
                ledger = read_ledger(self._disk, files := self._files(name))
            try:
                with self._view(name) as view:
                    yield from verify_stream(self._disk, files, ledger, view)
            except LogDamaged as error:  # Under a writer of this process.
                yield damage_finding(error)
        if stream is None:
            yield from self.verify_rest()

    def verify_rest(self) -> Iterator[Finding]:
        with translated():
            yield from self._blobs.verify()
            yield from verify_tombstones(self._disk, self.root)

    def repair(
        self, stream: str, *, dry_run: bool = False, salvage: bool = False, quarantine: int = 0
    ) -> list[Finding]:
        check_file_stream(stream)
        self._check_exists(stream)
        if quarantine:
            check_intact(stream, self.verify(stream))
        repair = partial(repair_stream, salvage=salvage, quarantine=quarantine)
        if dry_run:
            with translated():
                return rehearse_repair(self._disk, self._files(stream), self.options, repair)
        before = len(self.recoveries)
        with self._writers.leading(stream) as writer, writer.quiet(is_read_again=True, salvage=salvage):
            repair(writer, self.recoveries)
        return self.recoveries[before:]

    def _beside_events(self) -> Iterator[bytes]:
        for stream in self._names(""):
            yield from read_evidence(self._disk, self._files(stream))

    # --- open and closed -----------------------------------------------------------------------------------

    def _release(self) -> None:
        self._writers.close()

    def _check_exists(self, stream: str) -> None:
        # A stream whose WAL is lost is still there, as its ledger tells.
        if self.stream(stream) is None and self._disk_ledger(stream) is None:
            raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)

    def _disk_ledger(self, stream: str) -> Ledger | None:
        with translated():
            ledger = read_ledger(self._disk, self._files(stream))
        return ledger if ledger is not None and max(ledger.last_seq, ledger.floor_seq) else None

    # --- how -----------------------------------------------------------------------------------------------

    def _has_streams(self, names: list[str]) -> bool:
        return any(self._disk.exists(self.root / name / WAL) for name in names)

    def _files(self, stream: str) -> StreamFiles:
        return StreamFiles(self.root, stream)

    def _names(self, after: str, until: str | None = None) -> list[str]:
        with translated():
            return streams_among(self._disk.names(self.root), after, until)

    @contextmanager
    def _view(self, stream: str, *, is_needed: bool = False) -> Iterator[View | None]:
        """A stream to read from; None where there is none. LogDamaged: it `is_needed`, and only its WAL is gone."""
        opened = self._opened(stream)
        if opened is None:
            if is_needed and self._writers.get(stream) is None and (ledger := self._disk_ledger(stream)) is not None:
                check_known(stream, ledger, 0, ledger.last_seq, 0)
            yield None
            return
        with translated(), closing(opened.file):
            yield View(self._disk, self._files(stream), opened.file, opened.end, opened.size, opened.known_seq)

    def _opened(self, stream: str) -> OpenedWal | None:
        self._check_open()
        with translated():
            return self._writers.opened(stream)
