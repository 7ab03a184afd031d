"""What a stream's directory holds beside its WAL, unpacked: checkpoints, archived entries, what was set aside.

A checkpoint may refer to blobs whose events a compaction has dropped.
"""

from __future__ import annotations

from collections.abc import Iterator

from runstate.errors import LogDamaged
from runstate.logs.file_blobs import read_beside
from runstate.logs.wal.archive import segment_pattern
from runstate.logs.wal.compression import decompressed, gunzipped
from runstate.logs.wal.files import WAL, StreamFiles, own_files
from runstate.storage.disk import Disk


def read_evidence(disk: Disk, files: StreamFiles) -> Iterator[bytes]:
    """
    Raises:
        LogDamaged: a file cannot be unpacked.
        OSError: one cannot be read.
    """
    for directory, own in ((files.home, own_files), (files.archive, segment_pattern)):
        for name, data in read_beside(disk, directory, own, WAL):
            try:
                yield decompressed(data) if ".zst" in name else gunzipped(data) if name.endswith(".gz") else data
            except ValueError as error:
                message = f"{name} of {files.stream!r} cannot be unpacked, and may refer to blobs: {error}"
                raise LogDamaged(message, stream=files.stream, file=name) from error
