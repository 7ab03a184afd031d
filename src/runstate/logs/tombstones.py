"""What a log remembers of a stream that retention has deleted.

Without it, a late retry would begin the stream again at seq 1, and its archived history could never come back.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from runstate.errors import StreamDeleted
from runstate.models.model import Draft


class Tombstone(msgspec.Struct, frozen=True, rename="camel"):
    """A deleted stream. It counts as long as the stream has no events: `adopt` brings the stream back."""

    stream: str
    last_seq: int
    """Where the stream ended."""
    digest: str = ""
    """SHA-256 of its events as the archive holds them; empty if it was not archived."""
    archive: str = ""
    """The URL of the archive that holds it; empty if it was not archived."""
    deleted_at: str = ""


def check_not_deleted(tombstone: Tombstone | None, drafts: Sequence[Draft]) -> None:
    """
    Raises:
        StreamDeleted: the stream was deleted, and this append would begin it again.
    """
    if tombstone is not None and drafts:
        raise deleted_error(tombstone)


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
