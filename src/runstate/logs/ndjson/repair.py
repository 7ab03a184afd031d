"""Repairing a damaged run: what would be done is planned first, told, and then done exactly so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import chain
from typing import Any

import msgspec

from runstate.errors import LogDamaged
from runstate.logs.log import Finding
from runstate.logs.ndjson.files import EVENTS, INDEX, RunFiles
from runstate.logs.ndjson.index import read_index
from runstate.logs.ndjson.quarantine import quarantine_event
from runstate.logs.ndjson.reading import (
    EVENT_CHANGED,
    EVENTS_MISSING,
    View,
    changed_event,
    damage_finding,
    extent,
    missing_events,
)
from runstate.logs.ndjson.recovery import chunks, drop_announcement, find_tail, keep, load, logger, write_chunks
from runstate.logs.ndjson.salvage import Piece, Salvaged, read_piece, salvage_behind
from runstate.logs.set_aside import free_number
from runstate.storage.disk import Disk, File


class RepairPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair does to a damaged run."""

    damage: Finding
    offset: int
    """Where the file is cut; behind it come the pieces that are held."""
    intact: int
    found: Salvaged
    """What a salvage keeps."""
    is_salvage: bool
    had: int
    number: int

    @property
    def held(self) -> list[Piece]:
        return self.found.held if self.is_salvage else []

    @property
    def aside(self) -> list[str]:
        """The files that are set aside."""
        return [f"{EVENTS}.damaged-{self.number}", *([self.salvaged] if self.is_salvage and self.found.behind else [])]

    @property
    def salvaged(self) -> str:
        return f"{EVENTS}.salvaged-{self.number}"

    def finding(self) -> Finding:
        """The damage, what stays, what is lost, and where it is then: the same before the repair and after it."""
        kept, found = self.intact + len(self.held), self.found
        lost = max(0, self.had - kept)
        words, told = [self.damage.message, f"Kept: {kept} events"], dict[str, Any](kept=kept, lost=lost)
        if lost:
            told["lostRange"] = [kept + 1, self.had]
            words.append(f"Lost: {lost} events, seq {kept + 1} to {self.had}")
        if self.is_salvage and found.behind:
            told["provenAside"] = len(found.behind)
            words.append(f"{len(found.behind)} of them are proven, and in {self.salvaged}")
        elif not self.is_salvage and (found.held or found.behind):
            told["salvageable"] = len(found.held) + len(found.behind)
            beside = f", and {len(found.behind)} in a file beside them" if found.behind else ""
            words.append(f"'runstate repair --salvage' keeps {len(found.held)} more{beside}")
        told["setAside"] = self.aside
        words.append(f"Set aside: {', '.join(self.aside)}")
        details = {**self.damage.details, **told}
        return msgspec.structs.replace(self.damage, message=". ".join(words), details=details)


def repair(
    disk: Disk, files: RunFiles, report: list[Finding], *, dry_run: bool, is_salvage: bool = False, quarantine: int = 0
) -> list[Finding]:
    """Cut a damaged run back to what is intact or proven, having kept the whole file. The caller holds the run's lock.

    With `quarantine`: see `quarantine_event`.

    Raises:
        OSError: nothing that is intact was touched.
    """
    if quarantine:
        return quarantine_event(disk, files, quarantine, report, dry_run=dry_run)
    findings: list[Finding] = []
    try:
        with closing(disk.open(files.events, read_only=dry_run)) as file:
            found = _examine(disk, files, file, is_salvage=is_salvage)
            if isinstance(found, RepairPlan):
                findings.append(found.finding())
                if not dry_run:
                    _carry_out(disk, files, file, found)
            else:
                findings += found
    except FileNotFoundError:
        findings += _missing(disk, files, 0, 0, 0)
    if dry_run:
        return findings
    for finding in findings:
        if finding.code in (EVENTS_MISSING, EVENT_CHANGED):
            disk.rename(files.index, files.home / finding.details["setAside"][0])
            disk.sync_directory(files.home)
    held = load(disk, files, [])
    if held.file is not None:
        held.file.close()
    for finding in findings:
        logger.warning("%s: %s", files.stream, finding.message)
    report += findings
    return findings


