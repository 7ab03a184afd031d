"""Retention: finished runs out of a log into an archive, and back.

A run is deleted from its log only when the archive holds it, on the disk and read back, and only if nothing has been
appended to it since. Whatever is interrupted is simply run again: a run that the archive holds already is just deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from itertools import takewhile
from typing import Literal

import msgspec

from runstate.errors import (
    BlobNotFound,
    EventTooLarge,
    InvalidEvent,
    InvalidJson,
    InvalidStream,
    LogDamaged,
    ModelFailed,
    ModelMismatch,
    RunstateError,
    SequenceConflict,
    Truncated,
    Unsupported,
)
from runstate.logs.archive.blobs import BlobKeeper
from runstate.logs.archive.deleting import check_no_files, delete_run, was_deleted
from runstate.logs.archive.directory import ArchiveDirectory
from runstate.logs.archive.log import ArchiveLog
from runstate.logs.archive.packs import ArchivedRun, Unfit, encode_line
from runstate.logs.archive.reading import Contents, Copy, is_intact
from runstate.logs.archive.restoring import adopt_run, check_restored, missing_events, stored, without_blobs
from runstate.logs.archive.writing import PackWriter, settle
from runstate.logs.archived_streams import check_not_older
from runstate.logs.log import Capability, EventLog, Record, StreamInfo
from runstate.logs.stream_blobs import needed_by
from runstate.models.model import AnyModel
from runstate.store import Store

_page = 1000
What = Literal["archived", "copied", "deleted", "held", "restored", "moved_on", "gone", "busy", "refused"]
"""What became of a run.

`archived`: now in the archive, and no longer in the log. `copied`: the same, but kept in the log. `deleted`: the
archive held it already, now the log does not. `held`: it is where it should be already. `restored`: back in the log.
`moved_on`, `busy`: in the archive, and left in the log, because it got new events, or somebody holds it. `gone`:
somebody else has deleted it. `refused`: left alone, for a reason.
"""


class ArchiveConflict(RunstateError):
    """The archive holds other events of the run than the log; nothing was deleted."""

    code = "archive.conflict"


class RunOutcome(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What became of one run, or what would."""

    stream: str
    outcome: What
    events: int = 0
    bytes: int = 0
    code: str = ""
    """Why it was refused, as an error's code."""
    reason: str = ""


class Archiving(msgspec.Struct, frozen=True, kw_only=True):
    """What to take, and what to do with it."""

    before: datetime
    """A run is taken if its last event was stored before this."""
    keep: bool = False
    """Leave it in the log too."""
    discard_files: bool = False
    """Delete a run directory with the files in it that an archive does not hold."""
    dry_run: bool = False


_about_one_run = (LogDamaged, ModelFailed, Unfit, ArchiveConflict, Truncated, BlobNotFound)
"""What is wrong with one run keeps nobody from the others."""
_not_adopted = (
    *(LogDamaged, ModelMismatch, SequenceConflict, Unsupported, EventTooLarge, InvalidEvent, InvalidStream),
    BlobNotFound,
)


def infos(log: EventLog, after: str = "", until: str | None = None) -> Iterator[StreamInfo]:
    """All streams of a range, while some of them are being deleted."""
    while page := log.streams(after=after, limit=_page):
        yield from takewhile(lambda info: until is None or info.stream <= until, page)
        after = page[-1].stream
        if until is not None and after >= until:
            return


def check_archivable(log: EventLog, keep: bool) -> None:
    """
    Raises:
        Unsupported: nothing can be deleted from that log.
    """
    if not keep and Capability.DELETE not in log.capabilities:
        raise Unsupported("This log offers no delete, so nothing can be archived from it; --keep copies it")


