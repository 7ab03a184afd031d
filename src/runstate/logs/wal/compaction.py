"""Checkpoints: a snapshot, then a WAL without the entries that the one before it makes needless, while writers go on.

Everything that takes long is done beside the writers: the snapshot, the archive, the copy of what stays. They wait only
for the last step, in which the few entries that came meanwhile are copied and the new file takes the old one's place.
Nothing is removed before the snapshot's directory was synced.
"""

from __future__ import annotations

import errno
import time
from contextlib import closing, suppress
from pathlib import PurePath

from runstate.errors import AppendOutcomeUnknown, SnapshotTooNew
from runstate.logs.log import Finding, StoredSnapshot, is_outdated, is_same_stream
from runstate.logs.wal.archive import leading_to, segments, write_segment
from runstate.logs.wal.entries import Damage, Entry, read_entry
from runstate.logs.wal.findings import damaged
from runstate.logs.wal.held import Held
from runstate.logs.wal.ledger import OldKey, Removed, read_old_keys, write_old_keys
from runstate.logs.wal.lines import chunk_bytes, count_lines, last_entry, numbered_lines, offset_after, start_of
from runstate.logs.wal.recovery import set_aside
from runstate.logs.wal.snapshots import Kept, find_snapshots, write_checkpoint
from runstate.logs.wal.writer import Writer
from runstate.storage.disk import File
from runstate.storage.file_proof import check_in_place

segment_bytes = 16 * chunk_bytes
"""About how much of the WAL goes into one archived segment."""
_breath = 100
"""After so many entries a long walk lets other threads run: else each of theirs would wait for a whole time slice."""


def find_kept(writer: Writer, model: str, report: list[Finding]) -> Kept:
    """The snapshots of a model, after the corrupt ones were set aside. The caller has the upkeep.

    Raises:
        SnapshotTooNew: a newer Runstate wrote one.
    """
    kept = find_snapshots(writer.disk, writer.files, model)
    for error in kept.corrupt:
        set_aside(writer.disk, writer.files, error, kept.newest, report)
    return kept


def is_newer(writer: Writer, kept: Kept, snapshot: StoredSnapshot) -> bool:
    """Whether a snapshot is of this stream, and is to take the place of what is kept."""
    newest, held = kept.newest, writer.load()
    if snapshot.first_persisted_at and not is_same_stream(held.first_at, snapshot.first_persisted_at):
        return False
    return newest is None or not is_outdated(snapshot, newest.version, newest.seq, held.last_seq)


def flush_in_place(writer: Writer) -> Held:
    """Flush what is buffered, and check that the WAL is still the writer's: a snapshot must not outlive its events.

    Raises:
        OSError, AppendOutcomeUnknown: nothing may be saved.
    """
    writer.flush()
    held = writer.load()
    if held.file is not None:
        with writer.claimed():
            check_in_place(writer.disk, writer.files.wal, held.file, held.end)
    return held


def checkpoint(writer: Writer, snapshot: StoredSnapshot, report: list[Finding]) -> None:
    """Keep a snapshot, then remove the entries that the one before it holds. The caller has the upkeep.

    So one damaged snapshot loses nothing: the previous one and the entries since then are there.

    Raises:
        ValueError: the stream has not come to the snapshot's seq.
        SnapshotTooNew: a newer Runstate, or a newer version of the model, wrote what is kept.
        LogDamaged: an entry that was to be archived is damaged; all of them stay.
        OSError: nothing that is needed was removed, and writers go on.
    """
    kept, stream = find_kept(writer, snapshot.model, report), writer.files.stream
    if kept.newest is not None and kept.newest.version > snapshot.version:
        version = kept.newest.version
        message = f"The snapshot of {stream!r} is of version {version} of its model, newer than {snapshot.version}"
        raise SnapshotTooNew(f"{message}; it was left untouched", stream=stream, version=version)
    if not is_newer(writer, kept, snapshot):
        return
    held = flush_in_place(writer)
    if not 0 < snapshot.seq <= held.last_seq:
        raise ValueError(f"a checkpoint is of a seq from 1 to {held.last_seq}, not of {snapshot.seq}")
    # Before the snapshot: should the WAL be lost, no seq that it covers is given out again.
    writer.amend_ledger(last_seq=held.tail_seq, floor_seq=held.lost_seq)
    previous = write_checkpoint(writer.disk, writer.files, snapshot, kept, zstd=writer.options.zstd)
    if held.file is not None and previous is not None:
        compact(writer, held, previous.seq)


def compact(writer: Writer, held: Held, first_seq: int) -> None:
    """Remove the entries before `first_seq` from the WAL, or move them to the archive."""
    disk, files = writer.disk, writer.files
    with closing(disk.open(files.wal, read_only=True)) as file:
        end = held.end
        start = start_of(file, end, first_seq)
        if not start:
            return
        archived = held.ledger.archived
        if writer.options.history == "archive":
            archived = _archive(writer, file, start)
        old_keys = [*read_old_keys(disk, files), *_last_keys(writer, file, start)]
        old_keys = old_keys[max(0, len(old_keys) - writer.options.remembered_keys) :]
        write_old_keys(disk, files, old_keys)
        writer.amend_ledger(
            removed=_removed(writer, held, file, start, first_seq),
            last_seq=held.tail_seq,
            floor_seq=held.lost_seq,
            archived=archived,
            swapping=True,
        )
        temp = disk.temp_name(files.wal)
        copy = disk.create(temp)
        try:
            end = _copied(file, start, end, copy)
            copy.sync()
            old = _swap(writer, held, temp, copy, start, end, old_keys)
        except BaseException:
            if held.file is not copy:
                copy.close()
                with suppress(OSError):
                    disk.remove(temp)
            raise
    writer.amend_ledger(swapping=False)
    while old:
        # To free a large dictionary at once would hold up every thread.
        for _ in range(min(len(old), 100 * _breath)):
            old.popitem()
        time.sleep(0)


