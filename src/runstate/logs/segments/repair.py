"""Repairing a damaged session: what would be done is planned first, told, and then done exactly so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from runstate.logs.blob_refs import blob_refs
from runstate.logs.log import BlobRef, Finding
from runstate.logs.segments.damage import Spot, damage_finding
from runstate.logs.segments.files import EVENTS, MANIFEST, SessionFiles, span_of
from runstate.logs.segments.lines import body_of, locate_line
from runstate.logs.segments.manifest import Manifest, Pin, Segment
from runstate.logs.segments.reading import in_merged
from runstate.logs.segments.salvage import Evidence, Salvage, salvage
from runstate.logs.segments.snapshots import events_told, read_snapshot, snapshot_models
from runstate.logs.segments.strays import missing_events
from runstate.logs.segments.verify import examine
from runstate.logs.set_aside import free_number, listed
from runstate.storage.directories import names_in
from runstate.storage.disk import Disk, replace_durably, write_new

logger = logging.getLogger("runstate.logs.segments")


class RepairPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair does to a damaged session."""

    stream: str
    spot: Spot
    segments: list[Segment]
    """The new manifest's."""
    pins: list[Pin]
    written: dict[str, bytes]
    """New files of segments, by name."""
    aside: list[str]
    """Files that are set aside, relative to the session's directory: each under its name and this suffix."""
    number: int
    had: int
    """How many events the session had, as far as anything tells."""
    unproven: list[tuple[int, int]] = []
    behind: list[tuple[int, int]] = []
    salvageable: int = 0
    """How many more events a salvage keeps."""
    guessable: int = 0
    """How many of them without proof."""

    @property
    def events(self) -> int:
        return self.segments[-1].last + 1 if self.segments else 0

    @property
    def suffix(self) -> str:
        return f".damaged-{self.number}"

    @property
    def note(self) -> str:
        """The file that remembers what was put back without a proof."""
        return f"{MANIFEST}.unproven-{self.number}"

    def finding(self) -> Finding:
        """The damage, what stays, what is lost, and where it is then: the same before the repair and after it."""
        kept, had = self.events, max(self.had, self.events)
        aside = [f"{path}{self.suffix}" for path in self.aside] + ([self.note] if self.unproven else [])
        words = [self.spot.message, f"Kept: {_counted(kept)}"]
        told: dict[str, Any] = {"kept": kept, "lost": had - kept, "setAside": aside}
        if had > kept:
            words.append(f"Lost: {_counted(had - kept)}, {_spans([(kept + 1, had)])}")
            told["lostRange"] = [kept + 1, had]
        if self.salvageable:
            told["salvageable"] = self.salvageable
            without = "" if not self.guessable else f", {self.guessable} of them without proof"
            words.append(f"'runstate repair --salvage' keeps {self.salvageable} more{without}")
        if self.unproven:
            words.append(
                f"Kept without proof: {_spans(self.unproven)}, which are in their place and have no digest left"
            )
            told["unproven"] = self.unproven
        if self.behind:
            words.append(f"Proven behind a gap, and readable in the files that are set aside: {_spans(self.behind)}")
            told["provenAside"] = self.behind
        if aside:
            words.append(f"Set aside: {listed(aside)}")
        finding = damage_finding(self.stream, self.spot)
        return msgspec.structs.replace(finding, message=". ".join(words), details={**finding.details, **told})


def plan_repair(
    disk: Disk, files: SessionFiles, has_blob: Callable[[BlobRef], bool], *, is_salvage: bool
) -> RepairPlan | None:
    """What a repair would do; None where nothing is damaged that it can help with.

    Raises:
        LogBusy: the session was deleted and begun again meanwhile; look again.
    """
    manifest, spot = examine(disk, files)
    told = events_told(disk, files)
    if spot is None and told > manifest.events:
        spot = missing_events(manifest, told)
    if spot is None:
        return None
    evidence = Evidence(disk, files)
    found = salvage(evidence, told)
    had = max(evidence.events_named, told, manifest.events)
    number = free_number(disk, (files.home, files.events), "damaged", "unproven")
    if is_salvage:
        pins = _pins(files.stream, evidence, found, has_blob)
        return RepairPlan(
            stream=files.stream, spot=spot, segments=found.segments, pins=pins, written=found.written,
            aside=files_aside(disk, files, found.segments, found.written), number=number, had=had,
            unproven=found.unproven, behind=found.behind,
        )  # fmt: skip
    kept = [segment for segment in manifest.segments if segment.last < spot.intact]
    events = kept[-1].last + 1 if kept else 0
    written = written_apart(disk, files, kept)
    guessable = sum(index not in evidence.proven for index in range(events, found.events))
    return RepairPlan(
        stream=files.stream, spot=spot, segments=kept,
        pins=[pin for pin in manifest.pins.values() if pin.index < events], written=written,
        aside=files_aside(disk, files, kept, written), number=number, had=had,
        salvageable=max(0, found.events - events), guessable=guessable,
    )  # fmt: skip


