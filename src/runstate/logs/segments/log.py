"""The port over a directory of sessions: segments under a manifest, one writer per session, readers never blocked.

The append authority is the session's kernel lock, taken for each append. Files are reached through `Disk` alone. There
is no order across sessions, so there is no feed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path, PurePath
from threading import Lock
from urllib.parse import parse_qsl

from runstate.errors import InvalidUrl, StreamNotFound
from runstate.logs.adoption import check_records
from runstate.logs.blob_collection import Collected
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
    check_expected,
    check_limit,
    check_same_stream,
    is_outdated,
    is_same_stream,
    refuse,
)
from runstate.logs.segments.collection import Holds, collect
from runstate.logs.segments.compaction import Limits
from runstate.logs.segments.files import BLOBS, EVENTS, MANIFEST, SESSIONS, SessionFiles, own_files
from runstate.logs.segments.quarantine import change_session, plan_change
from runstate.logs.segments.reading import Reader, Recent
from runstate.logs.segments.recovery import settle, would_settle
from runstate.logs.segments.session import Session
from runstate.logs.segments.snapshots import Kept, read_snapshot, write_snapshot
from runstate.logs.segments.verify import verify_session
from runstate.logs.stream_directories import files_beside, prepare_root, streams_among
from runstate.logs.tombstone_files import check_deletable, counting_tombstone, replace_tombstone, verify_tombstones
from runstate.models.model import Draft, check_file_stream
from runstate.storage.directories import names_in
from runstate.storage.disk import Disk, RealDisk
from runstate.storage.disk_errors import translated
from runstate.storage.removed_directories import Sweeper, remove_directory

sessions_max = 128
"""Sessions that are kept in mind at once; beyond it, the one that was used longest ago is forgotten."""
_events_guessed = 50
"""In a session whose manifest nobody has looked at."""
_seq_max = 2**63 - 1
_bounds = {"segment_events_max": (2, 1_000_000), "segment_bytes_max": (1024, 1024 * 1024 * 1024)}


def open_url(url: str, *, create: bool = True) -> SegmentsLog:
    """`segments:DIR`, with `?segment_events_max=N&segment_bytes_max=N` for what a merged segment holds at most."""
    path, _, query = url.removeprefix("segments:").removeprefix("//").partition("?")
    if not path or "\0" in path:
        raise InvalidUrl(f"{url[:80]!r} names no directory: write segments:DIR")
    options: dict[str, int] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        low, high = _bounds.get(name, (1, 0))
        number = int(value) if value.isascii() and value.isdecimal() and len(value) < 20 else -1
        if not low <= number <= high:
            known = ", ".join(f"{option} ({least} to {most})" for option, (least, most) in _bounds.items())
            raise InvalidUrl(f"{name[:40]}={value[:40]} is no option of this log. There are: {known}")
        options[name] = number
    return SegmentsLog(Path(path), create=create, limits=Limits(**options))


class SegmentsLog(Handle):
    """A directory of sessions. Threads may share it; another process may append to the same sessions, in turn."""

    capabilities = frozenset(Capability) - {Capability.MULTI_PROCESS, Capability.FEED}

    def __init__(
        self, root: PurePath, *, create: bool = True, disk: Disk | None = None, limits: Limits | None = None
    ) -> None:
        """Open a directory, and make it if it is not there.

        Raises:
            LogNotFound: it is not there, and `create` is false.
            NotALog: a file is there.
            LogFailed: it cannot be made: no such directory above it, no permission.
        """
        super().__init__()
        self.root = root
        self.recoveries: list[Finding] = []
        """What opening sessions for writing has cut off: one warning for each torn tail."""
        self._disk: Disk = disk or RealDisk(shared_below=root)
        self._limits = limits or Limits()
        self._holds = Holds(self._disk, root)
        self._recent = Recent()
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._gate = Lock()
        self._sweeper = Sweeper(self._disk, root / SESSIONS)
        self._settled = prepare_root(self._disk, root, create, self._has_sessions, "segments")

    # --- events --------------------------------------------------------------------------------------------

    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        check_file_stream(stream)
        self._check_open()
        if not drafts:
            return []
        with self._turn(stream) as session:
            results = session.append(drafts, expected_seq)
        self._holds.appended()
        return results

    def adopt(self, stream: str, records: Sequence[Record], *, model: str = "") -> int:
        check_file_stream(stream)
        self._check_open()
        check_records(stream, records)
        if not records:
            return 0
        with self._turn(stream) as session:
            adopted = session.adopt(records, model)
        self._holds.appended()
        return adopted

    def read(self, stream: str, *, after_seq: int = 0, limit: int = 1000) -> list[Record]:
        check_limit(limit)
        reader = self._reader(stream)
        with translated():
            return list(reader.records(max(0, min(after_seq, _seq_max)), min(limit, _seq_max)))

    def lines(self, stream: str, *, after_seq: int = 0, until_seq: int | None = None) -> Iterator[bytes]:
        check_file_stream(stream)
        return chain.from_iterable(self._bodies(stream, max(0, min(after_seq, _seq_max)), until_seq))

    def _bodies(self, stream: str, after_seq: int, until_seq: int | None) -> Iterator[Sequence[bytes]]:
        reader = self._reader(stream)
        with translated():
            yield from reader.bodies(after_seq, until_seq)

    def find(self, stream: str, key: str) -> Record | None:
        session = self._known(stream)
        with translated():
            seq = session.seq_of(key)
            if seq is not None:
                return next(session.reader.records(seq - 1, 1), None) if seq else None
            return next((record for record in session.reader.records(0) if record.key == key), None)

    def feed(self, *, after: Position | None = None, limit: int = 1000) -> FeedPage:
        raise refuse(Capability.FEED, "segments")

    def streams(self, *, after: str = "", limit: int = 1000) -> list[StreamInfo]:
        check_limit(limit)
        self._check_open()
        found = (info for stream in self._names(after) if (info := self.stream(stream)) is not None)
        return list(islice(found, limit))

    def stream(self, stream: str) -> StreamInfo | None:
        reader = self._reader(stream)
        with translated():
            return reader.info()

    def heads(self, *, after: str = "", until: str | None = None, versions: bool = True) -> Iterator[Head]:
        self._check_open()
        for stream in self._names(after, until):
            if not versions:
                yield Head(stream, _events_guessed, "")
                continue
            reader = self._reader(stream)
            with translated():
                events = reader.look().events
                model = reader.peek_model()
            yield Head(stream, events, reader.version or "gone", events, model)

    # --- snapshots -----------------------------------------------------------------------------------------

    def load_snapshot(self, stream: str, model: str) -> StoredSnapshot | None:
        reader = self._reader(stream)
        with translated():
            found = read_snapshot(self._disk, reader.files, model)
            return found.snapshot if found is not None and found.is_of(reader) else None

    def save_snapshot(self, stream: str, snapshot: StoredSnapshot) -> None:
        check_file_stream(stream)
        self._check_open()
        with self._turn(stream) as session, session.locked():
            known = session.reader.manifest
            self._check_exists(session)
            view = session.reader.look()
            # A state that is ahead of its session, or was made before this handle saw that its manifest is another one,
            # is of a session that was deleted or cut back since.
            if snapshot.seq > view.events or (known.lines and known is not view.origin):
                return
            info = session.reader.info() if snapshot.first_persisted_at else None
            if info is not None and not is_same_stream(info.first_persisted_at, snapshot.first_persisted_at):
                return
            kept = self.load_snapshot(stream, snapshot.model)
            if kept is not None and is_outdated(snapshot, kept.version, kept.seq, view.events):
                return
            line_digest = session.reader.line_digest(snapshot.seq)
            session.flush()
            write_snapshot(self._disk, session.files, Kept(snapshot, view.events, line_digest))

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
        self._check_open()
        with translated():
            self._sweeper.sweep()
        with self._turn(stream) as session, session.locked():
            is_there = session.is_there()
            check_deletable(self._disk, self.root, stream, tombstone, has_events=is_there)
            if is_there and expected_seq is not None:
                check_expected(stream, session.load().events, expected_seq)
            if is_there and first_persisted_at and (info := session.reader.info()) is not None:
                check_same_stream(stream, info.first_persisted_at, first_persisted_at)
            session.forget()
            replace_tombstone(self._disk, self.root, stream, tombstone)
            if is_there:
                remove_directory(self._disk, session.files.home, session.files.lock)

    def tombstone(self, stream: str) -> Tombstone | None:
        info = self.stream(stream)
        with translated():
            return counting_tombstone(self._disk, self.root, stream, info)

    def files_beside(self, stream: str) -> list[str]:
        check_file_stream(stream)
        return files_beside(self._disk, SessionFiles(stream, self.root).home, own_files)

    def verify(self, stream: str | None = None) -> Iterator[Finding]:
        if stream is not None:
            check_file_stream(stream)
        self._check_open()
        for name in self._names("") if stream is None else [stream]:
            with translated():
                yield from verify_session(self._disk, SessionFiles(name, self.root), self._holds.has)
        if stream is None:
            yield from self.verify_rest()

    def verify_rest(self) -> Iterator[Finding]:
        self._check_open()
        with translated():
            yield from self._holds.blobs.verify()
            yield from verify_tombstones(self._disk, self.root)

    def repair(
        self, stream: str, *, dry_run: bool = False, salvage: bool = False, quarantine: int = 0
    ) -> list[Finding]:
        check_file_stream(stream)
        self._check_open()
        files = SessionFiles(stream, self.root)
        with translated():
            if not names_in(self._disk, files.home):
                raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
            if dry_run:
                plan = plan_change(self._disk, files, self._holds.has, is_salvage=salvage, quarantine=quarantine)
                return would_settle(self._disk, files) if plan is None else [plan.finding()]
        with self._turn(stream) as session, session.locked():
            plan = plan_change(self._disk, files, self._holds.has, is_salvage=salvage, quarantine=quarantine)
            session.forget()
            findings = change_session(self._disk, files, plan)
            session.reader.look()
            settle(session.reader, findings)
            self.recoveries += findings
            return findings

    def compact(self, stream: str) -> int:
        """Merge a session's small segments into larger ones; how many segments are fewer.

        Raises:
            StreamNotFound: there is no such stream.
            LogBusy: another writer holds it.
            LogDamaged: it is damaged; nothing was touched.
            LogFull, LogFailed, AppendOutcomeUnknown: every event is where it was, or in a merged segment.
        """
        check_file_stream(stream)
        self._check_open()
        with self._turn(stream) as session, session.locked():
            self._check_exists(session)
            session.load()
            return session.compact()

    # --- blobs ---------------------------------------------------------------------------------------------

    def put_blob(self, data: bytes) -> BlobRef:
        """Keep bytes under their digest. It is safe from `gc` until this thread's next append, which should name it.

        A thread that has ended has no next append: with the next one of any other, it is not safe any more.

        Raises:
            LogBusy: blobs are being collected; try again.
        """
        self._check_open()
        with translated():
            return self._holds.put(bytes(data))

    def get_blob(self, ref: BlobRef) -> bytes:
        self._check_open()
        with translated():
            return self._holds.blobs.get(ref)

    def collect_blobs(self, *, dry_run: bool = False, grace_s: float | None = None) -> Collected:
        """Remove the blobs that no session refers to any more. At any doubt, nothing is removed.

        Raises:
            LogBusy: somebody has put blobs and not yet appended what refers to them.
            LogDamaged, LogFailed: a session is damaged or cannot be read, or something else stands among them.
        """
        self._check_open()
        self._holds.forget_ended()
        with translated():
            return collect(self._disk, self.root, dry_run=dry_run, grace_s=grace_s)

    # --- open and closed -----------------------------------------------------------------------------------

    def _release(self) -> None:
        for session in list(self._sessions.values()):
            with session.turn:  # Whoever has it finishes; whoever comes next finds the log closed.
                session.forget()
        self._holds.release()

    def _check_exists(self, session: Session) -> None:
        if not session.is_there():
            stream = session.files.stream
            raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)

    # --- how -----------------------------------------------------------------------------------------------

    def _has_sessions(self, names: list[str]) -> bool:
        sessions = self.root / SESSIONS
        names = names_in(self._disk, sessions)
        found = (self._disk.exists(sessions / name / file) for name in names for file in (MANIFEST, EVENTS))
        return any(found) or self._disk.exists(self.root / BLOBS / "sha256")

    def _names(self, after: str, until: str | None = None) -> list[str]:
        with translated():
            return streams_among(names_in(self._disk, self.root / SESSIONS), after, until)

    def _reader(self, stream: str) -> Reader:
        return self._known(stream).reader

    def _known(self, stream: str) -> Session:
        check_file_stream(stream)
        self._check_open()
        with self._gate:
            return self._session(stream)

    def _session(self, stream: str) -> Session:
        """A session as this handle knows it. The caller holds the gate."""
        session = self._sessions.get(stream)
        if session is None:
            files = SessionFiles(stream, self.root)
            session = Session(self._disk, files, self._recent, self._holds, self._limits, self.recoveries)
            self._sessions[stream] = session
            if len(self._sessions) > sessions_max:
                idle = next(
                    (name for name, other in self._sessions.items() if not other.users and other is not session), None
                )
                if idle is not None:
                    del self._sessions[idle]
        self._sessions.move_to_end(stream)
        return session

    @contextmanager
    def _turn(self, stream: str) -> Iterator[Session]:
        """A session that nobody else in this process changes meanwhile."""
        with translated():
            with self._gate:
                session = self._session(stream)
                session.users += 1
            try:
                with session.turn:
                    self._check_open()
                    self._settle_root()
                    yield session
            finally:
                with self._gate:
                    session.users -= 1

    def _settle_root(self) -> None:
        if not self._settled:
            # Whoever made this directory may have been killed before its name was sure.
            with suppress(PermissionError):
                self._disk.sync_directory(self.root.parent)
            self._settled = True
