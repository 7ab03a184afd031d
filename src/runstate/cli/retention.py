"""archive, restore: finished runs out of a log into files, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from runstate.cli.options import AsJson, ModelName, Url, parse_age
from runstate.cli.output import words, write_json
from runstate.cli.progress_display import track
from runstate.cli.stream_stores import StreamStores, open_streams
from runstate.cli.tables import write_table
from runstate.errors import LogNotFound, StreamNotFound, UnknownModel
from runstate.logs.archive.directory import ArchiveDirectory
from runstate.logs.archive.log import ArchiveLog
from runstate.logs.log import EventLog, StreamInfo
from runstate.logs.pairing import check_model_is_used, model_for
from runstate.logs.registry import open_log
from runstate.logs.stream_models import check_model
from runstate.models.model import AnyModel
from runstate.models.registry import resolve_model
from runstate.retention import Archiver, Archiving, RunOutcome, check_archivable, infos
from runstate.retention import restore as restored

Streams = Annotated[
    list[str] | None,
    typer.Option("--stream", help="This run alone. May be repeated. Default: all.", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; only say what would be done.")]
OlderThan = Annotated[
    str, typer.Option("--older-than", help="Only runs whose last event was stored so long ago: 30d, 12h, 45m, 0s.")
]
To = Annotated[
    Path, typer.Option("--to", help="The archive's directory: new, empty, or an archive.", show_default=False)
]
Keep = Annotated[bool, typer.Option("--keep", help="Leave the runs in the log too.")]
DiscardFiles = Annotated[
    bool,
    typer.Option("--discard-files", help="Delete the directories of runs even if they hold artifacts or other files."),
]


def archive(
    url: Url,
    to: To,
    older_than: OlderThan = "30d",
    stream: Streams = None,
    keep: Keep = False,
    discard_files: DiscardFiles = False,
    dry_run: DryRun = False,
    model: ModelName = None,
    as_json: AsJson = False,
) -> None:
    """Move finished runs to an archive: a run is deleted once its copy is safe. Exit code 1 if one was refused.

    Interrupted, simply run it again. Runs that are not over, or not old enough, stay.
    """
    archiving = Archiving(before=parse_age(older_than), keep=keep, discard_files=discard_files, dry_run=dry_run)
    directory = ArchiveDirectory(to)
    with ExitStack() as stack:
        streams = stack.enter_context(open_streams(url, model))
        log = streams.log
        check_archivable(log, keep)
        found = _model_to_archive(url, streams, stream)
        directory.check(found.name)
        if not dry_run:
            directory.prepare(found.name)
            stack.enter_context(directory.alone())
        archiver = Archiver(log, found, directory, archiving)
        told = _tell(archiver.run(_to_archive(log, archiver, stream)), as_json, "archiving", dry_run)
    for reason, count in archiver.passed_over.items():
        words.print(f"{count} left: {_passed_over[reason].format(model=found.name)}")
    raise typer.Exit(1 if told["refused"] else 0)


def restore(
    directory: Annotated[Path, typer.Argument(help="The archive's directory.", show_default=False)],
    url: Url,
    stream: Streams = None,
    dry_run: DryRun = False,
    model: ModelName = None,
    as_json: AsJson = False,
) -> None:
    """Put archived runs back into a log, just as they were. The archive keeps them too. Exit code 1 if one was refused.

    What the log holds already is passed over; interrupted, simply run it again.
    """
    with ExitStack() as stack:
        if ":" in directory.name and not directory.exists():
            raise typer.BadParameter(f"{directory} is a log; name the archive's directory first, then the log")
        archived = stack.enter_context(ArchiveLog(directory))
        try:
            found = resolve_model(archived.info.model, model, f"The archive {directory}")
        except UnknownModel:
            if model is not None:
                raise
            found = None  # Events need no model to be restored, only their snapshots do.
        wanted = list(_archived(archived, stream)) if stream else infos(archived)
        log: EventLog | None = None
        try:
            log = stack.enter_context(open_log(url, create=not dry_run))
        except LogNotFound:
            if not dry_run:
                raise
        told = _tell(restored(archived, log, found, wanted, dry_run=dry_run), as_json, "restoring", dry_run)
    raise typer.Exit(1 if told["refused"] else 0)


_passed_over = {"recent": "not old enough", "unfinished": "not over", "other_model": "of another model than {model!r}"}
_columns = ("stream", "outcome", "events", "bytes", "")


def _tell(outcomes: Iterator[RunOutcome], as_json: bool, doing: str, dry_run: bool) -> Counter[str]:
    """Print what became of each run, also of those before a failure; how many there were of each outcome."""
    told, events, rows = Counter[str](), 0, list[RunOutcome]()
    try:
        for each in track(outcomes, doing):
            told[each.outcome] += 1
            events += each.events
            if as_json:
                write_json(each)
            else:
                rows.append(each)
    finally:
        if rows:
            write_table(_columns, ([each.stream, each.outcome, each.events, each.bytes, each.reason] for each in rows))
        counts = ", ".join(f"{count} {outcome.replace('_', ' ')}" for outcome, count in sorted(told.items()))
        words.print(f"{'would be: ' if dry_run and told else ''}{counts or 'nothing to do'}; {events} events")
    return told


def _model_to_archive(url: str, opened: StreamStores, streams: Sequence[str] | None) -> AnyModel:
    """The one model of an archive: the given one, the one that the named streams record, or the log's.

    Raises:
        UnknownModel: it is not installed.
        ModelMismatch: the streams are of several models, or of another than the given one.
    """
    named = [info for stream in streams or () if (info := opened.log.stream(stream)) is not None]
    if not named:
        found = model_for(url, opened.log, opened.given)
        check_model_is_used(url, opened.log, found.name)
        return found
    found = opened.of(named[0]).model
    for info in named:
        check_model(info.stream, info.model, found.name)
    return found


def _to_archive(log: EventLog, archiver: Archiver, streams: Iterable[str] | None) -> Iterator[StreamInfo]:
    if streams is None:
        yield from infos(log)
        return
    for stream in dict.fromkeys(streams):
        info = log.stream(stream)
        if info is not None:
            yield info
        elif not archiver.holds(stream):
            raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
        else:
            words.print(f"{stream}: in the archive already")


def _archived(log: ArchiveLog, streams: Iterable[str]) -> Iterator[StreamInfo]:
    for stream in dict.fromkeys(streams):
        info = log.stream(stream)
        if info is None:
            raise StreamNotFound(f"There is no run {stream!r} in the archive", stream=stream)
        yield info