def written_apart(disk: Disk, files: SessionFiles, kept: list[Segment]) -> dict[str, bytes]:
    """New files, by name. What is kept is written to new files, never to one that a damaged line may have named."""
    written = {}
    for segment in kept:
        if not disk.exists(files.events / segment.name):
            data = in_merged(disk, files, kept, segment)
            if data is not None:
                written[segment.name] = data
    return written


def carry_out(disk: Disk, files: SessionFiles, plan: RepairPlan) -> None:
    """Do what is planned. The caller holds the session's lock.

    Whatever fails, the session is as damaged as before, or repaired; all evidence is still there.
    """
    if MANIFEST in plan.aside:
        write_new(disk, files.home / f"{MANIFEST}{plan.suffix}", disk.read(files.manifest))
    if plan.unproven:
        write_new(disk, files.home / plan.note, msgspec.json.encode({"unprovenSeqs": plan.unproven}) + b"\n")
    disk.sync_directory(files.home)
    for name, data in plan.written.items():
        write_segment(disk, files, name, data, plan.suffix)
    # Segments next: were the manifest cut first, the one behind its end would pass for an append that never happened.
    for path in plan.aside:
        name = path.removeprefix(f"{EVENTS}/")
        if path != MANIFEST and name not in plan.written:
            disk.rename(files.events / name, files.events / f"{name}{plan.suffix}")
    if disk.exists(files.events):
        disk.sync_directory(files.events)
    remove_snapshots_behind(disk, files, plan.events)
    replace_durably(disk, files.manifest, Manifest().written([*plan.segments, *plan.pins]))
    logger.warning("%s: %s", files.stream, plan.finding().message)


def write_segment(disk: Disk, files: SessionFiles, name: str, data: bytes, suffix: str) -> None:
    """Write a segment's file. One of that name is set aside, and its place is taken."""
    if disk.exists(files.events / name):
        write_new(disk, files.events / f"{name}{suffix}", disk.read(files.events / name))
    replace_durably(disk, files.events / name, data)


def files_aside(disk: Disk, files: SessionFiles, kept: list[Segment], written: dict[str, bytes]) -> list[str]:
    standing = {segment.name for segment in kept} - written.keys()
    segments = [name for name in names_in(disk, files.events) if span_of(name) is not None and name not in standing]
    return [*([MANIFEST] if disk.exists(files.manifest) else []), *(f"{EVENTS}/{name}" for name in segments)]


def _pins(stream: str, evidence: Evidence, found: Salvage, has_blob: Callable[[BlobRef], bool]) -> list[Pin]:
    """What the events refer to and the log holds, or the manifest has once pinned: such a blob is missing then."""
    pins: dict[BlobRef, Pin] = {}
    for index in range(found.events):
        line = evidence.lines[index]
        for ref in blob_refs(body_of(line)):
            is_pinned = has_blob(ref) or ref in evidence.remains.pins
            if ref not in pins and is_pinned and (record := locate_line(stream, line)) is not None:
                pins[ref] = Pin(index, ref, record.event_id)
    return list(pins.values())


def remove_snapshots_behind(disk: Disk, files: SessionFiles, events: int) -> None:
    """Snapshots of events that are cut off must not be believed when others have come in their place."""
    for model in snapshot_models(disk, files):
        found = read_snapshot(disk, files, model)
        if found is None or found.events > events:
            disk.remove(files.snapshot(model))
    disk.sync_directory(files.home)


def _spans(ranges: list[tuple[int, int]]) -> str:
    return ", ".join(f"seq {first}" if first == last else f"seq {first} to {last}" for first, last in ranges)


def _counted(events: int) -> str:
    return f"{events} event{'' if events == 1 else 's'}"