def _examine(disk: Disk, files: RunFiles, file: File, *, is_salvage: bool) -> RepairPlan | list[Finding]:
    """What to do about damage; where there is none, what a writer finds missing, and what it cuts off."""
    end = extent(disk, files, file)
    view = View(files.stream, file, end)
    keys: set[str] = set()
    previous: bytes | None = None
    try:
        for record in view.records(0):
            keys.add(record.key)
            previous = record.body
    except LogDamaged as error:
        offset, intact = error.details["offset"], error.details["intact"]
        known = read_index(disk, files).end
        found = salvage_behind(files.stream, file, intact, keys, offset, end, previous)
        return RepairPlan(
            damage=damage_finding(error),
            offset=offset,
            intact=intact,
            found=found,
            is_salvage=is_salvage,
            had=max(found.had, 0 if known is None else known.seq),
            number=free_number(disk, (files.home,), "damaged", "salvaged"),
        )
    seq, offset = (0, 0) if view.last is None else (view.last.seq, view.last.offset)
    tail = find_tail(disk, files, file, seq, offset, previous)
    index = read_index(disk, files)
    if not index.covers(file, offset) and index.end is not None:
        return [_acknowledged(disk, files, changed_event(files.stream, index.end.seq), seq, seq), *tail.findings()]
    return [*_missing(disk, files, seq, offset, tail.end), *tail.findings()]


def _missing(disk: Disk, files: RunFiles, seq: int, offset: int, end: int) -> list[Finding]:
    """The events that the index knows and the file has lost."""
    index = read_index(disk, files).end
    if index is None or index.offset <= end:
        return []
    return [_acknowledged(disk, files, missing_events(files.stream, index.seq, seq, offset), seq, index.seq)]


def _acknowledged(disk: Disk, files: RunFiles, error: LogDamaged, kept: int, had: int) -> Finding:
    """What only the index knows. Setting the index aside acknowledges it: the events that are there stay."""
    finding = damage_finding(error)
    aside = f"{INDEX}.damaged-{free_number(disk, (files.home,), 'damaged', 'salvaged')}"
    told: dict[str, Any] = {"kept": kept, "lost": had - kept, "setAside": [aside]}
    words = [finding.message, f"Kept: {kept} events"]
    if had > kept:
        told["lostRange"] = [kept + 1, had]
        words.append(f"Lost: {had - kept} events, seq {kept + 1} to {had}")
    words.append(f"Set aside: {aside}")
    return msgspec.structs.replace(finding, message=". ".join(words), details={**finding.details, **told})


def _carry_out(disk: Disk, files: RunFiles, file: File, plan: RepairPlan) -> None:
    keep(disk, file, 0, files.home / plan.aside[0])
    if plan.salvaged in plan.aside:
        write_chunks(disk, files.home / plan.salvaged, _lines(file, plan.found.behind))
        disk.sync_directory(files.home)
    # The index knows checksums of what is cut off now. It is rebuilt; a mistaken one would accuse the rest.
    with suppress(FileNotFoundError):
        disk.remove(files.index)
    drop_announcement(disk, files)
    if not plan.held:
        file.truncate(plan.offset)
        file.sync()
        return
    temp = disk.temp_name(files.events)
    write_chunks(disk, temp, chain(chunks(file, 0, plan.offset), _lines(file, plan.held)))
    try:
        disk.rename(temp, files.events)
    except BaseException:
        with suppress(OSError):
            disk.remove(temp)
        raise
    disk.sync_directory(files.home)


def _lines(file: File, pieces: list[Piece]) -> Iterator[bytes]:
    return (read_piece(file, piece) + b"\n" for piece in pieces)