class Archiver:
    """Takes runs from a log into an archive, which must be prepared unless it is a dry run."""

    def __init__(self, log: EventLog, model: AnyModel, directory: ArchiveDirectory, archiving: Archiving) -> None:
        """
        Raises:
            LogDamaged: a manifest of the archive cannot be believed.
            Unsupported: nothing can be deleted from that log.
        """
        check_archivable(log, archiving.keep)
        self._log, self._model, self._directory, self._archiving = log, model, directory, archiving
        self._contents = Contents(directory)
        self._contents.check()
        self._settled: set[str] = set()
        self._deletes = not archiving.keep
        self._blobs = BlobKeeper(log, directory, needed_by(model), dry_run=archiving.dry_run)
        self.passed_over: Counter[str] = Counter()
        """Runs that are not to be archived, or not yet: `recent`, `unfinished`, `other_model`."""
        self.written: list[str] = []
        """Packs that were written."""
        self.held: dict[str, list[str]] = {}
        """Packs of earlier jobs, with the streams in them that `copy` has found there."""

    def holds(self, stream: str) -> bool:
        return stream in self._contents.runs

    def run(self, streams: Iterable[StreamInfo]) -> Iterator[RunOutcome]:
        """What became of each run that is over and old enough; each is told once its pack is safe.

        Raises:
            LogFull, LogFailed, LogDamaged: of the archive. What was told is safe, everything else is still in the log.
        """
        pack = PackWriter(self._directory, self._model.name)
        waiting: list[StreamInfo] = []
        try:
            for info in streams:
                try:
                    done = self._take(info, pack)
                except _about_one_run as error:
                    done = _refused(info, error)
                if done == "waiting":
                    waiting.append(info)
                elif done is not None:
                    yield done
                if pack.is_full:
                    yield from self._finish(pack, waiting)
                    pack, waiting = PackWriter(self._directory, self._model.name), []
            yield from self._finish(pack, waiting)
        finally:
            pack.abort()

    def copy(self, streams: Iterable[StreamInfo]) -> Iterator[RunOutcome]:
        """As `run`, but nothing is deleted: the runs of `written` and `held` are ready for `delete_copies`.

        A run that is ready is told by that alone.
        """
        self._deletes = False
        return (outcome for outcome in self.run(streams) if outcome.outcome == "refused")

    def _take(self, info: StreamInfo, pack: PackWriter) -> RunOutcome | Literal["waiting"] | None:
        if info.model not in ("", self._model.name):
            self.passed_over["other_model"] += 1
            return None
        if not _is_before(info.last_persisted_at, self._archiving.before):
            self.passed_over["recent"] += 1
            return None
        if not self._is_over(info):
            self.passed_over["unfinished"] += 1
            return None
        self._check_fit(info)
        blobs = self._blobs.keep(self._records(info))
        held = self._contents.runs.get(info.stream)
        if held is not None and self._compare(info, held) and blobs <= {*(held.run.blobs or ())}:
            return self._told(info, "held", held.run) if self._archiving.keep else self._take_held(info, held)
        if self._archiving.dry_run:
            size = sum(len(encode_line(record)) for record in self._records(info))
            return RunOutcome(info.stream, "copied" if self._archiving.keep else "archived", info.events, size)
        run = pack.add(info.stream, self._records(info), blobs)
        if run is None or (run.last_seq, run.events) != (info.last_seq, info.events):
            raise LogDamaged(
                f"{info.stream!r} ends at {info.last_seq} with {info.events} events, but not all were read"
            )
        return "waiting"

    def _finish(self, pack: PackWriter, waiting: list[StreamInfo]) -> Iterator[RunOutcome]:
        copies = {copy.run.stream: copy for copy in pack.commit()}
        self.written += [pack.name] if copies else []
        for info in waiting:
            run = copies[info.stream].run
            yield self._delete(info, run, "archived") if self._deletes else self._told(info, "copied", run)

    def _take_held(self, info: StreamInfo, held: Copy) -> RunOutcome:
        """Delete a run that an earlier job has archived, once that is as sure as if it had been done now."""
        if not is_intact(self._directory, held):
            raise LogDamaged(
                f"The pack {held.pack} no longer holds {info.stream!r} as it was archived; "
                f"runstate verify archive:{self._directory.root}",
                stream=info.stream,
            )
        if self._archiving.dry_run:
            return self._told(info, "deleted", held.run)
        if held.pack not in self._settled:
            settle(self._directory, held.pack)
            self._settled.add(held.pack)
        if not self._deletes:
            self.held.setdefault(held.pack, []).append(info.stream)
            return self._told(info, "held", held.run)
        return self._delete(info, held.run, "deleted")

    def _delete(self, info: StreamInfo, run: ArchivedRun, done: What) -> RunOutcome:
        outcome = delete_run(self._log, self._directory, run, info.first_persisted_at)
        return self._told(info, done if outcome == "deleted" else outcome, run)

    def _told(self, info: StreamInfo, what: What, run: ArchivedRun) -> RunOutcome:
        return RunOutcome(info.stream, what, run.events, run.bytes)

    def _is_over(self, info: StreamInfo) -> bool:
        lines = self._log.lines(info.stream, until_seq=info.last_seq)
        try:
            return self._model.is_over(self._model.fold(self._model.initial(info.stream), lines))
        except Exception as error:
            if isinstance(error, RunstateError) and not isinstance(error, InvalidEvent | InvalidJson):
                raise
            raise ModelFailed(
                f"The model {self._model.name!r} cannot fold {info.stream!r}: {error!r}; is it the right model?",
                stream=info.stream,
            ) from error

    def _check_fit(self, info: StreamInfo) -> None:
        """What is damaged stays where the evidence is, and no file is deleted unasked.

        Raises:
            LogDamaged, Unfit: why the run is left alone.
        """
        if (tombstone := self._log.tombstone(info.stream)) is not None:
            raise Unfit(
                f"It is not wholly restored: seq {info.last_seq} of {tombstone.last_seq}. Restore it first, with "
                f"'runstate restore' from {tombstone.archive.removeprefix('archive:')}",
                stream=info.stream,
            )
        for finding in self._log.verify(info.stream):
            if finding.severity == "damage":
                raise LogDamaged(f"{finding.code}: {finding.message}", stream=info.stream, seq=finding.seq)
        if not self._archiving.keep and not self._archiving.discard_files:
            check_no_files(self._log, info.stream)

    def _compare(self, info: StreamInfo, held: Copy) -> bool:
        """Whether the archive holds the run as it is now; False if it holds an earlier state of it.

        Raises:
            ArchiveConflict: the archive holds something else.
        """
        digest, size, at_held = sha256(), 0, ""
        for record in self._records(info):
            line = encode_line(record)
            digest.update(line)
            size += len(line)
            if size == held.run.bytes:
                at_held = digest.hexdigest()
        if at_held != held.run.sha256:
            raise ArchiveConflict(
                f"The archive holds other events of {info.stream!r}, in the pack {held.pack}; nothing was deleted. "
                "If both are wanted, archive to another directory",
                stream=info.stream,
                pack=held.pack,
            )
        return size == held.run.bytes

    def _records(self, info: StreamInfo) -> Iterator[Record]:
        return stored(self._log, info.stream, info.last_seq)


