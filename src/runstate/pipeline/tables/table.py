"""Tables of the pipeline: Delta tables of sorted Parquet files, which commit together.

    DIR/table.json       what the table holds, of which model, in which format: the marker of the directory
    DIR/KIND             a Delta table: DIR/events for instance, with DIR/heads, DIR/refusals and DIR/quarantine

The first kind decides. Each of its commits has a note of ours: the files that a job has added, of all kinds, and what
it had consumed. The tables of the other kinds are brought to what the notes say: by the job that commits, or by the
next one if that was killed. So a job leaves either all of its work or none; files that no commit names are not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from runstate.errors import LogBusy, LogFailed, LogNotFound, LogTooNew, NotALog
from runstate.models.canonical import digest, undecodable
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.spark.shared_storage import StorageNotShared
from runstate.pipeline.tables.delta_log import DeltaLog
from runstate.pipeline.tables.sorted_files import DATA_FILE, FileEntry, TableDamaged, pieces
from runstate.storage.disk import TEMP, LockBusy, RealDisk, refuse_links, replace_durably
from runstate.storage.target_directory import check_target, remove_own, writing_to

_version = 2
kinds = {"events": ("events", "heads", "refusals", "quarantine"), "snapshots": ("snapshots",)}
"""The Delta tables of a table: the one that decides, and others that follow it."""
_any_kind = "|".join(sorted({kind for each in kinds.values() for kind in each}))
_leftovers = re.compile(rf"({_any_kind})/(_delta_log/([0-9]{{20}}\.json)?)?|table\.json{TEMP}|\.lock")
"""What a job that was killed while it made a table may have left."""
_own_files = re.compile(rf"({_any_kind})/({DATA_FILE})?|plan-[0-9a-f]{{16}}\.json|table\.json{TEMP}")


class TableInfo(msgspec.Struct, frozen=True):
    """`table.json`: fixed when the table is made."""

    kind: str
    model: str
    """The model's name. Older versions recorded the place of a model that was not installed; it is never loaded."""
    model_version: int
    version: int = _version


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """What one job has done: the note in a commit."""

    number: int
    """The version of the Delta table that it made."""
    at: str = ""
    files: list[FileEntry]
    removes: list[str] = []
    """Files that no longer count, since others hold their rows."""
    replaces: bool = False
    """Whether everything before it no longer counts, as when a new version of the model has folded all anew."""
    consumed: dict[str, Any] = {}
    """What it was made from, for the next one to go on behind it."""
    counts: dict[str, int] = {}


class _Sealed(msgspec.Struct):
    sha256: str
    commit: msgspec.Raw


