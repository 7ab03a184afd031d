"""The log of one Delta table on a local disk: which files it consists of, with a note of ours in every commit.

delta-rs writes the log and reads it. What it does not do is done here: a commit is flushed to the disk before it is
acknowledged, and a last commit that a power cut has torn, which was never acknowledged, is removed by the next writer.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from runstate.errors import LogBusy, LogTooNew
from runstate.models.canonical import undecodable
from runstate.pipeline.tables.sorted_files import FileEntry, TableDamaged
from runstate.storage.directories import make_directories
from runstate.storage.disk import RealDisk

logger = logging.getLogger("runstate.pipeline")

_application = "runstate"
"""Our name in the log: of the notes in commits, and of the transactions that say how far a table has come."""
_properties = {
    # The notes say what was ingested. Whoever cleans up old commits would let everything be ingested again.
    "delta.enableExpiredLogCleanup": "false",
    "delta.checkpointPolicy": "classic",
}
_no_checkpoint = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""delta-rs flushes no checkpoint to the disk: a power cut could leave one that hides intact commits."""


class DeltaLog:
    """One table: Parquet files in a directory, and `_delta_log` beside them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._log = directory / "_delta_log"
        self._table: DeltaTable | None = None
        self._checked: set[str] = set()

    @property
    def places(self) -> tuple[Path, Path]:
        """The directories that it writes to."""
        return self.directory, self._log

    def create(self, schema: pa.Schema) -> None:
        """Make the table, without a row; one that is there stays as it is."""
        if (self._log / _commit_name(0)).exists():
            return
        make_directories(RealDisk(), self._log)
        with _readable(self.directory):
            DeltaTable.create(self.directory, schema, mode="ignore", configuration=_properties)
        self._flush(0)

    def version(self) -> int:
        """
        Raises:
            TableDamaged: the log is not what was written.
        """
        with _readable(self.directory):
            return self._open().version()

    def id(self) -> str:
        """What no other table has, also one that is made in its place later."""
        with _readable(self.directory):
            return str(self._open().metadata().id)

    def schema(self) -> pa.Schema:
        with _readable(self.directory):
            return pa.schema(self._open().schema().to_arrow())

    def notes(self) -> list[str]:
        """What our commits have noted, oldest first."""
        with _readable(self.directory):
            found = self._open().history()
        return [commit[_application] for commit in reversed(found) if _application in commit]

    def files(self, version: int | None = None) -> dict[str, tuple[int, int | None]]:
        """The bytes and the rows of each file that counts."""
        with _readable(self.directory):
            adds = pa.table(self._open(version).get_add_actions())
        names = ("path", "size_bytes", "num_records")
        return {
            path: (size, rows) for path, size, rows in zip(*(adds[name].to_pylist() for name in names), strict=True)
        }

    def add_files(self, paths: Sequence[Path]) -> None:
        """Add Parquet files that are in the directory, and flushed, to a table that has no notes of ours."""
        at = _milliseconds()
        stats = {path: f'{{"numRecords":{pq.read_metadata(path).num_rows}}}' for path in paths}
        self._commit([AddAction(path.name, path.stat().st_size, {}, at, True, stats[path]) for path in paths])

    def commit(
        self, adds: Sequence[FileEntry], removes: Mapping[str, int], number: int, note: str, *, is_rewrite: bool = False
    ) -> None:
        """Add and remove files, all at once. `removes` are names with their sizes.

        `is_rewrite` says that the rows stay the same, for engines that follow the table's changes.

        Raises:
            LogBusy: another program has changed the table meanwhile.
            TableDamaged: the log is not what was written.
        """
        at = _milliseconds()
        added = [AddAction(entry.name, entry.bytes, {}, at, not is_rewrite, _stats(entry)) for entry in adds]
        removed = [RemoveAction(name, not is_rewrite, at, size, {}) for name, size in removes.items()]
        properties = CommitProperties(
            custom_metadata={_application: note} if note else None,
            app_transactions=[Transaction(_application, number)],
            max_commit_retries=0,
        )
        self._commit([*added, *removed], properties)

    def _commit(self, actions: Sequence[AddAction | RemoveAction], properties: CommitProperties | None = None) -> None:
        with _readable(self.directory):
            table = self._open()
            version = table.version() + 1
            table.create_write_transaction(
                list(actions),
                "append",
                table.schema(),
                commit_properties=properties,
                post_commithook_properties=_no_checkpoint,
            )
        self._flush(version)

    def unused_files(self, hours: int) -> list[str]:
        """The names of the files that no version of the last hours has."""
        with _readable(self.directory):
            found = self._open().vacuum(hours, dry_run=True, enforce_retention_duration=False)
        return [name for name in found if (self.directory / name).exists()]

    def remove_torn_commit(self) -> None:
        """Take away a last commit that a power cut has torn. It was never told of: that comes after its flush."""
        last = max((name for name in os.listdir(self._log) if len(name) == 25 and name.endswith(".json")), default="")
        if not last:
            return
        path = self._log / last
        if int(last[:20]) > 0 and _is_torn(path.read_bytes()):
            logger.warning("%s was torn by a crash before it was acknowledged, and is removed", path)
            path.unlink()
            RealDisk().sync_directory(self._log)
            self._table = None

    def _open(self, version: int | None = None) -> DeltaTable:
        self._check_files()
        if version is not None:
            return DeltaTable(self.directory, version=version)
        if self._table is None:
            self._table = DeltaTable(self.directory)
        else:
            self._table.update_incremental()
        return self._table

    def _check_files(self) -> None:
        """delta-rs would read a pipe or a device in place of a commit for ever, and does not survive every text.

        Raises:
            TableDamaged: the log holds something that no writer of Delta puts there.
        """
        with os.scandir(self._log) as found:
            entries = list(found)
        for entry in entries:
            if not entry.is_file(follow_symlinks=False):
                raise TableDamaged(f"{entry.path} is no file of a Delta log", path=entry.path)
            if entry.name.endswith(".json") and entry.name not in self._checked:
                _check_text(Path(entry.path))
                self._checked.add(entry.name)

    def _flush(self, version: int) -> None:
        path = self._log / _commit_name(version)
        with open(path, "rb+") as file:
            os.fchmod(file.fileno(), 0o600)
            os.fsync(file.fileno())
        RealDisk().sync_directory(self._log)
        RealDisk().sync_directory(self.directory)


def _check_text(path: Path) -> None:
    """
    Raises:
        TableDamaged: it is no commit.
    """
    try:
        for line in filter(None, path.read_bytes().split(b"\n")):
            msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except undecodable as error:
        raise TableDamaged(f"{path} is no commit: {error}", path=str(path)) from error


def _is_torn(commit: bytes) -> bool:
    """Whether the end of a commit is missing. One that is damaged elsewhere is not torn: it may be acknowledged.

    Each action is a line that ends with two braces. The last of ours is a transaction.
    """
    if not commit.endswith(b"}}") or b"\0" in commit:
        return True
    try:
        lines = [msgspec.json.decode(line, type=dict[str, msgspec.Raw]) for line in commit.split(b"\n")]
    except undecodable:
        return False
    names = {name for line in lines for name in line}
    return names <= {"commitInfo", "add", "remove"} and f'"{_application}":'.encode() in commit


def _commit_name(version: int) -> str:
    return f"{version:020d}.json"


def _milliseconds() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def _stats(entry: FileEntry) -> str:
    return msgspec.json.encode({"numRecords": entry.rows, **msgspec.to_builtins(entry.stats)}).decode()


@contextmanager
def _readable(directory: Path) -> Iterator[None]:
    """
    Raises:
        LogBusy, LogTooNew, TableDamaged: in place of the errors of delta-rs.
    """
    try:
        yield
    except (DeltaError, OSError) as error:
        told = str(error).partition("\n")[0][:300]  # A trace of addresses comes behind it.
        if "Unsupported" in told:
            raise LogTooNew(f"{directory} was changed by a program of a newer Delta version: {told}") from error
        if isinstance(error, CommitFailedError):
            raise LogBusy(f"Another program has changed {directory} meanwhile; try again") from error
        raise TableDamaged(f"The Delta log of {directory} cannot be read: {told}", path=str(directory)) from error
