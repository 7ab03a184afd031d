"""Bytes under their digest: `.blobs/sha256/<digest>`, shared by all runs of a log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePath

from runstate.logs.disk import TEMP_SUFFIX, Disk, replace_durably
from runstate.logs.log import BlobRef, Finding, blob_digest, checked_blob
from runstate.models.canonical import digest


class Blobs:
    """The blobs of one log."""

    def __init__(self, disk: Disk, root: PurePath) -> None:
        self._disk, self._root = disk, root
        self._home = root / ".blobs" / "sha256"
        self._has_home = False

    def put(self, data: bytes) -> BlobRef:
        """
        Raises:
            OSError: it may not be kept.
        """
        name = digest(data)
        path = self._home / name
        if not self._has_home:
            self._make_home()
        if self._held(path) == data:
            # Whoever has put it there may have been killed before its name was sure.
            self._disk.sync_directory(self._home)
        else:
            replace_durably(self._disk, path, data)
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
                yield Finding(code="blob.digest_mismatch", message=f"The blob sha256:{name} was changed")

    def _held(self, path: PurePath) -> bytes | None:
        try:
            return self._disk.read(path)
        except FileNotFoundError:
            return None

    def _make_home(self) -> None:
        for path in (self._root / ".blobs", self._home):
            with suppress(FileExistsError):
                self._disk.make_directory(path)
            self._disk.sync_directory(path.parent)
        self._has_home = True
