"""Quarantine in a session: events are numbered without a gap, so the session ends before the event.

The event and those behind it are set aside in one file, as records: `runstate append` takes them back. Their segments,
and the manifest as it was, are set aside as by a repair.
"""

from __future__ import annotations

from collections.abc import Callable

from runstate.logs.log import BlobRef, Finding, Record
from runstate.logs.quarantine import QUARANTINED, absent_event, aside_lines, check_intact, cut_finding
from runstate.logs.segments.damage import Spot
from runstate.logs.segments.files import EVENTS, MANIFEST, SessionFiles, segment_name
from runstate.logs.segments.lines import read_line
from runstate.logs.segments.manifest import Manifest, Segment
from runstate.logs.segments.repair import (
    RepairPlan,
    carry_out,
    files_aside,
    logger,
    plan_repair,
    remove_snapshots_behind,
    write_segment,
    written_apart,
)
from runstate.logs.segments.salvage import joined
from runstate.logs.segments.verify import examine, verify_session
from runstate.logs.set_aside import free_number
from runstate.models.canonical import digest
from runstate.storage.disk import Disk, replace_durably, write_new


class QuarantinePlan(RepairPlan, frozen=True, kw_only=True):
    """What a quarantine does to an intact session."""

    records: list[Record]
    """The event, and those behind it."""

    @property
    def file(self) -> str:
        return f"{MANIFEST}.quarantined-{self.number}"

    def finding(self) -> Finding:
        aside = [self.file, *(f"{path}{self.suffix}" for path in self.aside)]
        return cut_finding(self.stream, self.records[0].seq, self.had, aside)


def plan_quarantine(disk: Disk, files: SessionFiles, has_blob: Callable[[BlobRef], bool], seq: int) -> QuarantinePlan:
    """What a quarantine would do.

    Raises:
        EventNotFound: there is no such event.
        LogDamaged: the session is damaged.
        LogBusy: it was deleted and begun again meanwhile; look again.
    """
    check_intact(files.stream, verify_session(disk, files, has_blob))
    lines: list[bytes] = []

    def note(_: Manifest, __: int, found: list[bytes]) -> None:
        lines.extend(found)

    manifest, _ = examine(disk, files, note)
    if not 0 < seq <= manifest.events:
        raise absent_event(files.stream, seq)
    events = seq - 1
    kept = [segment for segment in manifest.segments if segment.last < events]
    written = written_apart(disk, files, kept)
    first = kept[-1].last + 1 if kept else 0
    if first < events:  # The event stands in the middle of its segment.
        data = joined(lines[first:events])
        written[segment_name(first, events - 1)] = data
        kept.append(Segment(first, events - 1, digest(data), len(data)))
    return QuarantinePlan(
        stream=files.stream,
        spot=Spot(QUARANTINED, f"Event {seq} is quarantined", events, EVENTS),
        segments=kept,
        pins=[pin for pin in manifest.pins.values() if pin.index < events],
        written=written,
        aside=files_aside(disk, files, kept, written),
        number=free_number(disk, (files.home, files.events), "damaged", "unproven", "quarantined"),
        had=manifest.events,
        records=[read_line(files.stream, number, line) for number, line in enumerate(lines[events:], seq)],
    )


def plan_change(
    disk: Disk, files: SessionFiles, has_blob: Callable[[BlobRef], bool], *, is_salvage: bool, quarantine: int
) -> RepairPlan | None:
    """What a repair would do, or a quarantine. Raises what they raise."""
    if quarantine:
        return plan_quarantine(disk, files, has_blob, quarantine)
    return plan_repair(disk, files, has_blob, is_salvage=is_salvage)


def change_session(disk: Disk, files: SessionFiles, plan: RepairPlan | None) -> list[Finding]:
    """Do what is planned, and report it. The caller holds the session's lock."""
    if isinstance(plan, QuarantinePlan):
        _carry_out(disk, files, plan)
    elif plan is not None:
        carry_out(disk, files, plan)
    return [] if plan is None else [plan.finding()]


def _carry_out(disk: Disk, files: SessionFiles, plan: QuarantinePlan) -> None:
    """The manifest decides: before it is replaced the session is as it was. Segments are set aside behind that: what an
    interruption leaves of them is damage, of which any repair makes the session without the event."""
    write_new(disk, files.home / plan.file, aside_lines(plan.records))
    write_new(disk, files.home / f"{MANIFEST}{plan.suffix}", disk.read(files.manifest))
    disk.sync_directory(files.home)
    for name, data in plan.written.items():
        write_segment(disk, files, name, data, plan.suffix)
    remove_snapshots_behind(disk, files, plan.events)
    replace_durably(disk, files.manifest, Manifest().written([*plan.segments, *plan.pins]))
    for path in plan.aside:
        name = path.removeprefix(f"{EVENTS}/")
        if path != MANIFEST and name not in plan.written:
            disk.rename(files.events / name, files.events / f"{name}{plan.suffix}")
    disk.sync_directory(files.events)
    logger.warning("%s: %s", files.stream, plan.finding().message)
