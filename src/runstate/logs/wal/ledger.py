"""`ledger.json`: what a stream must not forget when its entries go, above all which seqs were given out.

`seq` never repeats, whatever becomes of the WAL and the snapshots. So seqs are reserved here in large steps before the
first of them is written: after damage that hides where the stream ended, it goes on behind all that were reserved.
The ledger also records the model of the stream, before the first entry is written: checkpoints remove entries.
`keys.json` remembers the keys of the last entries that compaction has removed, so that a retry is still known.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from runstate.logs.sealed import refuse_newer, sealed, unsealed
from runstate.logs.wal.files import StreamFiles, read_or_none
from runstate.storage.disk import Disk, replace_durably

reserve_step = 1 << 16
"""Seqs are reserved in steps of so many: one more small write for that many events."""


class Removed(msgspec.Struct, frozen=True):
    """What compaction has removed so far, in sum: the entries before `before_seq`."""

    before_seq: int
    events: int
    tenant: str
    first_persisted_at: str
    last_persisted_at: str


class Quarantined(msgspec.Struct, frozen=True):
    """What is known of the entries that were quarantined."""

    count: int
    tail_seq: int
    """Of the last entry that was left by the last quarantine."""
    last_seq: int
    """The last seq that had been given out then: the state at these two is the same."""


class Ledger(msgspec.Struct, frozen=True):
    reserved: int = 0
    """No entry has a greater seq than this."""
    last_seq: int = 0
    """The WAL had entries up to this one, when this was written."""
    floor_seq: int = 0
    """Seqs up to this one were given out, though their entries may be gone."""
    removed: Removed | None = None
    swapping: bool = False
    """True: the WAL is being replaced, so it is not sure that its name survives a power cut."""
    format: int = 1
    model: str | UnsetType = UNSET
    """The model that the stream records; it counts once there are entries. Unset: none."""
    archived: tuple[int, int] | UnsetType = UNSET
    """The first and the last seq of the entries that checkpoints have moved to the archive without a gap, as far as
    they led up to the WAL. Unset: none, or an older version wrote the ledger."""
    adopted: int | UnsetType = UNSET
    """Seqs up to this one were given out by other logs, and came here with their events. Unset: none, or an older
    version wrote the ledger."""
    quarantined: Quarantined | UnsetType = UNSET
    """Unset: no entry was."""

    @property
    def is_all_adopted(self) -> bool:
        """Whether seqs were given out, and none of them here. Should their events be lost, they may come again."""
        return 0 < self.reserved <= (self.adopted or 0)


class OldKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    key: str
    seq: int
    event_id: str
    persisted_at: str


class OldKeys(msgspec.Struct, frozen=True):
    keys: list[OldKey]
    """Ascending by seq."""


def read_ledger(disk: Disk, files: StreamFiles) -> Ledger | None:
    """The ledger; None where there is none that can be believed.

    Raises:
        LogTooNew: a newer Runstate wrote it.
    """
    data = read_or_none(disk, files.ledger)
    if data is None:
        return None
    refuse_newer(data, files.ledger, Ledger().format)
    return unsealed(data, Ledger)


def write_ledger(disk: Disk, files: StreamFiles, ledger: Ledger) -> None:
    """
    Raises:
        OSError: the old one may stand.
    """
    replace_durably(disk, files.ledger, sealed(ledger))


def read_old_keys(disk: Disk, files: StreamFiles) -> list[OldKey]:
    data = read_or_none(disk, files.keys)
    found = None if data is None else unsealed(data, OldKeys)
    return [] if found is None else found.keys


def write_old_keys(disk: Disk, files: StreamFiles, keys: list[OldKey]) -> None:
    replace_durably(disk, files.keys, sealed(OldKeys(keys)))


def replace_wal(disk: Disk, files: StreamFiles, ledger: Ledger, data: bytes) -> Ledger:
    """Put another WAL in place of the old one; a crash at any point leaves one of them, and the ledger tells."""
    write_ledger(disk, files, msgspec.structs.replace(ledger, swapping=True))
    replace_durably(disk, files.wal, data)
    done = msgspec.structs.replace(ledger, swapping=False)
    write_ledger(disk, files, done)
    return done
