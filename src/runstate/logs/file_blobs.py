"""The blobs of a log that keeps them in files, as a part of its port."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING, cast

from runstate.logs.blob_collection import Collected, mark_blobs
from runstate.logs.blob_refs import mentioned_refs
from runstate.logs.blobs import Blobs
from runstate.logs.handle import Handle
from runstate.logs.log import BlobRef
from runstate.storage.directories import names_in
from runstate.storage.disk import Disk
from runstate.storage.disk_errors import translated

if TYPE_CHECKING:
    from runstate.logs.log import EventLog


class FileBlobs(Handle, ABC):
    """Puts, gives and collects the blobs of a log of files."""

    _blobs: Blobs

    @abstractmethod
    def _beside_events(self) -> Iterator[bytes]:
        """What the log keeps of its streams beside their events, and what may refer to blobs: evidence, snapshots."""

    def put_blob(self, data: bytes) -> BlobRef:
        self._check_open()
        with translated():
            return self._blobs.put(bytes(data))

    def get_blob(self, ref: BlobRef) -> bytes:
        self._check_open()
        with translated():
            return self._blobs.get(ref)

    def collect_blobs(self, *, dry_run: bool = False, grace_s: float | None = None) -> Collected:
        self._check_open()
        marked = mark_blobs(cast("EventLog", self), grace_s)
        with translated():
            for data in self._beside_events():
                marked.refs.update(mentioned_refs(data))
            return self._blobs.collect(marked, dry_run=dry_run)


def read_beside(disk: Disk, home: PurePath, own: re.Pattern[str], events: str) -> Iterator[tuple[str, bytes]]:
    """The files of a stream's directory that match `own`, by name, but for its events.

    Raises:
        OSError: one of them cannot be read.
    """
    for name in names_in(disk, home):
        if name != events and own.fullmatch(name):
            try:
                yield name, disk.read(home / name)
            except FileNotFoundError:
                if name in names_in(disk, home):  # A link to a place that is not mounted now.
                    raise