def delete_copies(
    log: EventLog, directory: ArchiveDirectory, copies: Iterable[Copy], done: What, *, discard_files: bool
) -> Iterator[RunOutcome]:
    """Delete runs that `Archiver.copy` has made ready, and tell what became of each: `done`, where nothing was amiss.

    Raises:
        LogFailed: of the log. What was told is deleted, everything else is still there.
    """
    for copy in copies:
        run = copy.run
        try:
            if not discard_files:
                check_no_files(log, run.stream)
        except Unfit as error:
            yield RunOutcome(run.stream, "refused", run.events, code=error.code, reason=str(error))
            continue
        outcome = delete_run(log, directory, run, run.first_persisted_at)
        # An earlier attempt at the same task may have deleted it.
        is_done = outcome == "deleted" or (outcome == "gone" and was_deleted(log, directory, run))
        yield RunOutcome(run.stream, done if is_done else outcome, run.events, run.bytes)


def restore(
    archive: ArchiveLog,
    log: EventLog | None,
    model: AnyModel | None,
    streams: Iterable[StreamInfo],
    *,
    dry_run: bool = False,
) -> Iterator[RunOutcome]:
    """Put archived runs back into a log as they were: seq, ids, keys, times and lines. The archive keeps them too.

    With a model, each gets its snapshot as well. No log: a dry run into one that is not there yet.

    Raises:
        Unsupported: the log cannot take over events of another.
        LogDamaged: what the log has taken over is not what the archive holds.
        LogFull, LogFailed: of the log. What was told is restored; run it again for the rest.
    """
    if log is not None and Capability.ADOPT not in log.capabilities:
        raise Unsupported("This log cannot take over events of another one, so nothing can be restored to it")
    for info in streams:
        copy = archive.contents.runs[info.stream]
        run = copy.run
        try:
            if log is not None:
                check_not_older(log, run.stream, run.last_seq)
            if not is_intact(archive.directory, copy):
                raise LogDamaged(
                    f"The pack {copy.pack} no longer holds {run.stream!r} as it was archived; nothing was restored. "
                    f"'runstate verify {archive.directory.url}' says more",
                    stream=run.stream,
                )
            name = archive.recorded_model if model is None else model.name
            if dry_run or log is None:
                new, unresolved = missing_events(log, archive, run, name)
            else:
                new, unresolved = adopt_run(log, archive, run, name)
        except _not_adopted as error:
            yield _refused(info, error)
            continue
        if not dry_run and log is not None:
            if new:
                check_restored(log, run)
            if model is not None and Capability.SNAPSHOTS in log.capabilities:
                _keep_snapshot(log, model, info.stream, bool(new))
        outcome: What = "restored" if new else "held"
        yield RunOutcome(info.stream, outcome, run.events, run.bytes, *without_blobs(unresolved))


def _keep_snapshot(log: EventLog, model: AnyModel, stream: str, changed: bool) -> None:
    if changed or log.load_snapshot(stream, model.name) is None:
        with suppress(ModelFailed):  # The events are restored; a model that cannot fold them never had a snapshot.
            Store(log, model).rebuild_snapshot(stream)


def _is_before(persisted_at: str, before: datetime) -> bool:
    """Whether a time lies before another; what is no time, or has no zone, does not."""
    try:
        moment = datetime.fromisoformat(persisted_at)
        return moment < before
    except (ValueError, TypeError):
        return False


def _refused(info: StreamInfo, error: RunstateError) -> RunOutcome:
    return RunOutcome(info.stream, "refused", info.events, code=error.code, reason=str(error))
