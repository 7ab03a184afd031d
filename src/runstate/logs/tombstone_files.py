"""Tombstones of file logs: one small JSON file per deleted stream, in a directory below the log's root.

A tombstone is durable before the stream's directory is removed, so no crash leaves a deleted stream without one. It
counts until its stream is wholly restored; then it is removed. Who writes or removes one holds the lock of its stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePath

import msgspec

from runstate.errors import InvalidStream, LogDamaged, StreamNotFound
from runstate.logs.log import Finding, StreamInfo
from runstate.logs.stream_directories import directory_name
from runstate.logs.tombstones import Tombstone, decode_tombstone, encode_tombstone, if_counting
from runstate.storage.directories import make_durable_directory, names_in
from runstate.storage.disk import Disk, refuse_links, replace_durably, temp_target

TOMBSTONES = ".tombstones"


def find_tombstone(disk: Disk, root: PurePath, stream: str) -> Tombstone | None:
    """The tombstone of a stream, or None. It may be left over from a stream that was restored: see `if_counting`.

    Raises:
        LogDamaged: the file is not a tombstone of this stream.
        OSError: it cannot be read.
    """
    return _read(disk, _path(root, stream))


def counting_tombstone(disk: Disk, root: PurePath, stream: str, info: StreamInfo | None) -> Tombstone | None:
    """The tombstone of a stream that is not wholly restored; None of any other. Raises as `find_tombstone`."""
    return if_counting(find_tombstone(disk, root, stream), 0 if info is None else info.last_seq)


def check_deletable(disk: Disk, root: PurePath, stream: str, tombstone: Tombstone | None, *, has_events: bool) -> None:
    """
    Raises:
        StreamNotFound: the stream has no events, and no tombstone that this deletion would remove.
    """
    if not has_events and (tombstone is not None or disk.kind(_path(root, stream)) is None):
        raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)


def replace_tombstone(disk: Disk, root: PurePath, stream: str, tombstone: Tombstone | None) -> None:
    """Keep a tombstone in place of an earlier one; with None, remove it. Once this returns, that survives a power cut.

    Raises:
        OSError: the earlier one may be there, or the new one.
    """
    path = _path(root, stream)
    refuse_links(disk, path.parent)
    if tombstone is not None:
        make_durable_directory(disk, path.parent)
        replace_durably(disk, path, encode_tombstone(tombstone))
    elif disk.exists(path.parent):
        with suppress(FileNotFoundError):
            disk.remove(path)
        # Even if nothing was there: the process that removed it may have been killed before this.
        disk.sync_directory(path.parent)


def drop_if_restored(disk: Disk, root: PurePath, stream: str, last_seq: int) -> None:
    """Remove the tombstone of a stream that was restored up to its last event.

    Raises:
        LogDamaged, OSError: it is still there. It no longer counts.
    """
    tombstone = find_tombstone(disk, root, stream)
    if tombstone is not None and if_counting(tombstone, last_seq) is None:
        replace_tombstone(disk, root, stream, None)


def verify_tombstones(disk: Disk, root: PurePath) -> Iterator[Finding]:
    home = root / TOMBSTONES
    for name in names_in(disk, home):
        if temp_target(name) is None:
            try:
                _read(disk, home / name)
            except LogDamaged as error:
                yield Finding(
                    code="log.tombstone_damaged", message=str(error), details={"file": f"{TOMBSTONES}/{name}"}
                )


def _path(root: PurePath, stream: str) -> PurePath:
    return root / TOMBSTONES / f"{directory_name(stream)}.json"


def _read(disk: Disk, path: PurePath) -> Tombstone | None:
    try:
        tombstone = decode_tombstone(disk.read(path))
        if _path(path.parent.parent, tombstone.stream) == path:
            return tombstone
        reason = f"it names the stream {tombstone.stream[:80]!r}"
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, InvalidStream) as error:
        reason = str(error)
    raise LogDamaged(
        f"{path} does not describe the deleted stream that it is named for: {reason}. Restore the file from a backup; "
        "or remove it, if new events may start that stream again at seq 1",
        path=str(path),
    )
