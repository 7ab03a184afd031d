"""Projected snapshots as versions of a Parquet table.

    DIR/manifest.json         the last versions: which files each consists of, the oldest first
    DIR/manifest.NAME.json    the same of what is projected aside
    DIR/data/*.parquet        rows sorted by stream; where files share a stream, the later file counts

Every `keep` publishes a version: one new file, and a manifest put in the place of the old one by a rename. A
reader gets the old version or the new one, and so does whoever looks after a crash. The new file takes in those before
it that are not much larger, so that there are O(log n) of them, and a row is written anew O(log n) times. A
row without a body says that its stream was deleted. Files of ours that the last versions do not need are removed.
"""

from __future__ import annotations

import io
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from runstate.errors import LogBusy, LogDamaged, LogNotFound, NotALog, RunstateError
from runstate.logs.log import now
from runstate.models.canonical import digest
from runstate.models.model import AnyModel
from runstate.pipeline.live.parquet_manifest import (
    DataFile,
    Manifest,
    check_is_sink,
    manifest_paths,
    own_files,
    read_manifest,
    versions_kept,
)
from runstate.sinks import Projected
from runstate.storage.directories import make_directories
from runstate.storage.disk import Lock as KernelLock
from runstate.storage.disk import LockBusy, RealDisk, refuse_links, replace_durably, write_new
from runstate.storage.target_directory import remove_own, writing_to

schema = pa.schema(
    [
        ("stream", pa.string()),
        ("model", pa.string()),
        ("version", pa.int64()),
        ("last_event_seq", pa.int64()),
        ("status", pa.string()),
        ("stale", pa.bool_()),
        ("projected_at", pa.string()),
        ("digest", pa.string()),
        ("applied", pa.int64()),
        ("observed", pa.int64()),
        ("born", pa.string()),
        ("body", pa.string()),
    ]
)
_growth = 2
"""A file is taken into the next one unless it has more than so many times the rows."""
_group_rows = 1024
"""Rows of a row group: what has to be read for a single one."""
_held_bytes_max = 64 << 20
_whole_bytes_max = 8 << 20
"""A file up to this size is read whole and held; of a larger one, only the groups that may have what is wanted."""
_lock_s = 10.0
_disk = RealDisk()
T = TypeVar("T")


