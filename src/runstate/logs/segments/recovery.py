"""What a crash has left is cleared away by the next writer; what damage has left, by `repair` alone.

What may be the last copy of an event is never deleted: a torn line of the manifest, and a whole segment without a line,
are set aside. A crash leaves such; so does a manifest that has lost its end.
"""

from __future__ import annotations

import logging
from contextlib import closing

import msgspec

from runstate.logs.log import Finding
from runstate.logs.segments.damage import Spot, damaged
from runstate.logs.segments.files import EVENTS, MANIFEST, SessionFiles, span_of, temporary_files
from runstate.logs.segments.reading import Reader, Recent, read_segment
from runstate.logs.segments.salvage import is_whole, lines_in
from runstate.logs.segments.snapshots import events_told
from runstate.logs.segments.strays import cut_short, missing_events, strays
from runstate.logs.set_aside import free_number, listed
from runstate.storage.directories import names_in
from runstate.storage.disk import Disk, write_new
from runstate.storage.target_directory import remove_own

logger = logging.getLogger("runstate.logs.segments")
TORN_TAIL = "log.torn_tail"


class Leftovers(msgspec.Struct, frozen=True):
    """What a crash has left of an append: what is set aside, and what is removed."""

    stream: str
    intact: int
    offset: int
    torn: bytes
    """What stands behind the last line of the manifest, and is kept."""
    segments: list[str]
    """Whole segments without a line."""
    removed: list[str]
    number: int

    @property
    def suffix(self) -> str:
        return f".torn-{self.number}"

    def findings(self) -> list[Finding]:
        """What is set aside: the same before it is done and after it."""
        aside = [*([MANIFEST] if self.torn else []), *(f"{EVENTS}/{name}" for name in self.segments)]
        if not aside:
            return []
        aside = [f"{path}{self.suffix}" for path in aside]
        finding = Finding(
            code=TORN_TAIL,
            message=f"An append behind event {self.intact} was never finished. Set aside: {listed(aside)}",
            severity="warning",
            stream=self.stream,
            seq=self.intact + 1,
            details={"offset": self.offset, "bytes": len(self.torn), "setAside": aside, "intact": self.intact},
        )
        return [finding]


def settle(reader: Reader, report: list[Finding]) -> None:
    """Make sure of everything that can be seen, and clear away the rest. The caller holds the session's lock.

    A process that was killed may have left lines that it never flushed, and a retry is about to be told that they are
    stored.

    Raises:
        LogDamaged: the manifest, or a snapshot's session, has lost events; nothing was touched.
        OSError: nothing that was acknowledged is lost.
    """
    disk, files, manifest = reader.disk, reader.files, reader.manifest
    if (spot := cut_short(names_in(disk, files.events), manifest, is_there=bool(reader.version))) is not None:
        raise damaged(files.stream, spot)
    # What a snapshot tells of was durable. A new event in a lost one's place would hide that it is gone.
    if (told := events_told(disk, files)) > manifest.events:
        raise damaged(files.stream, missing_events(manifest, told))
    left = _leftovers(reader)
    if left.torn:
        write_new(disk, files.home / f"{MANIFEST}{left.suffix}", left.torn)
        disk.sync_directory(files.home)
    for name in left.segments:
        disk.rename(files.events / name, files.events / f"{name}{left.suffix}")
    if left.segments:
        disk.sync_directory(files.events)
    for finding in left.findings():
        logger.warning("%s: %s", files.stream, finding.message)
        report.append(finding)
    if reader.version:
        with closing(disk.open(files.manifest)) as file:
            if manifest.torn_bytes:
                file.truncate(manifest.end)
            if not manifest.is_terminated:
                file.append(b"\n")
            file.sync()
        for directory in (files.home, files.home.parent, files.root):
            disk.sync_directory(directory)
    for name in left.removed:
        disk.remove(files.events / name)
    remove_own(files.home, temporary_files, keep={"events/"}, disk=disk)


def would_settle(disk: Disk, files: SessionFiles) -> list[Finding]:
    """What the next writer would set aside."""
    reader = Reader(disk, files, Recent())
    reader.look()
    return _leftovers(reader).findings()


def _leftovers(reader: Reader) -> Leftovers:
    disk, files, manifest = reader.disk, reader.files, reader.manifest
    torn = b""
    if manifest.torn_bytes and manifest.is_terminated:
        with closing(disk.open(files.manifest, read_only=True)) as file:
            torn = file.read_at(manifest.end, manifest.torn_bytes)
    segments, removed = list[str](), list[str]()
    for name, kind in strays(names_in(disk, files.events), manifest):
        if kind in ("unfinished", "merged") and _stands_elsewhere(reader, name):
            (segments if kind == "unfinished" and _is_whole(reader, name) else removed).append(name)
    number = free_number(disk, (files.home, files.events), "torn")
    return Leftovers(files.stream, manifest.events, manifest.end, torn, segments, removed, number)


def _is_whole(reader: Reader, name: str) -> bool:
    """Whether a file holds the events that its name tells."""
    content, span = reader.disk.read(reader.files.events / name), span_of(name) or (0, 0)
    return is_whole(lines_in(reader.files.stream, content), content, *span)


def _stands_elsewhere(reader: Reader, name: str) -> bool:
    """Whether the segments that stand in a file's place are intact. Else it may be the last copy of their events."""
    first, last = span_of(name) or (0, 0)
    for segment in reader.manifest.segments:
        if segment.last < first or last < segment.first:
            continue
        try:
            if isinstance(read_segment(reader.disk, reader.files, segment), Spot):
                return False
        except FileNotFoundError:
            return False
    return True
