"""`snapshot.json`: a state on file, perhaps compressed (`.zst`).

    {"format":1,"sum":"8 hex","model":"…","version":1,"seq":7,"created_at":"…","digest":"sha256","state":STATE}

`digest` is of STATE, the model's own bytes; `sum` is CRC-32C over what stands between it and STATE. Format 0 is the
seed's, without checksums: older formats are brought up step by step, a newer one is refused and left as it is.
A checkpoint keeps the one before it as `….previous`.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import PurePath
from typing import NamedTuple

import msgspec
from google_crc32c import value as crc32c

from runstate.errors import SnapshotTooNew
from runstate.logs.log import StoredSnapshot, now
from runstate.logs.wal.compression import compressed, decompressed
from runstate.logs.wal.files import PREVIOUS, StreamFiles, read_or_none
from runstate.models.canonical import digest
from runstate.storage.directories import names_in
from runstate.storage.disk import Disk

snapshot_format = 1
_form = re.compile(rb'{"format":(\d{1,9}),')
_own_name = re.compile(rf"snapshot\..*json(\.zst)?({re.escape(PREVIOUS)})?")
_piece_bytes = 1 << 20


class CorruptSnapshot(Exception):
    """A snapshot file that nobody wrote so."""

    def __init__(self, path: PurePath, reason: str) -> None:
        super().__init__(f"{path.name} is no snapshot: {reason}")
        self.path = path


class _Header(msgspec.Struct, gc=False):
    model: str
    version: int
    seq: int
    created_at: str
    digest: str


class _Seeds(msgspec.Struct, forbid_unknown_fields=True):
    seq: int
    state: msgspec.Raw
    created_at: str = ""


class Kept(NamedTuple):
    """The snapshots of one model that are on file."""

    intact: list[tuple[PurePath, StoredSnapshot]]
    """The newest first: it counts. The next one stands in for it when it is damaged."""
    corrupt: list[CorruptSnapshot]

    @property
    def newest(self) -> StoredSnapshot | None:
        return self.intact[0][1] if self.intact else None


def write_snapshot(disk: Disk, files: StreamFiles, snapshot: StoredSnapshot, *, zstd: bool) -> None:
    """Put a snapshot into its file, in place of the newest; once this returns, it survives a power cut.

    Raises:
        OSError: the old one stands, or after a crash either of them.
    """
    _replace(disk, files, snapshot, None, zstd=zstd)


def write_checkpoint(
    disk: Disk, files: StreamFiles, snapshot: StoredSnapshot, kept: Kept, *, zstd: bool
) -> StoredSnapshot | None:
    """`write_snapshot`, and the newest one until now stays as the previous one.

    Returns the previous one, which was read and found intact: only what is before it may be removed. None: there is
    none that this version of the model wrote.

    Raises:
        OSError: as `write_snapshot`.
    """
    # One beyond the end of the stream, or of another version, leads nowhere.
    leading = [(path, one) for path, one in kept.intact if one.seq <= snapshot.seq and one.version == snapshot.version]
    path, previous = leading[0] if leading else (None, None)
    is_newest = path is not None and not path.name.endswith(PREVIOUS)
    _replace(disk, files, snapshot, path if is_newest else None, zstd=zstd)
    return previous


def _replace(
    disk: Disk, files: StreamFiles, snapshot: StoredSnapshot, previous: PurePath | None, *, zstd: bool
) -> None:
    header = _Header(snapshot.model, snapshot.version, snapshot.seq, now(), snapshot.digest)
    data = _rendered(header, snapshot.body)
    plain = files.snapshot(snapshot.model)
    path, other = (_packed(plain), plain) if zstd else (plain, _packed(plain))
    temp = _write_proven(disk, path, compressed(data) if zstd else data, snapshot.model)
    needless = [other]
    try:
        if previous is not None:
            disk.rename(previous, _previous(previous))
            needless.append(_previous(other if previous == path else path))
        disk.rename(temp, path)
    except BaseException:
        with suppress(OSError):
            disk.remove(temp)
        raise
    disk.sync_directory(path.parent)
    for older in needless:
        # Where the other form cannot be removed, its lower seq tells that it is older.
        with suppress(OSError):
            disk.remove(older)


def _write_proven(disk: Disk, path: PurePath, data: bytes, model: str) -> PurePath:
    """Write a snapshot to a temporary file, and read it back. In pieces: one flush of a large file would hold up the
    flushes of all writers beside it.

    Raises:
        OSError: it cannot be written, or what is read is not what was written.
    """
    temp = disk.temp_name(path)
    file = disk.create(temp)
    try:
        with closing(file):
            for offset in range(0, len(data), _piece_bytes):
                file.append(data[offset : offset + _piece_bytes])
                file.sync()
        _decoded(disk.read(temp), path, model)
    except BaseException as error:
        with suppress(OSError):
            disk.remove(temp)
        if isinstance(error, CorruptSnapshot):
            message = f"what was read back of a new snapshot is not what was written: {error}"
            raise OSError(errno.EIO, message, str(path)) from error
        raise
    return temp


def find_snapshots(disk: Disk, files: StreamFiles, model: str) -> Kept:
    """The snapshots of a model.

    Raises:
        SnapshotTooNew: a newer Runstate wrote one.
    """
    plain = files.snapshot(model)
    kept = Kept([], [])
    for paths in ((plain, _packed(plain)), (_previous(plain), _previous(_packed(plain)))):
        found = []
        for path in paths:
            try:
                snapshot = read_snapshot(disk, path, model)
            except CorruptSnapshot as error:
                kept.corrupt.append(error)
            else:
                found += [] if snapshot is None else [(path, snapshot)]
        kept.intact.extend(sorted(found, key=lambda one: -one[1].seq))
    return kept


def snapshot_paths(disk: Disk, files: StreamFiles) -> list[PurePath]:
    """All snapshot files of a stream."""
    return [files.home / name for name in names_in(disk, files.home) if _own_name.fullmatch(name)]


def read_snapshot(disk: Disk, path: PurePath, model: str | None) -> StoredSnapshot | None:
    """The snapshot in a file, of this model or of any; None where the file is gone.

    Raises:
        SnapshotTooNew, CorruptSnapshot: what is wrong with it.
    """
    data = read_or_none(disk, path)
    return None if data is None else _decoded(data, path, model)


def checkpointed_model(disk: Disk, files: StreamFiles, model: str) -> str | None:
    """The model whose snapshots lead up to what a stream begins with: its own, if that ever had one; None: any."""
    own = files.snapshot(model).name if model else ""
    return model if own and any(name.startswith(own) for name in names_in(disk, files.home)) else None


def snapshot_seqs(disk: Disk, files: StreamFiles, model: str | None = None) -> list[int]:
    """The seqs of all snapshots of a model, or of all models, that can be read."""
    found = []
    for path in snapshot_paths(disk, files):
        with suppress(SnapshotTooNew, CorruptSnapshot):
            snapshot = read_snapshot(disk, path, model)
            found.append(0 if snapshot is None else snapshot.seq)
    return found


def _packed(path: PurePath) -> PurePath:
    return path.with_name(path.name + ".zst")


def _previous(path: PurePath) -> PurePath:
    return path.with_name(path.name + PREVIOUS)


def _rendered(header: _Header, body: bytes) -> bytes:
    members = msgspec.json.encode(header)[1:-1]
    return b'{"format":%d,"sum":"%08x",%b,"state":%b}\n' % (snapshot_format, crc32c(members), members, body)


def _decoded(data: bytes, path: PurePath, model: str | None) -> StoredSnapshot:
    try:
        data = decompressed(data) if path.name.removesuffix(PREVIOUS).endswith(".zst") else data
        # By its beginning alone: to parse a large state would hold up every thread.
        form = int(match[1]) if (match := _form.match(data)) else 0
        if form > snapshot_format:
            raise SnapshotTooNew(
                f"{path} has the format {form}, this Runstate reads up to {snapshot_format}; upgrade Runstate to go on "
                "with it. It was left untouched",
                path=str(path),
                format=form,
            )
        for step in range(form, snapshot_format):
            data = _migrations[step](data)
        return _parsed(data, model)
    except (ValueError, RecursionError, KeyError) as error:  # msgspec's errors are ValueErrors.
        raise CorruptSnapshot(path, str(error)) from error


def _parsed(data: bytes, model: str | None) -> StoredSnapshot:
    head, _, rest = data.partition(b',"state":')
    members, body = head[len(b'{"format":1,"sum":"00000000",') :], rest.removesuffix(b"}\n")
    header = msgspec.json.decode(b"{%b}" % members, type=_Header)
    if data != b'{"format":%d,"sum":"%08x",%b,"state":%b}\n' % (snapshot_format, crc32c(members), members, body):
        raise ValueError("it does not fit its checksum")
    if header.digest != digest(body):
        raise ValueError("the state does not have its digest")
    if model is not None and header.model != model:
        raise ValueError(f"it is of the model {header.model!r}")
    return StoredSnapshot(header.model, header.version, header.seq, header.digest, body)


def _from_seed(data: bytes) -> bytes:
    """Format 0, the seed's `{"seq":…,"state":…,"created_at":…}`: always the daemon's, of its first version."""
    seeds = msgspec.json.decode(data, type=_Seeds)
    body = bytes(seeds.state)
    return _rendered(_Header("daemon", 1, seeds.seq, seeds.created_at, digest(body)), body)


_migrations: dict[int, Callable[[bytes], bytes]] = {0: _from_seed}
"""Each brings a file from its format to the next one."""
