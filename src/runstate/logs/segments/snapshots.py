"""A model's snapshot of a session, in a file of its own: a sealed line that tells what it is, then its bytes."""

from __future__ import annotations

from contextlib import closing

import msgspec

from runstate.errors import LogDamaged
from runstate.logs.log import StoredSnapshot
from runstate.logs.sealed import sealed, unsealed
from runstate.logs.segments.files import SessionFiles, model_of
from runstate.logs.segments.reading import Reader
from runstate.models.canonical import digest
from runstate.storage.directories import names_in
from runstate.storage.disk import Disk, replace_durably

_label_bytes_max = 4096


class Kept(msgspec.Struct, frozen=True):
    """A snapshot on file, and which session it is of."""

    snapshot: StoredSnapshot
    events: int
    """How many its session had when it was saved."""
    line_digest: str
    """Of the line that it was saved behind; empty where an older version did not write it down."""

    def is_of(self, reader: Reader) -> bool:
        """Whether the session that stands there now is the one that this was saved of, as far as it shows.

        Raises:
            LogBusy: it was deleted and begun again meanwhile.
        """
        if max(self.events, self.snapshot.seq) > reader.look().events:
            return False
        try:
            return not self.line_digest or self.line_digest == reader.line_digest(self.snapshot.seq)
        except LogDamaged:
            return False


class _Label(msgspec.Struct, frozen=True):
    model: str
    version: int
    seq: int
    digest: str
    events: int
    line: str = ""


def read_snapshot(disk: Disk, files: SessionFiles, model: str) -> Kept | None:
    """What is in a model's file; None where there is none, or something else."""
    try:
        head, _, body = disk.read(files.snapshot(model)).partition(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return None
    label = unsealed(head + b"\n", _Label)
    if label is None or (label.model, label.digest) != (model, digest(body)):
        return None
    return Kept(StoredSnapshot(model, label.version, label.seq, label.digest, body), label.events, label.line)


def write_snapshot(disk: Disk, files: SessionFiles, kept: Kept) -> None:
    """
    Raises:
        OSError: the old one is still there.
    """
    new = kept.snapshot
    label = _Label(new.model, new.version, new.seq, digest(new.body), kept.events, kept.line_digest)
    replace_durably(disk, files.snapshot(new.model), sealed(label) + new.body)


def events_told(disk: Disk, files: SessionFiles) -> int:
    """How many events there were when a snapshot was saved, by the labels alone."""
    return max((_events_on(disk, files, model) for model in snapshot_models(disk, files)), default=0)


def _events_on(disk: Disk, files: SessionFiles, model: str) -> int:
    try:
        with closing(disk.open(files.snapshot(model), read_only=True)) as file:
            head, _, _ = file.read_at(0, _label_bytes_max).partition(b"\n")
    except FileNotFoundError:
        return 0
    label = unsealed(head + b"\n", _Label)
    return 0 if label is None else label.events


def snapshot_models(disk: Disk, files: SessionFiles) -> list[str]:
    """The models that have a file in a session's directory."""
    return [model for name in names_in(disk, files.home) if (model := model_of(name)) is not None]
