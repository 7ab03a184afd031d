"""Tables of the pipeline: sorted columnar files, and commits that say which of them count.

    DIR/table.json               what the table holds, of which model, in which format
    DIR/data/NAME.parquet        rows sorted by stream and seq
    DIR/commits/00000001.json    the files that a job added, and what it had consumed

A file that no commit names is not there. Commits are numbered without a gap and made by renaming a synced file, so a
job that is killed leaves either all of its work or none; the next one removes the files that it left in `data`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from runstate.errors import LogBusy, LogFailed, LogNotFound, LogTooNew, NotALog
from runstate.models.canonical import digest, undecodable
from runstate.pipeline.shards import Shard
from runstate.pipeline.shared_storage import StorageNotShared
from runstate.pipeline.sorted_files import DATA_FILE, FileEntry, TableDamaged, pieces
from runstate.storage.directories import make_directories
from runstate.storage.disk import TEMP, LockBusy, RealDisk, refuse_links, replace_durably
from runstate.storage.target_directory import check_target, remove_own, writing_to

_version = 1
_leftovers = re.compile(rf"data/|commits/|table\.json{TEMP}")
"""What a job that was killed while it made a table may have left."""
_data_files = re.compile(rf"data/|data/({DATA_FILE}|plan-[0-9a-f]{{16}}\.json)|table\.json{TEMP}")


class TableInfo(msgspec.Struct, frozen=True):
    """`table.json`: fixed when the table is made."""

    kind: str
    model: str
    """The model's name. Older versions recorded the place of a model that was not installed; it is never loaded."""
    model_version: int
    file_format: str = "parquet"
    version: int = _version


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """What one job has added."""

    number: int
    files: list[FileEntry]
    replaces: bool = False
    """Whether everything before it no longer counts, as when a new version of the model has folded all anew."""
    consumed: dict[str, Any] = {}
    """What it was made from, for the next one to go on behind it."""
    counts: dict[str, int] = {}


class _Sealed(msgspec.Struct):
    sha256: str
    commit: msgspec.Raw


class Table:
    """A table in a directory."""

    def __init__(self, directory: Path, info: TableInfo) -> None:
        self.directory, self.info = directory, info
        self.data = directory / "data"
        self._commits = directory / "commits"

    @classmethod
    def open(cls, directory: Path) -> Table:
        """
        Raises:
            LogNotFound: there is none.
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
            return cls(directory, msgspec.json.decode(text, type=TableInfo))
        except undecodable as error:
            raise NotALog(f"{directory}/table.json is no table of ours: {error}") from error

    @staticmethod
    def check(directory: Path) -> None:
        """Check that there is a table in a directory, or can be one.

        Raises:
            NotALog: something else is there.
            LogFailed: the directory cannot be read or written.
        """
        check_target(directory, _leftovers, has_marker=(directory / "table.json").exists())

    @classmethod
    def make(cls, directory: Path, info: TableInfo, *, is_model_given: bool = True) -> Table:
        """Open the table, or make it. One that is there must be of the same kind and model.

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
                for part in (table.data, table._commits):
                    make_directories(RealDisk(), part)
                replace_durably(RealDisk(), directory / "table.json", msgspec.json.encode(info) + b"\n")
            return table
        is_same_model = found.info.model == info.model or (":" in found.info.model and is_model_given)
        if found.info.kind != info.kind or not is_same_model:
            raise NotALog(
                f"{directory} holds {found.info.kind} of the model {found.info.model!r}, not {info.kind} of "
                f"{info.model!r}; choose another directory"
            )
        return found

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only job that adds to the table. Data files that no commit needs, of killed jobs too, are removed.

        Raises:
            LogBusy: another job is at it.
        """
        try:
            with writing_to(self.directory):
                refuse_links(RealDisk(), self.data, self._commits)
                lock = RealDisk().lock(self.directory / ".lock")
        except LockBusy as error:
            raise LogBusy(f"Another job is writing to {self.directory}; try again when it is done") from error
        try:
            named = {f"data/{entry.name}" for commit in _live(self.commits()) for entry in commit.files}
            with writing_to(self.directory):
                remove_own(self.directory, _data_files, keep={"data/", *named})
            yield
        finally:
            lock.release()

    def commits(self) -> list[Commit]:
        """All of them, oldest first.

        Raises:
            TableDamaged: one is missing, or is not what was written.
        """
        try:
            names = sorted(name for name in os.listdir(self._commits) if name.endswith(".json"))
        except OSError as error:
            raise TableDamaged(f"{self._commits} cannot be read: {error.strerror}", path=str(self._commits)) from error
        found = []
        for number, name in enumerate(names, 1):
            path = self._commits / name
            if name != _commit_name(number):
                raise TableDamaged(f"{self._commits} has no commit {number}, and has {name}", path=str(path))
            found.append(_unsealed(path))
        return found

    def files(self, kind: str, *, after: int = 0) -> list[FileEntry]:
        """The files of a kind that count, in the order of their commits; those of commits after a number."""
        live = (commit for commit in _live(self.commits()) if commit.number > after)
        return [entry for commit in live for entry in commit.files if entry.kind == kind]

    def commit(self, commit: Commit) -> None:
        """Make a job's files count, all at once. The caller is `writing`."""
        body = msgspec.json.encode(commit)
        for entry in commit.files:
            self._confirm(entry)
        with writing_to(self.directory):
            RealDisk().sync_directory(self.data)
            replace_durably(
                RealDisk(),
                self._commits / _commit_name(commit.number),
                msgspec.json.encode(_Sealed(digest(body), msgspec.Raw(body))) + b"\n",
            )

    def _confirm(self, entry: FileEntry) -> None:
        """
        Raises:
            StorageNotShared: the file that a task says to have written is not here, or is another one.
        """
        path = self.data / entry.name
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
        return pieces(self.data, files, shard, columns)


def _live(commits: list[Commit]) -> list[Commit]:
    """Those that count."""
    first = max((place for place, commit in enumerate(commits) if commit.replaces), default=0)
    return commits[first:]


class _Version(msgspec.Struct):
    version: int


def _commit_name(number: int) -> str:
    return f"{number:08d}.json"


def _unsealed(path: Path) -> Commit:
    try:
        sealed = msgspec.json.decode(RealDisk().read(path), type=_Sealed)
        body = bytes(sealed.commit)
        if digest(body) != sealed.sha256:
            raise TableDamaged(f"{path} does not fit its digest", path=str(path))
        return msgspec.json.decode(body, type=Commit)
    except (OSError, *undecodable) as error:
        raise TableDamaged(f"{path} cannot be read: {error}", path=str(path)) from error
