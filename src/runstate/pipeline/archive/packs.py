"""Packs between the two steps of an archiving job: what tasks have written, as the driver sees it.

Tasks copy runs to packs and delete nothing. The driver then looks at every file of them for itself, and only what it
finds just as the tasks did is deleted from the log. What is to be deleted stands in a file beside the archive's own
until the job ends; if the job is killed, the next one removes it, and finds the packs.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path, PurePath

import msgspec

from runstate.errors import BlobNotFound, LogDamaged
from runstate.logs.archive.directory import ArchiveDirectory, translated
from runstate.logs.archive.packs import INFO, Broken, Manifest, unsealed
from runstate.logs.archive.reading import Copy, digest_of
from runstate.logs.log import BlobRef
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.spark.shared_storage import StorageNotShared
from runstate.storage.disk import RealDisk, write_private


class SeenFile(msgspec.Struct, frozen=True, array_like=True):
    """A file as one process sees it."""

    path: str
    bytes: int
    sha256: str


class SeenPack(msgspec.Struct, frozen=True):
    """A pack with runs that are to be deleted, as the task on `host` sees it."""

    name: str
    host: str
    is_new: bool
    """Whether this job has written it: then all of its runs are meant."""
    streams: list[str] | None
    """Those that are meant; None means all."""
    files: list[SeenFile]


class Deletions(msgspec.Struct, frozen=True):
    """What may be deleted from the log."""

    written: list[str]
    """Packs of this job."""
    held: dict[str, list[str] | None]
    """Packs of earlier ones, with the streams that are meant; None means all."""


def seen_packs(
    directory: ArchiveDirectory, written: Sequence[str], held: Mapping[str, Sequence[str]]
) -> Iterator[SeenPack]:
    """Tell the driver of packs, in a task."""
    host = socket.gethostname()
    for name in written:
        yield SeenPack(name, host, True, None, _seen(directory, name))
    for name, streams in held.items():
        is_all = {run.stream for run in _manifest(directory, name).runs} == set(streams)
        yield SeenPack(name, host, False, None if is_all else list(streams), _seen(directory, name))


def confirm_packs(directory: ArchiveDirectory, packs: Iterable[SeenPack]) -> Deletions:
    """What may be deleted: all that the tasks tell of, if every file of it is here as they see it.

    Raises:
        StorageNotShared: a file is not here, or is another one.
    """
    written: list[str] = []
    held: dict[str, list[str] | None] = {}
    confirmed: set[str] = set()
    for pack in packs:
        _confirm_files(pack.files, pack.host)
        _confirm_blobs(directory, pack, confirmed)
        if pack.is_new:
            written.append(pack.name)
        else:
            before = held.get(pack.name, [])
            held[pack.name] = None if before is None or pack.streams is None else [*before, *pack.streams]
    return Deletions(written, held)


@contextmanager
def kept_deletions(directory: ArchiveDirectory, deletions: Deletions) -> Iterator[str]:
    """Keep in a file what may be deleted, for as long as tasks do so. Yields its path."""
    path = Path(RealDisk().temp_name(directory.root / INFO))
    write_private(path, msgspec.json.encode(deletions))
    try:
        yield str(path)
    finally:
        path.unlink(missing_ok=True)


def copies_in(directory: ArchiveDirectory, path: str, shard: Shard) -> tuple[list[Copy], list[Copy]]:
    """The runs of a shard that may be deleted: those that this job has archived, and those that others have.

    Raises:
        LogDamaged: a manifest is not what was confirmed.
    """
    deletions = msgspec.json.decode(Path(path).read_bytes(), type=Deletions)
    written = [copy for name in deletions.written for copy in _copies(directory, name, None, shard)]
    held = [copy for name, streams in deletions.held.items() for copy in _copies(directory, name, streams, shard)]
    return written, held


def _copies(directory: ArchiveDirectory, name: str, streams: list[str] | None, shard: Shard) -> Iterator[Copy]:
    wanted = None if streams is None else set(streams)
    for run in _manifest(directory, name).runs:
        is_meant = wanted is None or run.stream in wanted
        if is_meant and run.stream > shard.after and (shard.until is None or run.stream <= shard.until):
            yield Copy(name, run)


def _manifest(directory: ArchiveDirectory, name: str) -> Manifest:
    path = directory.manifest(name)
    with translated():
        try:
            return unsealed(directory.disk.read(path), Manifest)
        except Broken as error:
            raise LogDamaged(f"{path}: {error}", file=str(path)) from error


def _seen(directory: ArchiveDirectory, name: str) -> list[SeenFile]:
    with translated():
        return [_seen_file(directory.manifest(name)), _seen_file(directory.pack(name))]


def _seen_file(path: PurePath) -> SeenFile:
    with closing(RealDisk().open(path, read_only=True)) as file:
        size = file.size()
        return SeenFile(str(path), size, digest_of(file, 0, size))


def _confirm_files(files: Iterable[SeenFile], host: str) -> None:
    for told in files:
        try:
            found = _seen_file(Path(told.path))
        except OSError as error:
            raise _not_shared(told.path, host, error.strerror or str(error)) from error
        if found.bytes != told.bytes:
            raise _not_shared(told.path, host, f"{found.bytes} bytes here, {told.bytes} there")
        if found != told:
            raise _not_shared(told.path, host, "other bytes")


def _confirm_blobs(directory: ArchiveDirectory, pack: SeenPack, confirmed: set[str]) -> None:
    wanted = None if pack.streams is None else set(pack.streams)
    for run in _manifest(directory, pack.name).runs:
        for ref in run.blobs or () if wanted is None or run.stream in wanted else ():
            if ref not in confirmed:
                try:
                    with translated():
                        directory.blobs.get(BlobRef(ref))
                except (BlobNotFound, LogDamaged) as error:
                    raise _not_shared(str(directory.root / "blobs" / ref), pack.host, str(error)) from error
                confirmed.add(ref)


def _not_shared(path: str, host: str, why: str) -> StorageNotShared:
    return StorageNotShared(
        f"The driver does not see {path} as {host} does, which has archived runs to it: {why}. Nothing was deleted "
        "from the log. Give a directory that is mounted at the same place on every machine",
        host=host,
        path=path,
    )
