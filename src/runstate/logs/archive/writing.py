"""Writing a pack: it counts all at once, when it is on the disk, was read back, and its manifest stands beside it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import PurePath
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from runstate.errors import LogDamaged
from runstate.logs.archive.directory import ArchiveDirectory, translated
from runstate.logs.archive.packs import ArchivedRun, Broken, Manifest, encode_line, sealed, unsealed
from runstate.logs.archive.reading import Copy, digest_of
from runstate.logs.log import BlobRef, Record, now
from runstate.storage.disk import Disk, File, Lock, replace_durably

if TYPE_CHECKING:
    from hashlib import _Hash

pack_bytes_max = 64 << 20
pack_runs_max = 10_000
"""A pack is closed at so many bytes, or so many runs. A run is never divided, so a long one makes a larger pack."""
_buffer_bytes = 1 << 20


class PackWriter:
    """One new pack. Its file is made by the first run; nobody sees it before `commit`."""

    def __init__(self, directory: ArchiveDirectory, model: str) -> None:
        self._directory, self._model = directory, model
        moment = now().translate(str.maketrans("", "", "-:."))
        self.name = f"{moment}-{secrets.token_hex(8)}"
        self.runs: list[ArchivedRun] = []
        self.size = 0
        self._digest = sha256()
        self._file: File | None = None
        self._lock: Lock | None = None

    @property
    def is_full(self) -> bool:
        return self.size >= pack_bytes_max or len(self.runs) >= pack_runs_max

    def add(
        self, stream: str, records: Iterable[Record], blobs: Iterable[BlobRef] | UnsetType = UNSET
    ) -> ArchivedRun | None:
        """Add a run; None if there are no records. If reading them fails, the pack stays as it was.

        `blobs` are those that the records refer to, if that is known. The archive must hold them already.

        Raises:
            Unfit: an event cannot be written.
            LogFull, LogFailed: the disk refused; the pack must be aborted.
        """
        file = self._opened()
        before, start = self._digest.copy(), self.size
        try:
            run = self._write(file, stream, records, UNSET if blobs is UNSET else tuple(sorted(blobs)))
        except BaseException:
            self._digest, self.size = before, start
            with translated():
                file.truncate(start)
            raise
        if run is not None:
            self.runs.append(run)
        return run

    def commit(self) -> list[Copy]:
        """Make the pack count. Once this returns, it survives a power cut, and has been read back.

        Raises:
            LogDamaged: the disk gave back something else than was written; the pack does not count.
            LogFull, LogFailed: the disk refused; the pack does not count, or is as it should be.
        """
        if not self.runs or self._file is None:
            self.abort()
            return []
        manifest = Manifest(self._model, self.size, self._digest.hexdigest(), self.runs)
        directory, disk, data = self._directory, self._directory.disk, sealed(manifest)
        try:
            with translated():
                self._file.sync()
                self._file.close()
                # Before the manifest: after a crash there must be no manifest without its pack.
                disk.sync_directory(directory.packs)
                _check_pack(disk, directory.pack(self.name), manifest)
                replace_durably(disk, directory.manifest(self.name), data)
                _check_manifest(disk, directory.manifest(self.name), manifest)
        except BaseException:
            self.abort()
            raise
        self._let_go()
        return [Copy(self.name, run) for run in self.runs]

    def abort(self) -> None:
        """Remove what was written, unless it counts already."""
        if self._file is not None:
            self._file.close()
            # If only the last sync has failed, the manifest may be durable: its pack must stay.
            if not self._directory.disk.exists(self._directory.manifest(self.name)):
                with suppress(OSError):
                    self._directory.disk.remove(self._directory.pack(self.name))
        self._let_go()

    def _opened(self) -> File:
        if self._file is None:
            with translated():
                # Held until the pack counts or is gone: whoever cleans up knows by it that somebody is at work.
                self._lock = self._directory.disk.lock(self._directory.lock_file(self.name))
                self._file = self._directory.disk.create(self._directory.pack(self.name))
        return self._file

    def _let_go(self) -> None:
        if self._lock is not None:
            with suppress(OSError):
                self._directory.disk.remove(self._directory.lock_file(self.name))
            self._lock.release()
        self._file = self._lock = None

    def _write(
        self, file: File, stream: str, records: Iterable[Record], blobs: tuple[BlobRef, ...] | UnsetType
    ) -> ArchivedRun | None:
        first = last = None
        digest, start, events, buffer = sha256(), self.size, 0, bytearray()
        for record in records:
            first, last, events = first or record, record, events + 1
            buffer += encode_line(record)
            if len(buffer) >= _buffer_bytes:
                self._put(file, bytes(buffer), digest)
                buffer.clear()
        self._put(file, bytes(buffer), digest)
        if first is None or last is None:
            return None
        return ArchivedRun(
            stream,
            first.tenant,
            first.seq,
            last.seq,
            events,
            first.persisted_at,
            last.persisted_at,
            start,
            self.size - start,
            digest.hexdigest(),
            blobs,
        )

    def _put(self, file: File, data: bytes, digest: _Hash) -> None:
        with translated():
            file.append(data)
        digest.update(data)
        self._digest.update(data)
        self.size += len(data)


def settle(directory: ArchiveDirectory, pack: str) -> None:
    """Make sure of a pack's manifest: whoever wrote it may have been killed, or refused, before its name was durable.

    Raises:
        LogFull, LogFailed: the disk refused; the manifest stays as it is.
        LogDamaged: it is not what was written.
    """
    path = directory.manifest(pack)
    with translated():
        data = directory.disk.read(path)
        try:
            unsealed(data, Manifest)
        except Broken as error:
            raise LogDamaged(f"{path}: {error}", file=str(path)) from error
        replace_durably(directory.disk, path, data)


def _check_pack(disk: Disk, path: PurePath, manifest: Manifest) -> None:
    with closing(disk.open(path, read_only=True)) as file:
        fits = file.size() == manifest.bytes and digest_of(file, 0, manifest.bytes) == manifest.sha256
        for run in manifest.runs if fits else ():
            fits = fits and digest_of(file, run.offset, run.bytes) == run.sha256
    if not fits:
        raise LogDamaged(f"{path} was read back, and is not what was written; its runs stay in the log", file=str(path))


def _check_manifest(disk: Disk, path: PurePath, manifest: Manifest) -> None:
    try:
        fits = unsealed(disk.read(path), Manifest) == manifest
    except Broken:
        fits = False
    if not fits:
        raise LogDamaged(f"{path} was read back, and is not what was written; its runs stay in the log", file=str(path))
