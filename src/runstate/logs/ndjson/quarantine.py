"""Quarantine in a run directory: the seq of an event is the number of its line, so the run ends before the event.

The event and those behind it are set aside in one file, as records: `runstate append` takes them back.
"""

from __future__ import annotations

from contextlib import closing, suppress

from runstate.logs.log import Finding
from runstate.logs.ndjson.files import EVENTS, RunFiles, snapshot_names
from runstate.logs.ndjson.index import read_index
from runstate.logs.ndjson.reading import View, extent
from runstate.logs.ndjson.recovery import drop_announcement, load, logger, write_chunks
from runstate.logs.ndjson.verify import verify_run
from runstate.logs.quarantine import absent_event, aside_lines, check_intact, cut_finding
from runstate.logs.set_aside import free_number
from runstate.storage.disk import Disk


def quarantine_event(
    disk: Disk, files: RunFiles, seq: int, report: list[Finding], *, dry_run: bool = False
) -> list[Finding]:
    """End a run before an event. The caller holds the run's lock, unless it is a dry run.

    Raises:
        EventNotFound: there is no such event.
        LogDamaged: the run is damaged; nothing was touched.
        OSError: every event is in the run, or in the file that was set aside, or in both.
    """
    if not dry_run:
        _recover(disk, files, report)
    with closing(disk.open(files.events, read_only=dry_run)) as file:
        view = View(files.stream, file, extent(disk, files, file))
        check_intact(files.stream, verify_run(disk, files, read_index(disk, files), view))
        last_seq = 0 if view.last is None else view.last.seq
        mark = view.mark_at(seq) if 0 < seq <= last_seq else None
        if mark is None:
            raise absent_event(files.stream, seq)
        aside = f"{EVENTS}.quarantined-{free_number(disk, (files.home,), 'quarantined')}"
        finding = cut_finding(files.stream, seq, last_seq, [aside])
        if dry_run:
            return [finding]
        write_chunks(disk, files.home / aside, (aside_lines([record]) for record in view.records(seq - 1)))
        disk.sync_directory(files.home)
        # Before the cut: the index would call it damage, and a snapshot is of events that are about to go.
        for path in (files.index, *(files.home / name for name in snapshot_names(disk, files))):
            with suppress(FileNotFoundError):
                disk.remove(path)
        disk.sync_directory(files.home)
        drop_announcement(disk, files)
        file.truncate(mark.line_offset)
        file.sync()
    _recover(disk, files, report)
    logger.warning("%s: %s", files.stream, finding.message)
    report.append(finding)
    return [finding]


def _recover(disk: Disk, files: RunFiles, report: list[Finding]) -> None:
    """Cut off what a crash has left, and make sure of the rest."""
    held = load(disk, files, report)
    if held.file is not None:
        held.file.close()
