"""Reading a session, whoever is writing to it: whole plans only, every segment against its digest, never past damage.

Readers take no lock. A segment whose file is gone was merged into a larger one; the manifest, read again, tells.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from threading import Lock

import msgspec

from runstate.errors import LogBusy, LogDamaged
from runstate.logs.frames import Damage, read_first_frame
from runstate.logs.log import Record, StreamInfo
from runstate.logs.segments.damage import SEGMENT_DAMAGED, SEGMENT_MISSING, Spot, damaged
from runstate.logs.segments.files import EVENTS, SessionFiles, span_of
from runstate.logs.segments.lines import bodies, model_of, read_line
from runstate.logs.segments.manifest import Manifest, Segment, place_of
from runstate.logs.segments.strays import cut_short
from runstate.models.canonical import digest
from runstate.storage.directories import names_in
from runstate.storage.disk import Disk

_segments_kept = 4
_segment_kept_bytes_max = 8 * 1024 * 1024


class Recent:
    """The lines of the segments that were read last, by digest: those who read in pages come back to them."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, list[bytes]] = OrderedDict()
        self._gate = Lock()

    def get(self, segment: Segment) -> list[bytes] | None:
        with self._gate:
            if segment.sha256 in self._lines:
                self._lines.move_to_end(segment.sha256)
            return self._lines.get(segment.sha256)

    def keep(self, segment: Segment, lines: list[bytes]) -> None:
        if segment.bytes > _segment_kept_bytes_max:
            return
        with self._gate:
            self._lines[segment.sha256] = lines
            if len(self._lines) > _segments_kept:
                self._lines.popitem(last=False)


Block = tuple[int, list[bytes], Segment]
"""The index of an event, its line and all behind it in its segment, and the segment."""


class View(msgspec.Struct, frozen=True, gc=False):
    """A session as one reader sees it: the events that there were when it looked."""

    origin: Manifest
    segments: list[Segment]
    events: int
    damage: Spot | None


