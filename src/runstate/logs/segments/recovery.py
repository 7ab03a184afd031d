"""What a crash has left is cleared away by the next writer; what damage has left, by `repair` alone."""

from __future__ import annotations

import logging
from contextlib import closing

from runstate.logs.directories import names_in
from runstate.logs.disk import Disk, replace_durably, write_new
from runstate.logs.log import Finding
from runstate.logs.segments.damage import Spot, damage_finding, damaged
from runstate.logs.segments.files import MANIFEST, SessionFiles, span_of, temporary_files
from runstate.logs.segments.manifest import Manifest
from runstate.logs.segments.reading import Reader, in_merged, read_segment
from runstate.logs.segments.snapshots import read_snapshot, snapshot_models
from runstate.logs.segments.strays import cut_short, strays
from runstate.logs.target_directory import remove_own

logger = logging.getLogger("runstate.logs.segments")
TORN_TAIL = "log.torn_tail"


# --- after a crash -------------------------------------------------------------------------------------------


def settle(reader: Reader, report: list[Finding]) -> None:
    """Make sure of everything that can be seen, and clear away the rest. The caller holds the session's lock.

    A process that was killed may have left lines that it never flushed, and a retry is about to be told that they are
    stored.

    Raises:
        LogDamaged: the manifest has lost lines; nothing was touched.
        OSError: nothing that was acknowledged is lost.
    """
    disk, files, manifest = reader.disk, reader.files, reader.manifest
    if (spot := cut_short(names_in(disk, files.events), manifest)) is not None:
        raise damaged(files.stream, spot)
    if reader.version:
        with closing(disk.open(files.manifest)) as file:
            if manifest.torn_bytes:
                if manifest.is_terminated:
                    report.append(_keep_torn(disk, files, manifest, file.read_at(manifest.end, manifest.torn_bytes)))
                file.truncate(manifest.end)
            if not manifest.is_terminated:
                file.append(b"\n")
            file.sync()
        for directory in (files.home, files.home.parent, files.root):
            disk.sync_directory(directory)
    _remove_strays(reader)


def _keep_torn(disk: Disk, files: SessionFiles, manifest: Manifest, tail: bytes) -> Finding:
    evidence = files.home / f"{MANIFEST}.torn-{_free_number(disk, files, 'torn')}"
    write_new(disk, evidence, tail)
    disk.sync_directory(files.home)
    finding = Finding(
        code=TORN_TAIL,
        message=f"{len(tail)} bytes of an unfinished append were cut off and are kept in {evidence.name}",
        severity="warning",
        stream=files.stream,
        seq=manifest.events + 1,
        details={"offset": manifest.end, "bytes": len(tail), "evidence": str(evidence), "intact": manifest.events},
    )
    logger.warning("%s: %s", files.stream, finding.message)
    return finding


def _remove_strays(reader: Reader) -> None:
    disk, files, manifest = reader.disk, reader.files, reader.manifest
    for name, kind in strays(names_in(disk, files.events), manifest):
        if kind in ("unfinished", "merged") and _stands_elsewhere(reader, name):
            disk.remove(files.events / name)
    remove_own(files.home, temporary_files, keep={"events/"}, disk=disk)


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


# --- after damage --------------------------------------------------------------------------------------------


def cut_back(disk: Disk, files: SessionFiles, manifest: Manifest, spot: Spot) -> Finding:
    """Keep what is damaged and all behind it as evidence, and go on from the last segment before it.

    The caller holds the session's lock. Whatever fails, the session is as damaged as before, or repaired.
    """
    kept = [segment for segment in manifest.segments if segment.last < spot.intact]
    suffix = f".damaged-{_free_number(disk, files, 'damaged')}"
    finding = damage_finding(files.stream, spot)
    evidence = files.home / f"{MANIFEST}{suffix}"
    if disk.exists(files.manifest):
        write_new(disk, evidence, disk.read(files.manifest))
        disk.sync_directory(files.home)
        finding.details["evidence"] = str(evidence)
    # What is kept stands in files of its own, not in one that a damaged line may have told of.
    for segment in kept:
        if not disk.exists(files.events / segment.name):
            data = in_merged(disk, files, kept, segment)
            if data is not None:
                replace_durably(disk, files.events / segment.name, data)
    # Segments next: were the manifest cut first, the one behind its end would pass for an append that never happened.
    standing = {segment.name for segment in kept}
    for name in names_in(disk, files.events):
        if span_of(name) is not None and name not in standing:
            disk.rename(files.events / name, files.events / f"{name}{suffix}")
    if disk.exists(files.events):
        disk.sync_directory(files.events)
    _remove_snapshots_behind(disk, files, kept[-1].last + 1 if kept else 0)
    pins = [pin for pin in manifest.pins.values() if kept and pin.index <= kept[-1].last]
    replace_durably(disk, files.manifest, Manifest().written([*kept, *pins]))
    logger.warning("%s: %s. What was kept: *%s", files.stream, finding.message, suffix)
    return finding


def _remove_snapshots_behind(disk: Disk, files: SessionFiles, events: int) -> None:
    """Snapshots of events that are cut off must not be believed when others have come in their place."""
    for model in snapshot_models(disk, files):
        found = read_snapshot(disk, files, model)
        if found is None or found.events > events:
            disk.remove(files.snapshot(model))
    disk.sync_directory(files.home)


def _free_number(disk: Disk, files: SessionFiles, word: str) -> int:
    """A number that no evidence in this session has, so that none is overwritten."""
    taken = {name.rpartition(f".{word}-")[2] for path in (files.home, files.events) for name in names_in(disk, path)}
    return next(number for number in range(1, len(taken) + 2) if str(number) not in taken)
