"""Bytes under their digest, one file each: `sha256/<digest>` in a directory that all streams of a log share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from runstate.logs.blob_refs import blob_digest, changed_blob, checked_blob
from runstate.logs.log import BlobRef, Finding
from runstate.models.canonical import digest
from runstate.storage.directories import make_durable_directory
from runstate.storage.disk import TEMP_SUFFIX, Disk, refuse_links, replace_durably


class Blobs:
    """The blobs of one log."""

    def __init__(self, disk: Disk, directory: PurePath) -> None:
        """The directory is made with the first blob; the one above it is there."""
        self._disk, self._home = disk, directory / "sha256"
        self._has_home = False
        self._unsure: set[str] = set()

    def put(self, data: bytes) -> BlobRef:
        """
        Raises:
            OSError: it may not be kept.
        """
        name = digest(data)
        path = self._home / name
        if not self._has_home:
            self._make_home()
        try:
            if name not in self._unsure and self._held(path) == data:
                # Whoever has put it there may have been killed before its name was sure.
                self._disk.sync_directory(self._home)
            else:
                replace_durably(self._disk, path, data)
        except OSError:
            # A name that a sync has failed on is never sure again; only a new one is.
            self._unsure.add(name)
            raise
        self._unsure.discard(name)
        return BlobRef(f"sha256:{name}")

    def get(self, ref: BlobRef) -> bytes:
        """
        Raises:
            BlobNotFound, LogDamaged: there is none, or its bytes have changed.
        """
        name = blob_digest(ref)
        return checked_blob(ref, self._held(self._home / name) if name else None)

    def verify(self) -> Iterator[Finding]:
        try:
            names = self._disk.names(self._home)
        except FileNotFoundError:
            return
        for name in names:
            if not name.endswith(TEMP_SUFFIX) and digest(self._held(self._home / name) or b"") != name:
                yield changed_blob(name)

    def _held(self, path: PurePath) -> bytes | None:
        try:
            return self._disk.read(path)
        except FileNotFoundError:
            return None

    def _make_home(self) -> None:
        refuse_links(self._disk, self._home.parent, self._home)
        for path in (self._home.parent, self._home):
            make_durable_directory(self._disk, path)
        self._has_home = True
