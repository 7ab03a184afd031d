"""Bytes under their digest, one file each: `sha256/<digest>` in a directory that all streams of a log share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from time import time

from runstate.logs.blob_collection import Collected, Marked, refresh_s
from runstate.logs.blob_refs import blob_digest, changed_blob, checked_blob
from runstate.logs.log import BlobRef, Finding
from runstate.models.canonical import digest
from runstate.storage.directories import lock_in, make_durable_directory
from runstate.storage.disk import TEMP, TEMP_SUFFIX, Disk, refuse_links, replace_durably

_unfinished_pattern = re.compile(rf"[0-9a-f]{{64}}{TEMP}")
"""What a killed writer leaves of a blob."""


class Blobs:
    """The blobs of one log."""

    def __init__(self, disk: Disk, directory: PurePath, lock: PurePath | None = None) -> None:
        """The directory is made with the first blob; the one above it is there.

        `lock` is shared by those who put a blob, and held by the one who removes some. None: the log sees to it.
        """
        self._disk, self._home, self._lock = disk, directory / "sha256", lock
        self._has_home = False
        self._unsure: set[str] = set()

    def put(self, data: bytes) -> BlobRef:
        """
        Raises:
            LockBusy: blobs are being removed.
            OSError: it may not be kept.
        """
        name = digest(data)
        if not self._has_home:
            self._make_home()
        with self._locked(shared=True):
            try:
                self._keep(name, data)
            except OSError:
                # A name that a sync has failed on is never sure again; only a new one is.
                self._unsure.add(name)
                raise
        self._unsure.discard(name)
        return BlobRef(f"sha256:{name}")

    def _keep(self, name: str, data: bytes) -> None:
        path = self._home / name
        is_held = name not in self._unsure and self._held(path) == data
        # One that was put long ago is written anew: its time keeps it until its event is stored.
        if is_held and (self._lock is None or time() - self._disk.modified_at(path) < refresh_s):
            # Whoever has put it there may have been killed before its name was sure.
            self._disk.sync_directory(self._home)
        else:
            replace_durably(self._disk, path, data)

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

    def collect(self, marked: Marked, *, dry_run: bool) -> Collected:
        """Remove what is not marked and was put long enough ago, and what killed writers have left of blobs.

        Raises:
            LockBusy: somebody is putting blobs. Nothing was removed.
            OSError: the blobs stand behind a link: they are another log's. Nothing was removed.
        """
        refuse_links(self._disk, self._home.parent, self._home)
        if not self._disk.exists(self._home):
            return marked.sort((), dry_run=dry_run)
        with self._locked(shared=False):
            names = self._disk.names(self._home)
            # What does not have a blob's name was put there by somebody else, who may need it.
            refs = {name: ref for name in names if blob_digest(ref := BlobRef(f"sha256:{name}"))}
            unfinished = [name for name in names if _unfinished_pattern.fullmatch(name)]
            old = {n: self._disk.modified_at(self._home / n) < marked.put_before for n in (*refs, *unfinished)}
            sizes = ((ref, self._disk.stamp(self._home / name)[0], old[name]) for name, ref in refs.items())
            collected = marked.sort(sizes, dry_run=dry_run)
            if not dry_run:
                removed = [ref.removeprefix("sha256:") for ref in collected.removed]
                for name in (*removed, *(name for name in unfinished if old[name])):
                    self._disk.remove(self._home / name)
                self._disk.sync_directory(self._home)
        return collected

    @contextmanager
    def _locked(self, *, shared: bool) -> Iterator[None]:
        if self._lock is None:
            yield
            return
        lock = lock_in(self._disk, self._lock, shared=shared)
        try:
            yield
        finally:
            lock.release()

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