class Reader:
    """One session, to be read."""

    def __init__(self, disk: Disk, files: SessionFiles, recent: Recent) -> None:
        self.disk, self.files = disk, files
        self.manifest = Manifest()
        self.version = ""
        """Changes whenever the manifest's file does; empty where there is none."""
        self._recent, self._gate = recent, Lock()
        self._is_held = False

    def look(self) -> View:
        """The session as it is now.

        Raises:
            OSError: the manifest cannot be read.
        """
        with self._gate:
            if not self._is_held:
                self._catch_up()
            manifest = self.manifest
            return View(manifest, manifest.segments, manifest.events, manifest.damage)

    def _catch_up(self) -> None:
        if not self._is_extended():
            self._begin()

    def _is_extended(self) -> bool:
        """Whether the manifest is still the one that is known. What is new in it has been taken in."""
        known = self.manifest
        try:
            size, version = self.disk.stamp(self.files.manifest)
            if version == self.version:
                return True
            if not known.lines or known.damage is not None or size < known.end:
                return False
            # Its last line proves all before it: where that is still in place, only what is new must be read.
            start = known.end - len(known.last_line) - known.is_terminated
            with closing(self.disk.open(self.files.manifest, read_only=True)) as file:
                data = file.read_at(start, size - start)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if not data.startswith(known.last_line):
            return False
        known.extend(data[known.end - start :])
        self.version = version
        return True

    def _begin(self) -> None:
        """Read the manifest from its beginning, and see by the segments whether its end is there."""
        while True:
            # Names first: what stands now has its line in a manifest that is read later, but for the last one.
            names = names_in(self.disk, self.files.events)
            manifest, version = self._whole_manifest()
            is_there = bool(version)
            if manifest.damage is None and cut_short(names, manifest, is_there=is_there) is not None:
                # Or else the session was deleted and begun again meanwhile: then these are gone, or it is growing.
                there = set(names_in(self.disk, self.files.events))
                manifest.damage = cut_short([name for name in names if name in there], manifest, is_there=is_there)
                if self._whole_manifest()[1] != version:
                    continue
            self.manifest, self.version = manifest, version
            return

    def _whole_manifest(self) -> tuple[Manifest, str]:
        manifest = Manifest()
        try:
            size, version = self.disk.stamp(self.files.manifest)
            with closing(self.disk.open(self.files.manifest, read_only=True)) as file:
                manifest.extend(file.read_at(0, size))
        except (FileNotFoundError, NotADirectoryError):
            return Manifest(), ""
        return manifest, version

    @contextmanager
    def held(self) -> Iterator[None]:
        """While this process writes to the manifest: what is not flushed yet is not looked at."""
        with self._gate:
            self._is_held = True
        try:
            yield
        finally:
            with self._gate:
                self._is_held = False

    def forget(self) -> None:
        """Read the manifest from its beginning the next time."""
        with self._gate:
            self.manifest, self.version = Manifest(), ""

    # --- events --------------------------------------------------------------------------------------------

    def records(self, after_seq: int, limit: int | None = None) -> Iterator[Record]:
        """The records with `seq > after_seq`.

        Raises:
            LogDamaged: the walk met damage. What was before it has been yielded.
        """
        records = (
            self._record(seq, line, segment)
            for first, lines, segment in self.blocks(after_seq, self.look())
            for seq, line in enumerate(lines, first + 1)
        )
        return records if limit is None else islice(records, limit)

    def bodies(self, after_seq: int, until_seq: int | None) -> Iterator[Sequence[bytes]]:
        """The models' lines with `after_seq < seq <= until_seq`, many at a time.

        Raises:
            LogDamaged: the walk met damage. What was before it has been yielded.
        """
        for first, lines, _ in self.blocks(after_seq, self.look(), until_seq):
            yield bodies(lines if until_seq is None else lines[: max(0, until_seq - first)])

    def line_digest(self, seq: int) -> str:
        """Of the model's line at a seq: by it, a state tells which history it is of. Empty where there is none.

        Raises:
            LogDamaged: it cannot be read.
        """
        return "".join(digest(line) for lines in self.bodies(seq - 1, seq) for line in lines) if seq > 0 else ""

    def record(self, seq: int) -> Record:
        """
        Raises:
            LogDamaged: it cannot be read.
            LookupError: there is no such event.
        """
        for record in self.records(seq - 1, 1):
            return record
        raise LookupError(seq)

    def info(self) -> StreamInfo | None:
        """How far the session goes; None where there is nothing."""
        view = self.look()
        last_seq = view.events
        while last_seq:
            try:
                first, last = self.record(1), self.record(last_seq)
            except LogDamaged as error:
                last_seq = min(last_seq - 1, error.details["intact"])
            except LookupError:  # Deleted meanwhile.
                return None
            else:
                times = (first.persisted_at, last.persisted_at)
                damaged = last_seq < view.events or view.damage is not None
                place = (self.files.stream, first.tenant, last_seq, last_seq)
                return StreamInfo(*place, *times, self.recorded_model(), damaged)
        return StreamInfo(self.files.stream, "", 0, 0, "", "", damaged=True) if view.events or view.damage else None

    def recorded_model(self) -> str:
        """The model that the session records; empty where it records none, or has no event.

        Raises:
            LogDamaged: its first event cannot be read.
        """
        return next((model_of(lines[0]) for _, lines, _ in self.blocks(0, self.look(), 1)), "")

    def peek_model(self) -> str | None:
        """`recorded_model` without checking the digest of the first segment; None where its file is gone."""
        for segment in self.look().segments[:1]:
            try:
                with closing(self.disk.open(self.files.events / segment.name, read_only=True)) as file:
                    return model_of(read_first_frame(file))
            except FileNotFoundError:
                return None
        return ""

    def lines(self, segment: Segment) -> list[bytes]:
        """The lines of a segment.

        Raises:
            LogDamaged: they are not those that were closed.
            FileNotFoundError: its file is gone.
        """
        found = self._recent.get(segment)
        if found is None:
            data = read_segment(self.disk, self.files, segment)
            if isinstance(data, Spot):
                raise damaged(self.files.stream, data)
            *found, _ = data.split(b"\n")
            self._recent.keep(segment, found)
        return found

    def blocks(self, after_seq: int, view: View, until_seq: int | None = None) -> Iterator[Block]:
        """The lines behind a seq, segment by segment.

        Raises:
            LogDamaged: the walk met damage. What was before it has been yielded.
            LogBusy: what was yielded is no longer part of the session; read it again.
        """
        index = after_seq
        end = view.events if until_seq is None else min(until_seq, view.events)
        while index < end:
            segment = view.segments[place_of(view.segments, index)]
            try:
                lines = self.lines(segment)
            except FileNotFoundError:
                fresh = self.look()
                if not fresh.events and fresh.damage is None:
                    return  # Deleted: there is nothing left of what we were reading.
                if fresh.segments is not view.segments:
                    self._check_same([each for each in view.segments if after_seq <= each.last < index], fresh)
                    view, end = fresh, min(end, fresh.events)
                    continue
                data = in_merged(self.disk, self.files, view.segments, segment)
                if data is None:
                    raise damaged(self.files.stream, missing(segment)) from None
                *lines, _ = data.split(b"\n")
            # The digest proves the bytes of a segment; only a line itself can tell whose it is.
            for line in lines[:1]:
                self._record(segment.first + 1, line, segment)
            yield index, lines[index - segment.first :] if index > segment.first else lines, segment
            index = segment.last + 1
        if view.damage is not None and (until_seq is None or end < until_seq):
            raise damaged(self.files.stream, view.damage)

    def _check_same(self, read: Sequence[Segment], fresh: View) -> None:
        """
        Raises:
            LogBusy: the session was deleted or cut back meanwhile, and another one stands in its place.
        """
        if not set(fresh.origin.closed).issuperset(read):
            message = f"The session {self.files.stream!r} was begun again while it was read; read it again"
            raise LogBusy(message, stream=self.files.stream)

    def _record(self, seq: int, line: bytes, segment: Segment) -> Record:
        try:
            return read_line(self.files.stream, seq, line)
        except Damage as damage:
            spot = Spot(damage.code, str(damage), segment.first, f"{EVENTS}/{segment.name}", 0, segment.bytes)
            raise damaged(self.files.stream, spot) from damage