class ParquetSink:
    """A sink in a directory. Several may share it, in several threads or processes, each for streams of its own."""

    def __init__(self, directory: Path, model: AnyModel, *, aside: str = "") -> None:
        """
        Raises:
            NotALog, LogTooNew: the directory holds something else, or a table of a newer Runstate.
        """
        self._directory, self._model, self._aside = directory, model, aside
        self._files = _files_in(directory / "data")
        self._manifest()
        check_is_sink(directory)

    def load(self, stream: str) -> Projected | None:
        return self.load_all([stream]).get(stream)

    def load_all(self, streams: Sequence[str]) -> dict[str, Projected]:
        """The rows of those streams that have one."""
        found = _retried(lambda: self._files.newest(self._manifest().files, streams))
        return {row["stream"]: _projected(row) for row in found if row["body"] is not None}

    def keep(self, rows: Sequence[Projected]) -> None:
        """
        Raises:
            LogBusy: somebody else is publishing, for longer than one can wait.
            LogFull, LogFailed: the directory cannot be written.
        """
        with self._publishing():
            before = self.load_all([row.stream for row in rows])
            newest = {row.stream: row for row in rows if not _is_older(row, before.get(row.stream))}
            if newest:
                self._publish([_columns(row) for row in newest.values()])

    def drop(self, stream: str) -> None:
        with self._publishing():
            if self.load(stream) is not None:
                gone = dict.fromkeys(schema.names)
                self._publish([{**gone, "stream": stream, "model": self._model.name, "projected_at": now()}])

    def switch(self) -> None:
        """Readers see what was projected aside as the next version of the table; it is one rename.

        What was not projected aside stays: another log's rows, or the last of a stream that is gone.
        """
        if not self._aside:
            return
        with self._publishing():
            aside, seen = self._manifest(), self._manifest("")
            if aside.versions:
                others = (file for file in seen.files if file not in aside.files)
                self._replace("", seen.published((*others, *aside.files)))
                _disk.remove(self._path(self._aside))
                _disk.sync_directory(self._directory)
            self._aside = ""

    # --- publishing ----------------------------------------------------------------------------------------

    def _publish(self, rows: list[dict[str, Any]]) -> None:
        manifest = self._manifest()
        files, size = list(manifest.files), len(rows)
        while files and files[-1].rows <= _growth * size:
            size += files.pop().rows
        taken = manifest.files[len(files) :]
        table = _newest_rows([*map(self._files.table, taken), pa.Table.from_pylist(rows, schema)])
        if not files:
            # Nothing is below it that a deletion would have to hide.
            table = table.filter(pc.is_valid(table["body"]))
        made = [self._files.write(table)] if table.num_rows else []
        self._replace(self._aside, manifest.published((*files, *made)))
        self._remove_unused()

    def _remove_unused(self) -> None:
        try:
            manifests = [read_manifest(path) for path in manifest_paths(self._directory)]
        except RunstateError:
            return  # A manifest that cannot be read may name any of the files.
        used = {file.name for each in manifests for version in each.versions for file in version.files}
        kept = {"data/", ".lock", *(f"data/{name}" for name in used)}
        remove_own(self._directory, own_files, keep=kept, disk=_disk)
        self._files.forget_but(used)

    @contextmanager
    def _publishing(self) -> Iterator[None]:
        with writing_to(self._directory):
            refuse_links(_disk, self._directory / "data")
            for directory in (self._directory, self._directory / "data"):
                make_directories(_disk, directory)
            lock = _locked(self._directory / ".lock")
            try:
                yield
            finally:
                lock.release()

    def _manifest(self, aside: str | None = None) -> Manifest:
        path = self._path(self._aside if aside is None else aside)
        try:
            found = read_manifest(path)
        except LogNotFound:
            return Manifest(self._model.name)
        if found.model != self._model.name:
            raise NotALog(f"{path} is of the model {found.model!r}, not {self._model.name!r}; choose another directory")
        return found

    def _replace(self, aside: str, manifest: Manifest) -> None:
        replace_durably(_disk, self._path(aside), msgspec.json.encode(manifest) + b"\n")

    def _path(self, aside: str) -> Path:
        return self._directory / (f"manifest.{aside}.json" if aside else "manifest.json")