class Table:
    """A table in a directory, as it is now or was in a version."""

    def __init__(self, directory: Path, info: TableInfo, as_of: int | None = None) -> None:
        self.directory, self.info, self._as_of = directory, info, as_of
        self._logs = {kind: DeltaLog(directory / kind) for kind in kinds[info.kind]}
        self._main = self._logs[info.kind]

    @classmethod
    def open(cls, directory: Path, as_of: int | None = None) -> Table:
        """
        Raises:
            LogNotFound: there is none, or not that version of it.
            NotALog, LogTooNew: it is none of ours, or of a newer Runstate.
        """
        try:
            text = RealDisk().read(directory / "table.json")
        except (FileNotFoundError, NotADirectoryError):
            raise LogNotFound(f"There is no table in {directory}", path=str(directory)) from None
        except OSError as error:
            raise LogFailed(f"{directory} cannot be read: {error.strerror}") from error
        try:
            version = msgspec.json.decode(text, type=_Version).version
            if version > _version:
                raise LogTooNew(f"The table in {directory} has version {version}; upgrade Runstate to read it")
            if version < _version:
                raise NotALog(
                    f"The table in {directory} is of an earlier version of Runstate. Convert it with: "
                    f"runstate pipeline convert {directory}"
                )
            info = msgspec.json.decode(text, type=TableInfo)
        except undecodable as error:
            raise NotALog(f"{directory}/table.json is no table of ours: {error}") from error
        if info.kind not in kinds:
            raise NotALog(f"{directory}/table.json is no table of ours: it holds {info.kind[:80]!r}")
        table = cls(directory, info, as_of)
        if as_of is not None and as_of not in {commit.number for commit in table.commits()}:
            numbers = [commit.number for commit in Table(directory, info).commits()]
            there = ", ".join(map(str, numbers[-20:])) or "none"
            raise LogNotFound(f"{directory} has no version {as_of}; it has {there}")
        return table

    @staticmethod
    def check(directory: Path) -> None:
        """Check that there is a table in a directory, or can be one.

        Raises:
            NotALog: something else is there.
            LogFailed: the directory cannot be read or written.
        """
        check_target(directory, _leftovers, has_marker=(directory / "table.json").exists())

    @classmethod
    def make(
        cls, directory: Path, info: TableInfo, schemas: Mapping[str, pa.Schema], *, is_model_given: bool = True
    ) -> Table:
        """Open the table, or make it, with these columns of each kind. One that is there must be of the same kind and
        model.

        A table that an older version made may record the place of its model. Its name cannot be compared, so the caller
        must have given the model: `is_model_given`.

        Raises:
            NotALog: something else is there.
            LogFailed: the directory cannot be written.
        """
        cls.check(directory)
        try:
            found = cls.open(directory)
        except LogNotFound:
            table = cls(directory, info)
            with writing_to(directory):
                table.create(schemas)
                write_info(directory, info)
            return table
        is_same_model = found.info.model == info.model or (":" in found.info.model and is_model_given)
        if found.info.kind != info.kind or not is_same_model:
            raise NotALog(
                f"{directory} holds {found.info.kind} of the model {found.info.model!r}, not {info.kind} of "
                f"{info.model!r}; choose another directory"
            )
        return found

    def create(self, schemas: Mapping[str, pa.Schema]) -> None:
        """Make the Delta tables, without a row. They are a table once `table.json` is written."""
        for kind, log in self._logs.items():
            log.create(schemas[kind])

    def place(self, kind: str) -> Path:
        """Where the files of a kind are."""
        return self._logs[kind].directory

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its files, the one that decides first."""
        return tuple(self._logs)

    @contextmanager
    def writing(self, *, is_checked: bool = True) -> Iterator[None]:
        """Be the only job that adds to the table. What a killed job has left is removed, and what it has committed is
        published. `is_checked`: refuse a table that another program has changed.

        Raises:
            LogBusy: another job is at it.
            TableDamaged: another program has changed the table, or it is damaged.
        """
        try:
            with writing_to(self.directory):
                refuse_links(RealDisk(), *(place for log in self._logs.values() for place in log.places))
                lock = RealDisk().lock(self.directory / ".lock")
        except LockBusy as error:
            raise LogBusy(f"Another job is writing to {self.directory}; try again when it is done") from error
        try:
            with writing_to(self.directory):
                for log in self._logs.values():
                    log.remove_torn_commit()
                commits = self.commits() if is_checked else self.noted()
                if is_checked:  # Else the notes may not name all files that count.
                    named = {f"{entry.kind}/{entry.name}" for commit in commits for entry in commit.files}
                    remove_own(self.directory, _own_files, keep={*(f"{kind}/" for kind in self._logs), *named})
                self._publish(commits)
            yield
        finally:
            lock.release()

    def commits(self) -> list[Commit]:
        """All of them, oldest first.

        Raises:
            TableDamaged: one is missing, or is not what was written; or another program has changed the table.
        """
        found = self.noted()
        self._check(found)
        return found

    def noted(self) -> list[Commit]:
        """The same, also where another program has changed the table since."""
        found = [_unsealed(note, self.directory) for note in self._main.notes()]
        return [commit for commit in found if self._as_of is None or commit.number <= self._as_of]

    def version(self) -> int:
        """The number of the last commit; 0 before the first."""
        return max((commit.number for commit in self.commits()), default=0)

    def files(self, kind: str, *, after: int = 0) -> list[FileEntry]:
        """The files of a kind that count, in the order of their commits; those of commits after a number."""
        return list(live_files(self.commits(), kind, after).values())

    def commit(self, commit: Commit) -> None:
        """Make a job's files count, all at once. The caller is `writing`.

        Raises:
            StorageNotShared: a file that a task says to have written is not here.
            LogBusy: another program has changed the table.
        """
        for entry in commit.files:
            self._confirm(entry)
        with writing_to(self.directory):
            for log in self._logs.values():
                RealDisk().sync_directory(log.directory)
            commits = self.noted()
            if commit.number != self._main.version() + 1:
                raise LogBusy(f"Another program has changed {self.directory} meanwhile; try again")
            body = msgspec.json.encode(commit)
            note = msgspec.json.encode(_Sealed(digest(body), msgspec.Raw(body))).decode()
            self._bring(self.info.kind, [*commits, commit], note, is_rewrite="compacts" in commit.consumed)
            self._publish([*commits, commit])

    def schema(self, kind: str) -> pa.Schema:
        """The columns of a kind."""
        return self._logs[kind].schema()

    def id(self) -> str:
        """What no other table has, also one that is made in its place later."""
        return self._main.id()

    def next_number(self) -> int:
        """The number of the next commit. It is not always one more than the last of ours: other programs may commit."""
        return self._main.version() + 1

    def unused_files(self, hours: int) -> list[str]:
        """The paths of the files that no version of the last hours has."""
        ours = {(entry.kind, entry.name) for commit in self.commits() for entry in commit.files}
        named = ((kind, name) for kind, log in self._logs.items() for name in log.unused_files(hours))
        return sorted(f"{kind}/{name}" for kind, name in named if (kind, name) in ours)

    def _publish(self, commits: list[Commit]) -> None:
        """Bring the tables that follow to what the notes say."""
        for kind in kinds[self.info.kind][1:]:
            if self._logs[kind].files().keys() != live_files(commits, kind).keys():
                self._bring(kind, commits, "")

    def _bring(self, kind: str, commits: list[Commit], note: str, *, is_rewrite: bool = False) -> None:
        log, wanted = self._logs[kind], live_files(commits, kind)
        there = log.files()
        adds = [entry for name, entry in wanted.items() if name not in there]
        removes = {name: size for name, (size, _) in there.items() if name not in wanted}
        log.commit(adds, removes, commits[-1].number, note, is_rewrite=is_rewrite)

    def _check(self, commits: list[Commit]) -> None:
        """
        Raises:
            TableDamaged: what the notes say and what Delta says differ.
        """
        version = None if self._as_of is None else max((commit.number for commit in commits), default=0)
        wanted = {name: (entry.bytes, entry.rows) for name, entry in live_files(commits, self.info.kind).items()}
        if self._main.files(version) != wanted:
            last = commits[-1].number if commits else 0
            raise TableDamaged(
                f"Another program has changed {self._main.directory}, or its log is damaged: its files are not those "
                f"of version {last}, the last that Runstate wrote. To go back to that: "
                f"runstate pipeline restore {self.directory} --version {last}",
                path=str(self.directory),
            )

    def _confirm(self, entry: FileEntry) -> None:
        """
        Raises:
            StorageNotShared: the file that a task says to have written is not here, or is another one.
        """
        path = self.place(entry.kind) / entry.name
        try:
            is_as_written = path.stat().st_size == entry.bytes and entry.footer.fits(path)
        except OSError:
            is_as_written = False
        if not is_as_written:
            raise StorageNotShared(
                f"{path} is not what a task has written; the table is as it was. "
                f"Do all machines see {self.directory} at the same place?",
                directory=str(self.directory),
            )

    def pieces(self, files: Sequence[FileEntry], shard: Shard, columns: Sequence[str]) -> Iterator[pa.Table]:
        return pieces(self.directory, files, shard, columns)


def write_info(directory: Path, info: TableInfo) -> None:
    replace_durably(RealDisk(), directory / "table.json", msgspec.json.encode(info) + b"\n")


def live_files(commits: Sequence[Commit], kind: str, after: int = 0) -> dict[str, FileEntry]:
    """The files of a kind that count after some commits; those of commits after a number."""
    found: dict[str, FileEntry] = {}
    for commit in commits:
        if commit.replaces:
            found = {}
        for name in commit.removes:
            found.pop(name, None)
        if commit.number > after:
            found |= {entry.name: entry for entry in commit.files if entry.kind == kind}
    return found


class _Version(msgspec.Struct):
    version: int


def _unsealed(note: str, directory: Path) -> Commit:
    try:
        sealed = msgspec.json.decode(note, type=_Sealed)
        body = bytes(sealed.commit)
        if digest(body) != sealed.sha256:
            raise TableDamaged(f"A commit of {directory} does not fit its digest", path=str(directory))
        return msgspec.json.decode(body, type=Commit)
    except undecodable as error:
        raise TableDamaged(f"A commit of {directory} cannot be read: {error}", path=str(directory)) from error
