"""One session that this process writes to: the append transaction, under the session's kernel lock.

One append is one plan is one segment: temporary file, fsync, rename, fsync of the directory; then its line in the
manifest, fsync; then the pins of the blobs that it refers to, fsync. A plan is stored when its manifest line is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from threading import Lock

from runstate.errors import AppendOutcomeUnknown, LogBusy, LogFailed, LogFull, RunstateError, Unsupported
from runstate.logs.adoption import key_taken, new_records
from runstate.logs.blob_refs import blob_refs
from runstate.logs.log import AppendResult, BlobRef, Finding, Record, now
from runstate.logs.planning import StreamPlan
from runstate.logs.segments.collection import Holds
from runstate.logs.segments.compaction import Limits, rows_to_merge
from runstate.logs.segments.damage import damaged
from runstate.logs.segments.files import SessionFiles
from runstate.logs.segments.lines import adopted_line, model_of, write_line
from runstate.logs.segments.manifest import Manifest, Pin, Segment
from runstate.logs.segments.reading import Reader, Recent
from runstate.logs.segments.recovery import settle
from runstate.logs.stream_models import model_after
from runstate.logs.tombstone_files import drop_if_restored, find_tombstone
from runstate.models.canonical import digest
from runstate.models.model import Draft
from runstate.storage.directories import lock_in
from runstate.storage.disk import Disk, LockBusy, replace_durably
from runstate.storage.disk_errors import translate

logger = logging.getLogger("runstate.logs.segments")
segments_spare = 64
"""So many more segments than a compaction would leave are let be, before one is made."""


class Keys:
    """What a writer must know of its session: every key, the last line, the tenant and the model."""

    def __init__(self, origin: Manifest) -> None:
        self.origin = origin
        self.seqs: dict[str, int] = {}
        self.events = 0
        """How many events it knows."""
        self.previous: bytes | None = None
        self.tenant = self.model = ""


class Session:
    """A session, to be written to. `turn` is held by whoever changes it."""

    def __init__(
        self,
        disk: Disk,
        files: SessionFiles,
        recent: Recent,
        holds: Holds,
        limits: Limits,
        report: list[Finding],
    ) -> None:
        self.files, self.reader = files, Reader(disk, files, recent)
        self.turn, self.users = Lock(), 0
        self._disk, self._holds, self._limits, self._report = disk, holds, limits, report
        self._keys = Keys(self.reader.manifest)
        self._settled = ""
        """The version of the manifest that this process has made sure of."""
        self._compact_at = 0

    # --- events --------------------------------------------------------------------------------------------

    def append(self, drafts: Sequence[Draft], expected_seq: int | None) -> list[AppendResult]:
        """
        Raises:
            ModelMismatch, StreamDeleted, SequenceConflict, LogBusy, LogFull, LogDamaged, LogFailed, OSError: nothing
                was written.
            AppendOutcomeUnknown: it may have been.
        """
        with self.locked():
            keys = self.load()
            tombstone = find_tombstone(self._disk, self.files.root, self.files.stream)
            find = partial(self._stored, keys)
            head = (self.files.stream, keys.events, keys.tenant, keys.model)
            plan = StreamPlan(*head, find=find, previous=keys.previous, tombstone=tombstone)
            lines: list[bytes] = []

            def render(stream: str, seq: int, persisted_at: str, draft: Draft, previous: bytes | None) -> Record:
                line, record = write_line(stream, seq, persisted_at, draft, previous)
                lines.append(line)
                return record

            results = plan.add(drafts, expected_seq, now(), render)
            if lines:
                self._commit(keys, lines, list(plan.new.values()))
            return results

    def adopt(self, records: Sequence[Record], model: str) -> int:
        """
        Raises:
            ModelMismatch, SequenceConflict, Unsupported, LogBusy, LogFull, LogDamaged, LogFailed, OSError: nothing was
                written.
            AppendOutcomeUnknown: it may have been.
        """
        with self.locked():
            keys = self.load()
            model = model_after(self.files.stream, keys.model, model, keys.events)
            stored = (self.reader.record(record.seq) for record in records if record.seq <= keys.events)
            new = new_records(self.files.stream, records, keys.events, stored)
            for number, record in enumerate(new, keys.events + 1):
                if record.key in keys.seqs:
                    raise key_taken(record, keys.events)
                if record.seq != number:
                    raise Unsupported(
                        "Events are the lines of segments here, numbered without a gap: "
                        f"the stream {self.files.stream!r} lacks {number} to {record.seq - 1}",
                        stream=self.files.stream,
                        seq=number,
                    )
            if new:
                self._commit(keys, [adopted_line(record, model) for record in new], new)
                drop_if_restored(self._disk, self.files.root, self.files.stream, keys.events)
            return len(new)

    def seq_of(self, key: str) -> int | None:
        """Where a key stands, as far as this writer knows without reading anything; 0: nowhere, None: unknown."""
        keys, view = self._keys, self.reader.look()
        known = keys.seqs.get(key, 0)
        return known if keys.origin is view.origin and keys.events >= view.events and view.damage is None else None

    def is_there(self) -> bool:
        """Whether the session has events. A damaged one has had some."""
        view = self.reader.look()
        return view.events > 0 or view.damage is not None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the session's kernel lock.

        Raises:
            LogBusy: another process, or another handle, holds it.
        """
        try:
            home = self.files.home
            lock = lock_in(self._disk, self.files.lock, writes_to=[home.parent, home, self.files.events])
        except LockBusy as busy:
            message = f"Another writer holds the session {self.files.stream!r}; try again"
            raise LogBusy(message, stream=self.files.stream) from busy
        try:
            yield
        finally:
            lock.release()

    def load(self) -> Keys:
        """Every key of the session, once all that can be seen of it is sure. The caller holds the lock.

        Raises:
            LogDamaged: something in it has changed since it was written; nothing was touched.
        """
        view = self.reader.look()
        if view.damage is not None:
            raise damaged(self.files.stream, view.damage)
        keys = self._keys if self._keys.origin is view.origin else Keys(view.origin)
        for record in self.reader.records(keys.events):
            if not keys.events:
                keys.tenant, keys.model = record.tenant, self.reader.recorded_model()
            keys.seqs.setdefault(record.key, record.seq)
            keys.events, keys.previous = record.seq, record.body
        self._keys = keys
        if self._settled != self.reader.version or not self.reader.version:
            settle(self.reader, self._report)
            self.reader.look()
            self._complete_pins()
            self._settled = self.reader.version
            rows = rows_to_merge(self.reader.manifest.segments, self._limits)
            self._compact_at = max(self._compact_at, len(rows) + segments_spare)
        return keys

    def flush(self) -> None:
        """Make sure of what can be seen of the manifest, before something durable tells of it."""
        if self._settled != self.reader.version and self.reader.version:
            with closing(self._disk.open(self.files.manifest)) as file:
                file.sync()

    def forget(self) -> None:
        """Begin anew the next time, with what the disk holds."""
        self.reader.forget()
        self._settled = ""

    # --- the transaction -----------------------------------------------------------------------------------

    def _commit(self, keys: Keys, lines: list[bytes], records: list[Record]) -> None:
        data = b"".join([line + b"\n" for line in lines])
        segment = Segment(keys.events, keys.events + len(lines) - 1, digest(data), len(data))
        refs = self._refs(records)
        try:
            with self._holds.during(refs):
                self._write_segment(segment, data)
                try:
                    self._write_manifest([segment])
                except (LogFull, LogFailed):
                    # It never happened, for sure: nobody needs its events as evidence.
                    with suppress(OSError):
                        self._disk.remove(self.files.events / segment.name)
                    raise
                self._pin(refs.values())
        except BaseException:
            self.forget()
            raise
        if not keys.events:
            keys.tenant, keys.model = records[0].tenant, model_of(lines[0])
        for record in records:
            keys.seqs[record.key] = record.seq
        keys.events, keys.previous = records[-1].seq, records[-1].body
        self._compact_if_due()

    def _write_segment(self, segment: Segment, data: bytes) -> None:
        """A segment without its line never happened, so whatever fails here, nothing was written."""
        try:
            if not self.reader.manifest.lines:
                self._make_home()
            replace_durably(self._disk, self.files.events / segment.name, data)
        except OSError as error:
            raise translate(error) from error

    def _make_home(self) -> None:
        """Make the session's directories and its manifest; once this returns, their names survive a power cut."""
        disk, files = self._disk, self.files
        sessions = files.home.parent
        made = []
        try:
            for directory in (sessions, files.home, files.events):
                with suppress(FileExistsError):
                    disk.make_directory(directory)
                    made.append(directory)
            with suppress(FileExistsError):
                disk.create(files.manifest).close()
            for directory in (files.home, sessions, sessions.parent):
                disk.sync_directory(directory)
        except BaseException:
            # Names that a sync has failed on are never sure again; only new ones are.
            with suppress(OSError):
                disk.remove(files.manifest)
            for directory in reversed(made):
                with suppress(OSError):
                    disk.remove_directory(directory)
            raise

    def _write_manifest(self, entries: Sequence[Segment | Pin]) -> None:
        """Write lines and flush them.

        Raises:
            LogFull, LogFailed: none was written.
            AppendOutcomeUnknown: they may have been.
        """
        manifest, reader = self.reader.manifest, self.reader
        try:
            with reader.held(), closing(self._disk.open(self.files.manifest)) as file:
                try:
                    file.append(manifest.written(entries))
                except OSError as error:
                    if self._take_back(manifest.end):
                        raise translate(error) from error
                    raise AppendOutcomeUnknown(f"A write failed ({error}), and could not be taken back") from error
                try:
                    file.sync()
                except OSError as error:
                    # The kernel may have dropped the pages. Cut them off now: nobody may take them for stored.
                    self._take_back(manifest.end)
                    raise AppendOutcomeUnknown(f"A flush failed ({error}); send the same keys again") from error
        except OSError as error:
            raise translate(error) from error
        try:
            reader.look()
        except OSError as error:
            raise AppendOutcomeUnknown(f"It is stored, but cannot be read back ({error})") from error
        self._settled = reader.version

    def _take_back(self, end: int) -> bool:
        """Cut the manifest back to what is durable, by a handle of its own: the old one may be poisoned."""
        try:
            with closing(self._disk.open(self.files.manifest)) as file:
                file.truncate(end)
        except OSError:
            return False
        return True

    # --- pins ----------------------------------------------------------------------------------------------

    def _refs(self, records: Iterable[Record]) -> dict[BlobRef, Pin]:
        """What events refer to and this session has not pinned, by the event that does so first."""
        found: dict[BlobRef, Pin] = {}
        for record in records:
            for ref in blob_refs(record.body):
                if ref not in self.reader.manifest.pins:
                    found.setdefault(ref, Pin(record.seq - 1, ref, record.event_id))
        return found

    def _pin(self, pins: Iterable[Pin]) -> None:
        held = [pin for pin in pins if self._holds.has(pin.ref)]
        if held:
            try:
                self._write_manifest(held)
            except RunstateError as error:
                message = f"The events are stored, but not yet what they refer to is pinned ({error}); send them again"
                raise AppendOutcomeUnknown(message) from error

    def _complete_pins(self) -> None:
        """Pin what a writer that was killed between a segment's line and its pins has not."""
        segments = self.reader.manifest.segments
        if segments:
            refs = self._refs(self.reader.records(segments[-1].first))
            with self._holds.during(refs):
                self._pin(refs.values())

    # --- compaction ----------------------------------------------------------------------------------------

    def compact(self) -> int:
        """Merge small neighbours; how many segments are fewer. The caller holds the lock, and has loaded.

        Raises:
            LogDamaged: a segment is; nothing was touched.
            LogFull, LogFailed, AppendOutcomeUnknown, OSError: every event is where it was, or in a merged segment.
        """
        before = len(self.reader.manifest.segments)
        try:
            for row in rows_to_merge(self.reader.manifest.segments, self._limits):
                if len(row) > 1:
                    self._merge(row)
        except BaseException:
            self.forget()
            raise
        after = len(self.reader.manifest.segments)
        self._compact_at = after + segments_spare
        return before - after

    def _merge(self, row: Sequence[Segment]) -> None:
        # The concatenation: each of their digests can be proven from a range of its bytes.
        blocks = self.reader.blocks(row[0].first, self.reader.look(), row[-1].last + 1)
        data = b"".join([line + b"\n" for _, lines, _ in blocks for line in lines])
        whole = Segment(row[0].first, row[-1].last, digest(data), len(data))
        replace_durably(self._disk, self.files.events / whole.name, data)
        self._write_manifest([whole])
        for each in row:
            with suppress(OSError):  # What cannot be removed now, the next one to open the session removes.
                self._disk.remove(self.files.events / each.name)

    def _compact_if_due(self) -> None:
        segments = len(self.reader.manifest.segments)
        if segments < self._compact_at:
            return
        try:
            self.compact()
        except (OSError, RunstateError) as error:
            # The append is stored; a merge that failed costs nothing, and is tried again later.
            self._compact_at = segments + segments_spare
            logger.warning("%s: its segments could not be merged: %s", self.files.stream, error)

    # --- how -----------------------------------------------------------------------------------------------

    def _stored(self, keys: Keys, key: str) -> Record | None:
        seq = keys.seqs.get(key)
        return None if seq is None else self.reader.record(seq)
