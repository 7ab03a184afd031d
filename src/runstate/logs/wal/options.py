"""How a log behaves: what the options of its URL say."""

from __future__ import annotations

from typing import Literal

import msgspec

from runstate.errors import InvalidUrl


class WalOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    flush_interval_ms: float = 10.0
    """Buffered entries that nobody waits for are flushed after so long."""
    flush_entries: int = 100
    """Or as soon as so many are buffered."""
    history: Literal["drop", "archive"] = "drop"
    """What becomes of entries that a checkpoint has made needless."""
    compress: Literal["none", "zstd"] = "none"
    """How snapshots are written, and with zstd archived entries too, which are gzipped otherwise."""
    remembered_keys: int = 10_000
    """The keys of so many removed entries are remembered: a retry of one of them changes nothing."""

    @property
    def zstd(self) -> bool:
        return self.compress == "zstd"


def read_options(told: dict[str, str]) -> WalOptions:
    """
    Raises:
        InvalidUrl: an option that there is not, or a value that it does not take.
    """
    try:
        options = msgspec.convert(told, WalOptions, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidUrl(f"The options of the URL cannot be read: {error}") from error
    return checked(options)


def checked(options: WalOptions) -> WalOptions:
    """
    Raises:
        InvalidUrl: a number out of bounds.
    """
    if not 0 < options.flush_interval_ms <= 60_000:
        raise InvalidUrl("flush_interval_ms is more than 0 and at most 60000")
    if not 1 <= options.flush_entries <= 1_000_000:
        raise InvalidUrl("flush_entries is at least 1 and at most 1000000")
    if not 0 <= options.remembered_keys <= 10_000_000:
        raise InvalidUrl("remembered_keys is at least 0 and at most 10000000")
    return options