def _archive(writer: Writer, file: File, end: int) -> tuple[int, int]:
    """Keep what the WAL holds up to an offset. Returns what the ledger is to say of the archive."""
    disk, files = writer.disk, writer.files
    lines: list[bytes] = []
    size = first = last = begin = 0
    for number, (offset, line) in enumerate(numbered_lines(file, 0, end)):
        entry = _entry(files.stream, line, offset)
        if number % _breath == 0:
            time.sleep(0)
        if not number:
            _forget_unfinished(writer, entry.previous_seq)
            begin = _archive_begin(writer, entry.previous_seq)
        if size >= segment_bytes:
            write_segment(disk, files, first, last, b"".join(lines), zstd=writer.options.zstd)
            lines, size = [], 0
        # Named from the place behind the entry before it: a gap in the seqs is no gap in the archive.
        first = entry.previous_seq + 1 if not lines else first
        lines += (line, b"\n")
        size, last = size + len(line) + 1, entry.seq
    if lines:
        write_segment(disk, files, first, last, b"".join(lines), zstd=writer.options.zstd)
    return begin, last


def _archive_begin(writer: Writer, previous_seq: int) -> int:
    """The first seq of the archive that leads up to `previous_seq`, or of a new one."""
    known = None if writer.held is None else writer.held.ledger.archived
    if isinstance(known, tuple) and known[0] <= previous_seq <= known[1]:
        return known[0]
    chain = leading_to(segments(writer.disk, writer.files), previous_seq)
    return chain[0].first_seq if chain else previous_seq + 1


def _forget_unfinished(writer: Writer, last_seq: int) -> None:
    """Remove the segments of a compaction that was cut short: nobody knows whether their names would survive."""
    for segment in segments(writer.disk, writer.files):
        if segment.last_seq > last_seq:
            writer.disk.remove(segment.path)


def _last_keys(writer: Writer, file: File, end: int) -> list[OldKey]:
    """The keys of the last entries before an offset."""
    stream, start, last = writer.files.stream, 0, last_entry(writer.files.stream, file, end)
    if last is not None:
        start = offset_after(file, end, last.seq - writer.options.remembered_keys)
    keys = []
    for number, (offset, line) in enumerate(numbered_lines(file, start, end)):
        entry = _entry(stream, line, offset)
        keys.append(OldKey(entry.envelope.known_key, entry.seq, entry.envelope.event_id, entry.envelope.persisted_at))
        if number % _breath == 0:
            time.sleep(0)
    return keys


def _removed(writer: Writer, held: Held, file: File, end: int, first_seq: int) -> Removed:
    """What is to be remembered of the entries up to an offset, and of all that went before them."""
    gone, counted = held.ledger.removed, 0
    if gone is not None:
        counted = start_of(file, end, gone.before_seq)  # Left by a compaction that was cut short.
    events = count_lines(file, counted, end) + (0 if gone is None else gone.events)
    last = last_entry(writer.files.stream, file, end)
    return Removed(first_seq, events, held.tenant, held.first_at, "" if last is None else last.envelope.persisted_at)


def _copied(file: File, start: int, end: int, copy: File) -> int:
    while start < end:
        chunk = file.read_at(start, min(chunk_bytes, end - start))
        if not chunk:
            raise OSError(errno.ESTALE, f"{file.path.name} is shorter than what was written to it", str(file.path))
        copy.append(chunk)
        start += len(chunk)
    return start


def _swap(
    writer: Writer, held: Held, temp: PurePath, copy: File, start: int, copied: int, old_keys: list[OldKey]
) -> dict[str, int]:
    """Let the copy take the WAL's place. Returns the keys that are no longer needed, for the caller to free."""
    disk, files = writer.disk, writer.files
    old = {key.key: key for key in old_keys}
    with writer.claimed():
        with closing(disk.open(files.wal, read_only=True)) as file:
            check_in_place(disk, files.wal, held.file or file, held.end)
            _copied(file, copied, held.end, copy)
        copy.sync()
        copy.lock()
        try:
            with writer.gate:
                disk.rename(temp, files.wal)
                replaced, held.file, held.end = held.file, copy, held.end - start
                kept: dict[str, int] = {}
                for key, seq in reversed(held.keys.items()):
                    if held.ledger.removed is not None and seq < held.ledger.removed.before_seq:
                        break
                    kept[key] = seq
                needless, held.keys, held.old_keys = held.keys, dict(reversed(kept.items())), old
                writer.generation += 1
        except BaseException:
            if not disk.exists(temp):  # Done, and not taken note of: nothing may go to the file that it has replaced.
                lost = AppendOutcomeUnknown("The WAL was replaced, and that was interrupted; open the log again")
                writer.end_flush(lost)
            raise
        if replaced is not None:
            replaced.close()
        try:
            disk.sync_directory(files.home)
        except OSError as error:
            # Nobody knows which file the name will stand for after a power cut. The ledger tells the next who opens it.
            writer.end_flush(
                AppendOutcomeUnknown(f"The new WAL's name could not be flushed ({error}); open the log again")
            )
            raise
    return needless


def _entry(stream: str, line: bytes, offset: int) -> Entry:
    try:
        return read_entry(stream, line, None)
    except Damage as damage:
        raise damaged(stream, damage, 0, offset) from damage
