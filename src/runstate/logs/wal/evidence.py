"""What a stream's directory holds beside its WAL, unpacked: checkpoints, archived entries, what was set aside.

A checkpoint may refer to blobs whose events a compaction has dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO

from runstate.errors import LogDamaged
from runstate.logs.blob_refs import ref_bytes
from runstate.logs.file_blobs import read_beside
from runstate.logs.wal.archive import segment_pattern
from runstate.logs.wal.compression import gunzip, unzstd
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
                source = BytesIO(data)
                pieces = unzstd(source) if ".zst" in name else gunzip(source) if name.endswith(".gz") else [data]
                yield from _overlapping(pieces)
            except ValueError as error:
                message = f"{name} of {files.stream!r} cannot be unpacked, and may refer to blobs: {error}"
                raise LogDamaged(message, stream=files.stream, file=name) from error


def _overlapping(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Each piece with the end of the one before it: a reference may begin there."""
    end = b""
    for piece in pieces:
        yield end + piece
        end = piece[1 - ref_bytes :]