def read_segment(disk: Disk, files: SessionFiles, segment: Segment) -> bytes | Spot:
    """A segment's bytes if they have its digest, else what is wrong.

    Raises:
        FileNotFoundError: its file is gone.
    """
    data = disk.read(files.events / segment.name)
    if len(data) == segment.bytes and digest(data) == segment.sha256:
        return data
    message = (
        f"The segment of events {segment.first} to {segment.last} is not what was closed: "
        f"{len(data)} bytes where there were {segment.bytes}"
    )
    if len(data) == segment.bytes:
        message = f"The segment of events {segment.first} to {segment.last} no longer has its digest"
    return Spot(SEGMENT_DAMAGED, message, segment.first, f"{EVENTS}/{segment.name}", 0, max(len(data), segment.bytes))


def in_merged(disk: Disk, files: SessionFiles, segments: Sequence[Segment], segment: Segment) -> bytes | None:
    """A segment's bytes out of a file that it was merged into, which the manifest no longer tells of; None: nowhere."""
    for name in names_in(disk, files.events):
        span = span_of(name)
        if span is not None and span[0] <= segment.first and segment.last <= span[1]:
            offset = sum(each.bytes for each in segments if span[0] <= each.first < segment.first)
            data = disk.read(files.events / name)[offset : offset + segment.bytes]
            if digest(data) == segment.sha256:
                return data
    return None


def missing(segment: Segment) -> Spot:
    message = f"The segment of events {segment.first} to {segment.last} is gone"
    return Spot(SEGMENT_MISSING, message, segment.first, f"{EVENTS}/{segment.name}", 0, segment.bytes)
