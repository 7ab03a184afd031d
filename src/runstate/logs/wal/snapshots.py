"""`snapshot.json`: a state on file, perhaps compressed (`.zst`).

    {"format":1,"sum":"8 hex","model":"…","version":1,"seq":7,"created_at":"…","digest":"sha256","state":STATE}

`digest` is of STATE, the model's own bytes; `sum` is CRC-32C over what stands between it and STATE. Format 0 is the
seed's, without checksums: older formats are brought up step by step, a newer one is refused and left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import PurePath

import msgspec
from google_crc32c import value as crc32c

from runstate.errors import SnapshotTooNew
from runstate.logs.directories import names_in
from runstate.logs.disk import Disk
from runstate.logs.log import StoredSnapshot, now
from runstate.logs.wal.compression import compressed, decompressed
from runstate.logs.wal.files import StreamFiles, read_or_none
from runstate.models.canonical import digest

snapshot_format = 1
_form = re.compile(rb'{"format":(\d{1,9}),')
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


def write_snapshot(disk: Disk, files: StreamFiles, snapshot: StoredSnapshot, *, zstd: bool) -> None:
    """Put a snapshot into its file; once this returns, it survives a power cut.

    Raises:
        OSError: the old one stands, or after a crash either of them.
    """
    header = _Header(snapshot.model, snapshot.version, snapshot.seq, now(), snapshot.digest)
    data = _rendered(header, snapshot.body)
    plain = files.snapshot(snapshot.model)
    packed = _packed(plain)
    _replace_gently(disk, packed if zstd else plain, compressed(data) if zstd else data)
    # The other form is older now. Where it cannot be removed, its lower seq tells.
    with suppress(OSError):
        disk.remove(plain if zstd else packed)


def _replace_gently(disk: Disk, path: PurePath, data: bytes) -> None:
    """`replace_durably` in pieces: one flush of a large file would hold up the flushes of all writers beside it."""
    temp = disk.temp_name(path)
    file = disk.create(temp)
    try:
        with closing(file):
            for offset in range(0, len(data), _piece_bytes):
                file.append(data[offset : offset + _piece_bytes])
                file.sync()
        disk.rename(temp, path)
    except BaseException:
        with suppress(OSError):
            disk.remove(temp)
        raise
    disk.sync_directory(path.parent)


def find_snapshot(disk: Disk, files: StreamFiles, model: str) -> StoredSnapshot | None:
    """The newest snapshot of a model.

    Raises:
        SnapshotTooNew: a newer Runstate wrote it.
        CorruptSnapshot: what is in the file is no snapshot.
    """
    found: StoredSnapshot | None = None
    for path in (files.snapshot(model), _packed(files.snapshot(model))):
        snapshot = _read(disk, path, model)
        if snapshot is not None and (found is None or snapshot.seq > found.seq):
            found = snapshot
    return found


def snapshot_paths(disk: Disk, files: StreamFiles) -> list[PurePath]:
    """All snapshot files of a stream."""
    names = names_in(disk, files.home)
    return [files.home / n for n in names if n.startswith("snapshot.") and n.endswith((".json", ".json.zst"))]


def check_snapshot(disk: Disk, path: PurePath) -> int | None:
    """The seq of the snapshot in a file; None where it is gone.

    Raises:
        SnapshotTooNew, CorruptSnapshot: what is wrong with it.
    """
    snapshot = _read(disk, path, None)
    return None if snapshot is None else snapshot.seq


def snapshot_seqs(disk: Disk, files: StreamFiles) -> list[int]:
    """The seqs of all snapshots that can be read."""
    found = []
    for path in snapshot_paths(disk, files):
        with suppress(SnapshotTooNew, CorruptSnapshot):
            found.append(check_snapshot(disk, path) or 0)
    return found


def _packed(path: PurePath) -> PurePath:
    return path.with_name(path.name + ".zst")


def _rendered(header: _Header, body: bytes) -> bytes:
    members = msgspec.json.encode(header)[1:-1]
    return b'{"format":%d,"sum":"%08x",%b,"state":%b}\n' % (snapshot_format, crc32c(members), members, body)


def _read(disk: Disk, path: PurePath, model: str | None) -> StoredSnapshot | None:
    data = read_or_none(disk, path)
    if data is None:
        return None
    try:
        data = decompressed(data) if path.suffix == ".zst" else data
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
