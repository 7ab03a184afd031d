"""The port over a directory of run directories: one file of lines per run, one writer per run, readers never blocked.

The append authority is the run's kernel lock. Files are reached through `Disk` alone. There is no order across runs,
so there is no feed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path, PurePath
from threading import Lock

from runstate.errors import InvalidUrl, StreamNotFound
from runstate.logs.adoption import check_records
from runstate.logs.blobs import Blobs
from runstate.logs.bulk import Answer
from runstate.logs.file_blobs import FileBlobs, read_beside
from runstate.logs.log import (
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
    is_outdated,
    is_same_stream,
    refuse,
)
from runstate.logs.ndjson.files import (
    EVENTS,
    ORCHESTRATOR_LOCK,
    RunFiles,
    evidence_files,
    guessed,
    own_files,
    run_files,
)
from runstate.logs.ndjson.held import Held
from runstate.logs.ndjson.index import find_snapshot, read_index, read_known
from runstate.logs.ndjson.reading import Mark, RecentMarks, View, extent, missing_events, read_head
from runstate.logs.ndjson.repair import repair
from runstate.logs.ndjson.run import Gone, Run
from runstate.logs.ndjson.verify import verify_run
from runstate.logs.stream_directories import LOCKS, files_beside, prepare_root, streams_among
from runstate.logs.submitting import Append, StreamwiseLog
from runstate.logs.tombstone_files import check_deletable, counting_tombstone, replace_tombstone, verify_tombstones
from runstate.models.model import check_file_stream
from runstate.storage.directories import lock_in
from runstate.storage.disk import Disk, File, RealDisk
from runstate.storage.disk_errors import translated
from runstate.storage.removed_directories import Sweeper, remove_directory

writers_max = 128
"""Runs that are open for writing at once; beyond it, the one that was used longest ago is let go of."""
_seq_max = 2**63 - 1


def open_url(url: str, *, create: bool = True) -> NdjsonLog:
    """`ndjson:DIR`."""
    path = url.removeprefix("ndjson:").removeprefix("//")
    if not path or "\0" in path:
        raise InvalidUrl(f"{url[:80]!r} names no directory: write ndjson:DIR")
    return NdjsonLog(Path(path), create=create)


class NdjsonLog(StreamwiseLog, FileBlobs):
    """A directory of run directories. Threads may share it; another process may write to other runs."""

    capabilities = frozenset(Capability) - {Capability.MULTI_PROCESS, Capability.FEED}

    def __init__(self, root: PurePath, *, create: bool = True, disk: Disk | None = None) -> None:
        """Open a directory, and make it if it is not there.

        Raises:
            LogNotFound: it is not there, and `create` is false.
            NotALog: a file is there.
            LogFailed: it cannot be made: no such directory above it, no permission.
        """
        super().__init__()
        self.root = root
        self.recoveries: list[Finding] = []
        """What opening runs for writing has cut off: one warning for each torn tail."""
        self._disk: Disk = disk or RealDisk(shared_below=root)
        self._blobs = Blobs(self._disk, root / ".blobs", root / LOCKS / ".blobs")
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._marks = RecentMarks()
        self._gate = Lock()
        self._sweeper = Sweeper(self._disk, root)
        self._settled = prepare_root(self._disk, root, create, self._has_runs, "ndjson")

    # --- events --------------------------------------------------------------------------------------------

    def _append_to(self, stream: str, appends: list[Append]) -> list[Answer]:
        while True:
            with self._writing(stream) as run, suppress(Gone):
                return run.append(appends)

    def adopt(self, stream: str, records: Sequence[Record], *, model: str = "") -> int:
        check_file_stream(stream)
        self._check_open()
        check_records(stream, records)
        if not records:
            return 0
        with self._turn(stream) as run:
            return run.adopt(records, model)

    def read(self, stream: str, *, after_seq: int = 0, limit: int = 1000) -> list[Record]:
        check_file_stream(stream)
        check_limit(limit)
        after = max(0, min(after_seq, _seq_max))
        with self._view(stream, after) as view:
            records = [] if view is None else list(view.records(after, limit))
        if not records and not after:
            self._check_not_lost(stream)
        return records

    def lines(self, stream: str, *, after_seq: int = 0, until_seq: int | None = None) -> Iterator[bytes]:
        check_file_stream(stream)
        return chain.from_iterable(self._bodies(stream, max(0, min(after_seq, _seq_max)), until_seq))

    def _bodies(self, stream: str, after_seq: int, until_seq: int | None) -> Iterator[Sequence[bytes]]:
        with self._view(stream, after_seq) as view:
            is_empty = True
            for bodies in () if view is None else view.bodies(after_seq, until_seq):
                is_empty = False
                yield bodies
        if is_empty and not after_seq and until_seq != 0:
            self._check_not_lost(stream)

    def find(self, stream: str, key: str) -> Record | None:
        check_file_stream(stream)
        held = self._held(stream)
        if held is not None:
            hits = (each for seq in held.seqs_of(key) for each in self.read(stream, after_seq=seq - 1, limit=1))
            return next((record for record in hits if record.key == key), None)
        with self._view(stream) as view:
            records = iter(()) if view is None else view.records(0)
            return next((record for record in records if record.key == key), None)

    def feed(self, *, after: Position | None = None, limit: int = 1000) -> FeedPage:
        raise refuse(Capability.FEED, "ndjson")

    def streams(self, *, after: str = "", limit: int = 1000) -> list[StreamInfo]:
        check_limit(limit)
        self._check_open()
        found = (info for stream in self._names(after) if (info := self.stream(stream)) is not None)
        return list(islice(found, limit))

    def stream(self, stream: str) -> StreamInfo | None:
        check_file_stream(stream)
        held = self._held(stream)
        if held is not None:
            self._check_open()
            return held.info(stream)
        with self._view(stream, _seq_max) as view:
            info = None if view is None else view.info()
        return StreamInfo(stream, "", 0, 0, "", "") if info is None and self._lost(stream) is not None else info

    def heads(self, *, after: str = "", until: str | None = None, versions: bool = True) -> Iterator[Head]:
        self._check_open()
        with translated():
            for stream in self._names(after, until):
                yield read_head(self._disk, self._files(stream)) if versions else guessed(stream)

    # --- snapshots -----------------------------------------------------------------------------------------

    def load_snapshot(self, stream: str, model: str) -> StoredSnapshot | None:
        check_file_stream(stream)
        with self._view(stream) as view:
            return None if view is None else find_snapshot(self._disk, self._files(stream), view.file, model)

    def save_snapshot(self, stream: str, snapshot: StoredSnapshot) -> None:
        check_file_stream(stream)
        self._check_exists(stream)
        with self._turn(stream) as run, self._view(stream, snapshot.seq) as view:
            if view is None or (info := self.stream(stream)) is None:
                raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
            if not is_same_stream(info.first_persisted_at, snapshot.first_persisted_at):
                return
            kept = find_snapshot(self._disk, run.files, view.file, snapshot.model)
            if kept is not None and is_outdated(snapshot, kept.version, kept.seq, info.last_seq):
                return
            mark = view.mark_at(snapshot.seq) if run.held is None else run.held.mark(snapshot.seq, view.file)
            run.save_snapshot(snapshot, mark, kept)

    # --- the whole stream ----------------------------------------------------------------------------------

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
        with self._turn(stream) as run:
            has_events = self._disk.exists(run.files.events) or self._lost(stream) is not None
            check_deletable(self._disk, self.root, stream, tombstone, has_events=has_events)
            if has_events and (expected_seq is not None or first_persisted_at):
                held = run.load()
                check_expected(stream, held.seq, expected_seq)
                check_same_stream(stream, held.first_at, first_persisted_at)
            run.forget()
            replace_tombstone(self._disk, self.root, stream, tombstone)
            if has_events:
                remove_directory(self._disk, run.files.home, run.files.lock)
            run.close()
            with self._gate:
                del self._runs[stream]
            self._marks.forget(stream)

    def tombstone(self, stream: str) -> Tombstone | None:
        info = self.stream(stream)
        with translated():
            return counting_tombstone(self._disk, self.root, stream, info)

    def files_beside(self, stream: str) -> list[str]:
        """Artifacts, and what others put into the run's directory. Deleting the run deletes them too."""
        check_file_stream(stream)
        return files_beside(self._disk, self._files(stream).home, own_files)

    def verify(self, stream: str | None = None) -> Iterator[Finding]:
        if stream is not None:
            check_file_stream(stream)
        self._check_open()
        for name in self._names("") if stream is None else [stream]:
            # The index first: of two looks at a run that is being written, the later one may show more.
            index = read_index(self._disk, files := self._files(name))
            with self._view(name) as view:
                yield from verify_run(self._disk, files, index, view)
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
        change = partial(repair, self._disk, is_salvage=salvage, quarantine=quarantine)
        if dry_run:
            with translated():
                return change(self._files(stream), [], dry_run=True)
        with self._turn(stream) as run:
            run.forget()
            self._marks.forget(stream)
            return change(run.files, self.recoveries, dry_run=False)

    def _beside_events(self) -> Iterator[bytes]:
        for stream in self._names(""):
            for _, data in read_beside(self._disk, self._files(stream).home, evidence_files, EVENTS):
                yield data

    # --- open and closed -----------------------------------------------------------------------------------

    def _release(self) -> None:
        with self._gate:
            runs, self._runs = list(self._runs.values()), OrderedDict()
        for run in runs:
            with run.turn:
                run.close()

    def _check_exists(self, stream: str) -> None:
        if self.stream(stream) is None:
            raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)

    def _lost(self, stream: str) -> Mark | None:
        """How far a run had come of which no whole event is left. What is there now is looked at last."""
        mark = read_index(self._disk, self._files(stream)).end
        if mark is None:
            return None
        # Lines are flushed before the index tells of them, so a run that was begun since shows its first one here.
        with self._view(stream) as view:
            return mark if view is None or view.info() is None else None

    def _check_not_lost(self, stream: str) -> None:
        if (mark := self._lost(stream)) is not None:
            raise missing_events(stream, mark.seq, 0, 0)

    # --- how -----------------------------------------------------------------------------------------------

    def _has_runs(self, names: list[str]) -> bool:
        # An orchestrator that was killed before the first event has left its lock alone.
        return any(self._disk.exists(self.root / name / each) for name in names for each in (EVENTS, ORCHESTRATOR_LOCK))

    def _files(self, stream: str) -> RunFiles:
        return run_files(self.root, stream)

    def _names(self, after: str, until: str | None = None) -> list[str]:
        with translated():
            return streams_among(self._disk.names(self.root), after, until)

    @contextmanager
    def _view(self, stream: str, after_seq: int = 0) -> Iterator[View | None]:
        """A run's file to read from, with marks to begin near what is after a seq; None where there is none."""
        self._check_open()
        files = self._files(stream)
        with translated():
            file, held = self._opened(files)
            if file is None:
                yield None
                return
            with closing(file):
                if held is not None:
                    mark = held.mark(min(after_seq, held.seq), file)
                    yield View(stream, file, held.end, [mark] if mark else [], lambda: (held.end, held.crc))
                    return
                marks = self._marks.of(stream) if after_seq else []
                if after_seq and all(mark.seq != after_seq for mark in marks):
                    marks += read_index(self._disk, files).marks()
                known = partial(read_known, self._disk, files)
                view = View(stream, file, extent(self._disk, files, file), marks, known)
                yield view
                self._marks.add(stream, view.last)

    def _opened(self, files: RunFiles) -> tuple[File | None, Held | None]:
        """A run's file to read from, if there is one, and what its writer in this process knows of that same file."""
        while True:
            held = self._held(files.stream)
            try:
                file = self._disk.open(files.events, read_only=True)
            except (FileNotFoundError, NotADirectoryError):
                return None, None
            # Else a writer has come or gone meanwhile, or the run was deleted: the file may be another than its own.
            if self._held(files.stream) is held:
                return file, held
            file.close()

    def _held(self, stream: str) -> Held | None:
        run = self._runs.get(stream)
        return None if run is None else run.held

    @contextmanager
    def _writing(self, stream: str) -> Iterator[Run]:
        """A run whose lock this process holds, for as long as the block runs and perhaps longer.

        Raises:
            LogBusy: another process, or another handle, holds it.
        """
        with translated():
            with self._gate:
                self._check_open()
                run = self._runs.get(stream) or self._lock_run(stream)
                self._runs[stream] = run
                self._runs.move_to_end(stream)
                run.users += 1
            try:
                yield run
            finally:
                with self._gate:
                    run.users -= 1
                    self._let_go(run)

    @contextmanager
    def _turn(self, stream: str) -> Iterator[Run]:
        """Like `_writing`, and nobody else changes the run meanwhile."""
        while True:
            with self._writing(stream) as run, run.turn:
                if not run.closed:  # Else it was deleted while we waited.
                    yield run
                    return

    def _lock_run(self, stream: str) -> Run:
        files = self._files(stream)
        if not self._settled:
            # Whoever made this directory may have been killed before its name was sure.
            with suppress(PermissionError):
                self._disk.sync_directory(self.root.parent)
            self._settled = True
        return Run(self._disk, files, lock_in(self._disk, files.lock, writes_to=[files.home]), self.recoveries)

    def _let_go(self, run: Run) -> None:
        """Close a run that could not be opened, so that somebody else can repair it, and those beyond the bound."""
        idle = [run] if run.held is None and not run.users else []
        if len(self._runs) > writers_max:
            idle += [other for other in self._runs.values() if not other.users][:1]
        for other in idle:
            if self._runs.get(other.files.stream) is other:
                del self._runs[other.files.stream]
            other.close()
