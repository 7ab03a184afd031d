"""verify, repair: is everything still there, and still what it was? And if not, what can be kept?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Annotated

import typer

from runstate.cli.options import AsJson, ModelName, Url
from runstate.cli.output import counted, words, write_json, write_line
from runstate.cli.progress_display import track
from runstate.cli.quarantine import quarantine_event
from runstate.cli.seals import KeyFile, SealsFile, read_seals_for, seal_findings
from runstate.cli.stream_stores import AnyStore, StreamStores, open_streams
from runstate.errors import LogDamaged, RunstateError, StreamNotFound, Truncated, UnknownModel, shown_url
from runstate.logs.log import Capability, Finding
from runstate.logs.stream_blobs import BlobCheck
from runstate.logs.unfoldable import find_impossible

Salvage = Annotated[
    bool, typer.Option("--salvage", help="Also keep events behind the damage that can still be proven.")
]
Quarantine = Annotated[
    int | None,
    typer.Option(
        "--quarantine",
        metavar="SEQ",
        min=1,
        help="Take this event of STREAM out, and set it aside. It must be one that cannot be folded, is impossible "
        "where it stands, or lacks a blob.",
        show_default=False,
    ),
]


def verify(
    url: Url,
    stream: Annotated[
        str | None, typer.Argument(help="One stream; default: the whole log.", show_default=False)
    ] = None,
    model: ModelName = None,
    as_json: AsJson = False,
    seals_file: SealsFile = None,
    key_file: KeyFile = None,
) -> None:
    """Look for damage: missing, changed or foreign events, snapshots and blobs, and events that cannot be folded.

    Exit code 1 when there is some, or a stream could not be checked.
    """
    damage = unread = warnings = differing = 0
    sealed = read_seals_for(stream, seals_file, key_file)
    with open_streams(url, model) as stores:
        log = stores.log
        _check_stream(stores, stream, is_needed=sealed is None)  # A sealed stream that is gone is a finding.
        findings = chain(_findings(stores, stream), () if sealed is None else seal_findings(log, stream, *sealed))
        for finding in track(findings, "verifying"):
            damage += finding.severity == "damage" and finding.code != UnknownModel.code
            unread += finding.code == UnknownModel.code
            warnings += finding.severity == "warning"
            differing += finding.severity == "damage" and finding.code.startswith("seal.")
            write_finding(finding, as_json, url)
        is_empty = not log.streams(limit=1)
        stores.report_left_out()
    if damage or unread or warnings:
        not_folded = f"{counted(unread, 'stream')} not checked, " if unread else ""
        words.print(f"{damage} damaged, {not_folded}{counted(warnings, 'warning')}")
    else:
        words.print("nothing to verify: the log has no streams" if is_empty else "intact")
    if sealed is not None:
        count = len(sealed[0])
        words.print(f"{count - differing} of {counted(count, 'sealed stream')} unchanged since sealing")
    raise typer.Exit(1 if damage or unread else 0)


def repair(
    url: Url,
    stream: Annotated[
        str | None, typer.Argument(help="One stream; default: every damaged one.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    salvage: Salvage = False,
    model: ModelName = None,
    as_json: AsJson = False,
    quarantine: Quarantine = None,
) -> None:
    """Make damaged streams usable again: intact events stay, damaged files are set aside, snapshots are rebuilt.

    Exit code 1 if damage remains that repair cannot help with.
    """
    done = left = 0
    if quarantine is not None and (stream is None or salvage):
        raise typer.BadParameter("--quarantine SEQ needs the STREAM that holds the event, and goes without --salvage")
    with open_streams(url, model) as stores:
        if quarantine is not None and stream is not None:
            for finding in quarantine_event(stores, stream, quarantine, dry_run):
                write_finding(finding, as_json, url)
            words.print(f"event {quarantine} {'would be' if dry_run else 'was'} quarantined")
            return
        _check_stream(stores, stream, is_needed=False)  # A stream whose head is gone may be repaired.
        damaged: dict[str | None, list[Finding]] = {}
        for finding in track(_findings(stores, stream), "verifying"):
            if finding.severity == "damage":
                damaged.setdefault(finding.stream, []).append(finding)
        _check_stream(stores, stream, is_needed=not damaged)
        if salvage:  # An earlier recovery may have set events aside, and left the stream intact.
            names = [stream] if stream is not None else (head.stream for head in stores.log.heads(versions=False))
            for each in names:
                damaged.setdefault(each, [])
        for name, findings in sorted(damaged.items(), key=lambda item: item[0] or ""):
            repaired = [] if name is None else _repair_stream(stores, name, findings, dry_run, salvage)
            done += len(repaired)
            left += bool(findings) and not repaired
            for finding in repaired or findings:
                write_finding(finding, as_json, url)
    if done:
        words.print(f"{counted(done, 'repair')} {'to be made' if dry_run else 'made'}")
    if left:
        words.print("Some damage cannot be repaired here. Restore the log from a backup, or copy its intact streams")
    if not done and not left:
        words.print("nothing to repair")
    raise typer.Exit(1 if left else 0)


def write_finding(finding: Finding, as_json: bool, url: str) -> None:
    """One finding as a line."""
    if as_json:
        write_json(finding)
        return
    where = ":".join(str(part) for part in (finding.stream, finding.seq) if part is not None)
    write_line(f"{where or shown_url(url)}: {finding.code}: {finding.message}".encode())


def _findings(stores: StreamStores, stream: str | None) -> Iterator[Finding]:
    """What the log finds, then what the models find in the streams that are intact: blobs that are gone, events that
    cannot be folded, or are impossible where they stand.

    Raises:
        ModelMismatch: there are streams, and none of the given model.
    """
    damaged, folded, blobs = set(), 0, BlobCheck(stores.log)
    for finding in stores.log.verify(stream):
        if finding.severity == "damage":
            damaged.add(finding.stream)
        blobs.note(finding)
        yield finding
    names = [stream] if stream is not None else (head.stream for head in stores.log.heads(versions=False))
    for name in names:
        if name in damaged:
            continue
        try:
            info = stores.find(name)
            if not stores.is_chosen(info):
                continue
            folded += 1
            store = stores.of(info)
            yield from _fold(store, name)
            yield from blobs.findings(name, store.model)
        except StreamNotFound:
            continue  # Deleted since it was listed, or its first append was never finished.
        except RunstateError as error:
            yield Finding(code=error.code, message=str(error), stream=name, seq=error.details.get("seq"))
    if not folded:
        stores.refuse_others()


def _fold(store: AnyStore, stream: str) -> list[Finding]:
    """Fold a stream from its first event on, or from its snapshot where the log was compacted.

    Raises:
        RunstateError: it cannot be folded.
    """
    log, model, snapshots = store.log, store.model, store.snapshots
    try:
        return find_impossible(log, model, stream, model.initial(stream), 0)
    except Truncated:
        stored = snapshots.stored(stream)
        if stored is None or (state := snapshots.load(stream, stored)) is None:
            raise
        return find_impossible(log, model, stream, state, stored.seq)


def _repair_stream(
    stores: StreamStores, name: str, findings: list[Finding], dry_run: bool, salvage: bool
) -> list[Finding]:
    """Repair one stream. Returns what was done, or would be; nothing if there is no way."""
    repaired: list[Finding] = []
    if Capability.REPAIR in stores.log.capabilities:
        # What cannot even be read is among the findings, and stays there.
        with suppress(StreamNotFound, LogDamaged):
            repaired += stores.log.repair(name, dry_run=dry_run, salvage=salvage)
    if repaired and not dry_run and Capability.SNAPSHOTS in stores.log.capabilities:
        stores.rebuild_snapshot(name)
    if findings and all(finding.code.startswith("snapshot.") for finding in findings):
        message = "The snapshot is rebuilt from the log" if dry_run else "The snapshot was rebuilt from the log"
        if not dry_run:
            stores.of(stores.find(name)).rebuild_snapshot(name)
        repaired.append(Finding(code="snapshot.rebuilt", message=message, stream=name))
    return repaired


def _check_stream(stores: StreamStores, stream: str | None, *, is_needed: bool = True) -> None:
    """
    Raises:
        StreamNotFound: there is no such stream, and it is needed.
        ModelMismatch: it records another model than the given one.
    """
    try:
        info = None if stream is None else stores.log.stream(stream)
    except LogDamaged:  # It is there, and the findings name it.
        return
    if info is not None:
        stores.model_of(info)
    elif stream is not None and is_needed:
        raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
