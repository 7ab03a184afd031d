"""What a log remembers of a stream that retention has deleted.

Without it, a late retry would begin the stream again at seq 1, and its archived history could never come back.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from runstate.errors import StreamDeleted
from runstate.models.model import Draft


class Tombstone(msgspec.Struct, frozen=True, rename="camel"):
    """A deleted stream. It counts until `adopt` has brought the stream back, up to its last event."""

    stream: str
    last_seq: int
    """Where the stream ended."""
    digest: str = ""
    """SHA-256 of its events as the archive holds them; empty if it was not archived."""
    archive: str = ""
    """The URL of the archive that holds it; empty if it was not archived."""
    deleted_at: str = ""


def check_not_deleted(tombstone: Tombstone | None, last_seq: int, drafts: Sequence[Draft]) -> None:
    """
    Raises:
        StreamDeleted: the stream was deleted, and is not, or not wholly, restored.
    """
    if drafts and (counting := if_counting(tombstone, last_seq)) is not None:
        raise deleted_error(counting)


def if_counting(tombstone: Tombstone | None, last_seq: int) -> Tombstone | None:
    """The tombstone of a stream that is at `last_seq`, unless the stream was restored since."""
    return tombstone if tombstone is not None and last_seq < tombstone.last_seq else None


def deleted_error(tombstone: Tombstone) -> StreamDeleted:
    """The refusal of an append to a deleted stream. Its details are those of the tombstone."""
    if tombstone.archive:
        message = (
            f"The stream {tombstone.stream!r} was moved to {tombstone.archive} at seq {tombstone.last_seq}. To append "
            "new events, bring it back first, with 'runstate restore'"
        )
    else:
        message = f"The stream {tombstone.stream!r} was deleted at seq {tombstone.last_seq}. Append to another stream"
    return StreamDeleted(message, **msgspec.to_builtins(tombstone))


def encode_tombstone(tombstone: Tombstone) -> bytes:
    return msgspec.json.encode(tombstone)


def decode_tombstone(data: bytes) -> Tombstone:
    """
    Raises:
        msgspec.DecodeError: it is no tombstone.
    """
    return msgspec.json.decode(data, type=Tombstone)
