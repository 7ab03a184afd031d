"""One run that this process writes to: its lock, its group commits, its snapshots.

Appends that wait are written in one write and flushed once, by the caller that leads.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from threading import Lock

from msgspec import UNSET, UnsetType

from runstate.errors import AppendOutcomeUnknown, RunstateError, Unsupported
from runstate.logs.adoption import key_taken, new_records
from runstate.logs.bulk import Answer
from runstate.logs.frames import LINE_DAMAGED, Damage
from runstate.logs.group_commit import GroupCommit
from runstate.logs.log import Finding, Record, StoredSnapshot, Tombstone, now
from runstate.logs.ndjson.files import RunFiles
from runstate.logs.ndjson.held import Held
from runstate.logs.ndjson.index import Entry, Index, put_snapshot, read_index, write_index
from runstate.logs.ndjson.keys import seqs_max, write_keys
from runstate.logs.ndjson.lines import Envelope, adopted_line, body_of, read_line, write_line
from runstate.logs.ndjson.reading import Announcement, Mark, damaged
from runstate.logs.ndjson.recovery import load
from runstate.logs.planning import StreamPlan
from runstate.logs.sealed import sealed
from runstate.logs.stream_models import model_after
from runstate.logs.submitting import Append
from runstate.logs.tombstone_files import drop_if_restored, find_tombstone
from runstate.logs.tombstones import if_counting
from runstate.models.canonical import digest
from runstate.models.model import Draft
from runstate.storage import disk as files_door
from runstate.storage.directories import create_in
from runstate.storage.disk import Disk, File
from runstate.storage.disk_errors import translate
from runstate.storage.file_proof import FileChanged, check_in_place, file_lost, lock_in_place

keys_behind_max = 2000
"""So many lines behind the key file are read when a run is opened. Beyond it, closing the run writes a new one."""


class Gone(Exception):
    """This run was let go of meanwhile; ask the log for it again."""


class _Group:
    """Lines on their way into the file."""

    def __init__(self, held: Held, plan: StreamPlan) -> None:
        self.held, self.plan = held, plan
        self.lines: list[bytes] = []
        self.appends: list[Append] = []
        """Those that have a line among them."""
        self.has_batch = False


class Run:
    """A run whose lock this process holds. `turn` is held by whoever changes it."""

    def __init__(self, disk: Disk, files: RunFiles, lock: files_door.Lock, report: list[Finding]) -> None:
        self.files, self.turn, self.users = files, Lock(), 0
        self.held: Held | None = None
        self._disk, self._lock, self._report = disk, lock, report
        self._line = GroupCommit(self._serve, Append.result, turn=self.turn)
        self._pending: File | None = None
        self._index: Index | None = None
        self._tombstone: Tombstone | UnsetType | None = UNSET
        self.closed = False

    # --- appending -----------------------------------------------------------------------------------------

    def append(self, appends: Sequence[Append]) -> list[Answer]:
        """Append, together with all who wait meanwhile.

        Raises:
            Gone: nothing was written; the run was closed before these appends had their turn.
        """
        return self._line.run_all(appends)

    def adopt(self, records: Sequence[Record], model: str) -> int:
        """Append those of another log's records that are new; how many they are. The caller has the turn.

        Raises:
            ModelMismatch, SequenceConflict, Unsupported, LogFull, LogDamaged, LogFailed, OSError: nothing was written.
            AppendOutcomeUnknown: it may have been.
        """
        held = self.load()
        model = model_after(self.files.stream, held.model, model, held.seq)
        stored = (self._record(held, record.seq) for record in records if record.seq <= held.seq)
        new = new_records(self.files.stream, records, held.seq, stored)
        group = _Group(held, self._plan(held, None))
        previous = held.previous
        for seq, record in enumerate(new, held.seq + 1):
            if self._stored(held, record.key) is not None:
                raise key_taken(record, held.seq)
            if record.seq != seq:
                raise Unsupported(
                    f"Events are the lines of a file here, numbered without a gap: "
                    f"the stream {self.files.stream!r} lacks {seq} to {record.seq - 1}",
                    stream=self.files.stream,
                    seq=seq,
                )
            group.lines.append(adopted_line(record, previous, model))
            group.plan.new[record.key], previous = record, record.body
        group.has_batch = len(new) > 1
        if new:
            failure: Exception | None = None
            try:
                failure = self._write(group)
            except BaseException:
                self._let_go()
                raise
            if failure is not None:
                self._let_go()
                raise failure
            self._tombstone = UNSET
            drop_if_restored(self._disk, self.files.root, self.files.stream, held.seq)
        return len(new)

    def load(self) -> Held:
        """What is known of the run's file, which is read if nothing is. The caller has the turn."""
        if self.held is None:
            held = load(self._disk, self.files, self._report)
            if held.file is not None:
                try:
                    lock_in_place(self._disk, self.files.events, held.file)
                except BaseException:
                    held.file.close()
                    raise
            self.held = held
        return self.held

    def _serve(self, appends: list[Append]) -> None:
        """Write and flush a group of appends. The caller has the turn.

        Raises:
            Gone: the run was closed.
            RunstateError: nothing was written.
        """
        if self.closed:
            raise Gone
        is_sound = False
        try:
            held = self.load()
            group = _Group(held, self._plan(held, self._find_tombstone()))
            for append in appends:
                self._add(group, append)
            failure = self._write(group) if group.lines else None
            is_deleted = if_counting(group.plan.tombstone, group.plan.last_seq) or not group.plan.last_seq
            is_sound = failure is None and not is_deleted
        except OSError as error:
            raise translate(error) from error
        finally:
            # Of a deleted run too: the log lets go of a run that is not loaded, and another process may restore it.
            if not is_sound:
                self._let_go()
        if failure is not None:
            for append in group.appends:
                append.answer = failure.again()

    def _plan(self, held: Held, tombstone: Tombstone | None) -> StreamPlan:
        find = partial(self._stored, held)
        head = (self.files.stream, held.seq, held.tenant, held.model)
        return StreamPlan(*head, find=find, previous=held.previous, tombstone=tombstone)

    def _find_tombstone(self) -> Tombstone | None:
        """The tombstone. It is read once: it cannot change while this process holds the lock."""
        if self._tombstone is UNSET:
            self._tombstone = find_tombstone(self._disk, self.files.root, self.files.stream)
        return self._tombstone

    def _add(self, group: _Group, append: Append) -> None:
        """Write an append's new lines down in the group, and its answer if the group is written."""
        lines: list[bytes] = []

        def render(stream: str, seq: int, persisted_at: str, draft: Draft, previous: bytes | None) -> Record:
            line, record = write_line(stream, seq, persisted_at, draft, previous)
            lines.append(line)
            return record

        is_retry = any(draft.key in group.plan.new for draft in append.drafts)
        try:
            append.answer = group.plan.add(append.drafts, append.expected_seq, now(), render)
        except RunstateError as error:
            append.answer = error
            return
        except OSError as error:
            append.answer = translate(error)
            return
        group.lines += lines
        group.has_batch |= len(lines) > 1
        # A retry of what a group is about to write stands or falls with that group.
        if lines or is_retry:
            group.appends.append(append)

    def _stored(self, held: Held, key: str) -> Record | None:
        found = (self._record(held, seq) for seq in held.seqs_of(key))
        return next((record for record in found if record.key == key), None)

    def _record(self, held: Held, seq: int) -> Record:
        try:
            previous = body_of(held.line(seq - 1)) if seq > 1 else None
            return read_line(self.files.stream, seq, held.line(seq), previous)
        except Damage as damage:
            raise damaged(self.files.stream, damage, seq, held.span(seq)[0]) from damage
        except LookupError as error:
            moved = Damage(LINE_DAMAGED, f"Line {seq} is not where it was")
            raise damaged(self.files.stream, moved, seq, held.end) from error

    def _write(self, group: _Group) -> RunstateError | None:
        """Write and flush a group. What went wrong, if anything did."""
        held = group.held
        data = b"".join([line + b"\n" for line in group.lines])
        try:
            if held.file is None:
                held.file = create_in(self._disk, self.files.events)
                lock_in_place(self._disk, self.files.events, held.file)
            if group.has_batch:
                self._announce(Announcement(held.end, len(data)))
            held.file.append(data)
        except OSError as error:
            if self._take_back(held.end):
                return translate(error)
            return AppendOutcomeUnknown(f"A write failed ({error}), and could not be taken back")
        try:
            held.file.sync()
        except OSError as error:
            # The kernel may have dropped the pages. Cut them off now: nobody may take them for stored.
            self._take_back(held.end)
            return AppendOutcomeUnknown(f"A flush failed ({error}); send the same keys again")
        try:
            check_in_place(self._disk, self.files.events, held.file, held.end + len(data))
        except FileChanged as error:
            return file_lost(error)
        if group.has_batch and self._pending is not None:
            # Not flushed: after a crash the old announcement tells of bytes that are all there.
            with suppress(OSError):
                self._pending.truncate(0)
        records = group.plan.new.values()
        envelopes = (Envelope(record.key, record.tenant, record.persisted_at) for record in records)
        bodies = (record.body for record in records)
        held.add(*zip(group.lines, bodies, envelopes, strict=True))
        return None

    def _announce(self, announcement: Announcement) -> None:
        """Tell of an append of several lines before any of it can reach the disk."""
        if self._pending is None:
            self._pending = self._open_pending()
        self._pending.truncate(0)
        self._pending.append(sealed(announcement))
        self._pending.sync()

    def _open_pending(self) -> File:
        try:
            return self._disk.open(self.files.pending)
        except FileNotFoundError:
            file = self._disk.create(self.files.pending)
        try:
            self._disk.sync_directory(self.files.home)
        except BaseException:
            file.close()
            self._disk.remove(self.files.pending)
            raise
        return file

    def _take_back(self, end: int) -> bool:
        """Cut the file back to what is durable, by a handle of its own: the old one may be poisoned."""
        try:
            with closing(self._disk.open(self.files.events)) as file:
                if file.size() > end:
                    file.truncate(end)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    # --- snapshots -----------------------------------------------------------------------------------------

    def save_snapshot(self, snapshot: StoredSnapshot, mark: Mark | None, kept: StoredSnapshot | None) -> None:
        """Put a snapshot in place of `kept`. The caller has the turn.

        Raises:
            OSError: the old one is still there, or none is believed.
        """
        index = self._index or read_index(self._disk, self.files)
        self._index = None
        self._note_end(index)
        entries = index.snapshots.get(snapshot.model, [])
        old = [entry for entry in entries if kept is not None and entry.digest == kept.digest][:1]
        entry = Entry(snapshot.version, snapshot.seq, digest(snapshot.body), mark)
        index.snapshots = {**index.snapshots, snapshot.model: [entry, *old]}
        put_snapshot(self._disk, self.files, index, snapshot)
        self._index = index

    def _note_end(self, index: Index) -> None:
        if self.held is not None and self.held.file is not None and self.held.seq:
            index.end, index.crc = self.held.mark(self.held.seq, self.held.file), self.held.crc
            index.stamp = self._disk.stamp(self.files.events)[1]

    def _write_keys(self, held: Held, index: Index) -> None:
        if len(held.keys) >= keys_behind_max and held.seq <= seqs_max and index.end is not None:
            write_keys(self._disk, self.files, held.base, index.end, held.crc, held.bounds, held.keys)

    # --- letting go ----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write the index if it is behind, and let go of the files and the lock. The caller has the turn."""
        if self.closed:
            return
        self.closed = True
        if self.held is not None and self.held.seq:
            with suppress(OSError):
                index = self._index or read_index(self._disk, self.files)
                stamp = self._disk.stamp(self.files.events)
                if index.end is None or (index.end.offset, stamp) != (self.held.end, (self.held.end, index.stamp)):
                    self._note_end(index)
                    self._write_keys(self.held, index)
                    write_index(self._disk, self.files, index)
        self._let_go()
        self._lock.release()

    def forget(self) -> None:
        """Let go of the files and keep the lock. The caller has the turn."""
        self._let_go()

    def _let_go(self) -> None:
        """Forget what is known of the file; the next append opens it again, and recovers it."""
        held, self.held = self.held, None
        pending, self._pending = self._pending, None
        self._index, self._tombstone = None, UNSET
        for file in (held.file if held is not None else None, pending):
            if file is not None:
                with suppress(OSError):
                    file.close()