class DataFiles:
    """The files of a table. They never change, so the small ones are held in memory. Threads may share it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: OrderedDict[str, pa.Table] = OrderedDict()
        self._lock = Lock()

    def newest(self, files: Sequence[DataFile], streams: Sequence[str]) -> list[dict[str, Any]]:
        """The newest row of each of the streams that has one."""
        wanted, found = pa.array(sorted(set(streams)), pa.string()), []
        for file in reversed(files):
            if not len(wanted):
                break
            rows = self._some(file, wanted)
            if rows.num_rows:
                found += rows.to_pylist()
                wanted = wanted.filter(pc.invert(pc.is_in(wanted, rows["stream"].combine_chunks())))
        return found

    def _some(self, file: DataFile, wanted: pa.Array) -> pa.Table:
        table = self.table(file) if file.bytes <= _whole_bytes_max else self._groups(file, wanted.to_pylist())
        return table.filter(pc.is_in(table["stream"], wanted))

    def _groups(self, file: DataFile, wanted: list[str]) -> pa.Table:
        """The row groups that may have one of the streams: rows are sorted, and each group knows its bounds."""
        with pq.ParquetFile(self._directory / file.name) as opened:
            bounds = (opened.metadata.row_group(group).column(0).statistics for group in range(opened.num_row_groups))
            chosen = [
                group
                for group, known in enumerate(bounds)
                if (place := bisect_left(wanted, known.min)) < len(wanted) and wanted[place] <= known.max
            ]
            return opened.read_row_groups(chosen).cast(schema)

    def table(self, file: DataFile) -> pa.Table:
        """All of a file.

        Raises:
            LogDamaged: its bytes are not those that were written.
        """
        with self._lock:
            if (held := self._held.get(file.name)) is not None:
                self._held.move_to_end(file.name)
                return held
        data = (self._directory / file.name).read_bytes()
        if digest(data) != file.sha256:
            raise LogDamaged(f"{self._directory / file.name} does not fit its digest", path=file.name)
        # In this thread alone: one of Arrow's own may still hold the bytes when the process ends, and letting go of
        # what is Python's would abort it then.
        rows = pq.ParquetFile(pa.BufferReader(data)).read(columns=schema.names, use_threads=False)
        return self._hold(file.name, rows.cast(schema))

    def write(self, table: pa.Table) -> DataFile:
        """A new file, flushed with its name."""
        buffer = io.BytesIO()
        pq.write_table(table, buffer, row_group_size=_group_rows, compression="zstd")
        data = buffer.getvalue()
        path = _disk.temp_name(self._directory / "rows").with_suffix(".parquet")
        write_new(_disk, path, data)
        _disk.sync_directory(self._directory)
        self._hold(path.name, table)
        return DataFile(path.name, table.num_rows, table.nbytes, digest(data))

    def forget_but(self, used: set[str]) -> None:
        with self._lock:
            for name in self._held.keys() - used:
                del self._held[name]

    def _hold(self, name: str, table: pa.Table) -> pa.Table:
        with self._lock:
            self._held[name] = table
            while self._held and sum(each.nbytes for each in self._held.values()) > _held_bytes_max:
                self._held.popitem(last=False)
        return table


@lru_cache(maxsize=8)
def _files_in(directory: Path) -> DataFiles:
    """Tasks that come one after the other in a worker of Spark share what they have read."""
    return DataFiles(directory)


def read_version(directory: Path, version: int | None = None, *, aside: str = "") -> pa.Table:
    """The newest row of every stream, sorted by stream: as of now, or of one of the last versions.

    Raises:
        LogNotFound: there is no such table, or no longer that version of it.
        NotALog, LogTooNew, LogDamaged: it is none of ours, of a newer Runstate, or no longer what was written.
    """
    path = directory / (f"manifest.{aside}.json" if aside else "manifest.json")

    def read() -> pa.Table:
        manifest = read_manifest(path)
        numbers = [each.number for each in manifest.versions]
        if version is not None and version not in numbers:
            raise LogNotFound(f"{directory} has no version {version}; it has {numbers[0]} to {numbers[-1]}")
        chosen = manifest.versions[-1 if version is None else numbers.index(version)]
        files = DataFiles(directory / "data")  # Not shared: what was held for others would hide damage.
        table = _newest_rows([schema.empty_table(), *map(files.table, chosen.files)])
        return table.filter(pc.is_valid(table["body"]))

    return _retried(read)


def _retried(read: Callable[[], T]) -> T:
    """Read, and once more if a file was removed meanwhile because newer versions have come.

    Raises:
        LogDamaged: a file is missing that is needed.
    """
    for _ in range(versions_kept):
        with suppress(FileNotFoundError):
            return read()
    try:
        return read()
    except FileNotFoundError as error:
        raise LogDamaged(f"{error.filename} is gone, and the manifest names it", path=str(error.filename)) from error


def _locked(path: Path) -> KernelLock:
    deadline = time.monotonic() + _lock_s
    while True:
        try:
            return _disk.lock(path)
        except LockBusy as error:
            if time.monotonic() > deadline:
                raise LogBusy(f"Somebody else is publishing to {path.parent}; try again") from error
            time.sleep(0.005)


def _newest_rows(tables: list[pa.Table]) -> pa.Table:
    """Of rows of one stream the last, and all of them sorted by stream."""
    whole = pa.concat_tables(tables)
    last = {stream: place for place, stream in enumerate(whole["stream"].to_pylist())}
    return whole.take(pa.array([last[stream] for stream in sorted(last)], pa.int64()))


def _is_older(row: Projected, before: Projected | None) -> bool:
    is_same = before is not None and (before.version, before.born) == (row.version, row.born)
    return is_same and before is not None and row.rank < before.rank


def _columns(row: Projected) -> dict[str, Any]:
    known = {name: getattr(row, name) for name in schema.names if name not in ("digest", "body")}
    return {**known, "digest": digest(row.body), "body": row.body.decode()}


def _projected(row: Mapping[str, Any]) -> Projected:
    known = {name: value for name, value in row.items() if name not in ("digest", "body")}
    return Projected(**known, body=row["body"].encode())
