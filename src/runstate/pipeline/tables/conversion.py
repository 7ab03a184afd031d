"""Tables of earlier versions, which had a manifest of their own, made Delta tables in place.

    DIR/table.json               {"kind": …, "model": …, "model_version": …, "file_format": …, "version": 1}
    DIR/data/NAME                Parquet or Arrow files, rows sorted by stream and seq
    DIR/commits/00000001.json    {"sha256": …, "commit": …}: the files that a job added, and what it had consumed

The new tables are made beside the old files. They count once the new `table.json` stands in place of the old one; the
old files are deleted then. Snapshots are not converted: the next replay folds them again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from runstate.errors import LogBusy, LogNotFound, NotALog
from runstate.logs.log import now
from runstate.models.canonical import digest, undecodable
from runstate.models.registry import resolve_model
from runstate.pipeline.replay.fold import snapshot_schema
from runstate.pipeline.tables.compaction import check_compactable
from runstate.pipeline.tables.event_table import event_schemas
from runstate.pipeline.tables.sorted_files import Chunk, Section, SortedWriter, TableDamaged
from runstate.pipeline.tables.table import Commit, Table, TableInfo, write_info
from runstate.storage.disk import LockBusy, RealDisk
from runstate.storage.target_directory import remove_own, writing_to

_old_files = re.compile(
    r"data/([a-z]+-[0-9a-f]{16}\.(parquet|arrow)|plan-[0-9a-f]{16}\.json)?|commits/([0-9]{8}\.json)?"
)
_new_files = re.compile(
    r"(events|heads|refusals|quarantine|snapshots)/([a-z]+-[0-9a-f]{16}\.parquet|_delta_log/([0-9]{20}\.json)?)?"
)


class _OldInfo(msgspec.Struct, frozen=True):
    kind: str
    model: str
    model_version: int
    version: int


class _OldFile(msgspec.Struct, frozen=True):
    name: str
    kind: str
    bytes: int
    footer: Section
    chunks: list[Chunk]


class _OldCommit(msgspec.Struct, frozen=True):
    number: int
    files: list[_OldFile]
    replaces: bool = False
    consumed: dict[str, Any] = {}
    counts: dict[str, int] = {}


class _Sealed(msgspec.Struct):
    sha256: str
    commit: msgspec.Raw


def convert(directory: Path, model: str | None = None) -> dict[str, int]:
    """Convert a table of an earlier version. How many rows it had of each kind. Interrupted, simply run it again.

    Raises:
        LogNotFound, NotALog: there is no table of an earlier version.
        TableDamaged: it is not what was written; it stays as it is.
        UnknownModel, ModelMismatch: its model is not installed, and was not given.
        InvalidOption: it was made for another version of its model.
        LogBusy: another job is writing to it.
    """
    info = _read_info(directory)
    if info.version > 1:
        with writing_to(directory):
            remove_own(directory, _old_files)  # What a conversion that was killed at its end has left.
        raise NotALog(f"{directory} is of the current version already")
    found = resolve_model(info.model, model, f"The table in {directory}")
    table = Table(directory, TableInfo(info.kind, info.model, info.model_version))
    check_compactable(table, found.version)
    schemas = event_schemas(found) if info.kind == "events" else {"snapshots": snapshot_schema}
    try:
        lock = RealDisk().lock(directory / ".lock")
    except LockBusy as error:
        raise LogBusy(f"Another job is writing to {directory}; try again when it is done") from error
    try:
        with writing_to(directory):
            remove_own(directory, _new_files)
            table.create(schemas)
        rows = dict.fromkeys(schemas, 0)
        for commit in _commits(directory) if info.kind == "events" else []:
            _convert_commit(directory, table, commit, schemas, rows)
        with writing_to(directory):
            write_info(directory, table.info)
            remove_own(directory, _old_files)
        return rows
    finally:
        lock.release()


def _convert_commit(
    directory: Path, table: Table, commit: _OldCommit, schemas: dict[str, pa.Schema], rows: dict[str, int]
) -> None:
    files = []
    for old in commit.files:
        with SortedWriter(table.place(old.kind), old.kind, schemas[old.kind]) as writer:
            for batch in _batches(directory / "data" / old.name, old):
                writer.write(batch)
        files += writer.entries
        rows[old.kind] += sum(entry.rows for entry in writer.entries)
    consumed = {name: value for name, value in commit.consumed.items() if name != "compacts"}
    table.commit(
        Commit(number=table.next_number(), at=now(), files=files, consumed=consumed, counts=dict(commit.counts))
    )


def _batches(path: Path, old: _OldFile) -> Iterator[pa.RecordBatch]:
    """The rows of a file that is what was written."""
    try:
        if path.stat().st_size != old.bytes or not old.footer.fits(path):
            raise TableDamaged(f"{path} is not what was written", path=str(path))
        for number, chunk in enumerate(old.chunks):
            if not chunk.section.fits(path):
                raise TableDamaged(f"{path} is not what was written", path=str(path))
            if path.suffix == ".arrow":
                yield pa.ipc.open_file(str(path)).get_batch(number)
            else:
                file = pq.ParquetFile(str(path), page_checksum_verification=True, memory_map=False)
                yield from file.read_row_group(number, use_threads=False).to_batches()
    except (OSError, pa.ArrowException) as error:
        raise TableDamaged(f"{path} cannot be read: {error}", path=str(path)) from error


def _read_info(directory: Path) -> _OldInfo:
    try:
        return msgspec.json.decode((directory / "table.json").read_bytes(), type=_OldInfo)
    except (FileNotFoundError, NotADirectoryError):
        raise LogNotFound(f"There is no table in {directory}", path=str(directory)) from None
    except (OSError, *undecodable) as error:
        raise NotALog(f"{directory}/table.json is no table of ours: {error}") from error


def _commits(directory: Path) -> list[_OldCommit]:
    """Those that count, oldest first."""
    found: list[_OldCommit] = []
    for number, path in enumerate(sorted((directory / "commits").glob("*.json")), 1):
        try:
            sealed = msgspec.json.decode(path.read_bytes(), type=_Sealed)
            commit = msgspec.json.decode(bytes(sealed.commit), type=_OldCommit)
        except (OSError, *undecodable) as error:
            raise TableDamaged(f"{path} cannot be read: {error}", path=str(path)) from error
        if digest(bytes(sealed.commit)) != sealed.sha256 or commit.number != number:
            raise TableDamaged(f"{path} is not what was written, or one before it is missing", path=str(path))
        found = [commit] if commit.replaces else [*found, commit]
    return found
