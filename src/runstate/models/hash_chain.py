"""The hash chain of run directories: each event holds the hash of the one before it.

The model writes it, and the log that keeps such events as bare lines finds by it a line that was changed, dropped or
moved.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from runstate.models.canonical import embed

_encoder = msgspec.json.Encoder(order="sorted")


def compact(payload: Any) -> str:
    """The payload as the chain hashes it: RFC 8785, which is compact JSON with sorted names."""
    return _encoder.encode(embed(payload)).decode()


def event_hash(event_id: str, ts: str, kind: str, payload: str, prev_hash: str) -> str:
    """The link of the chain: SHA-256 over id, time, type, the compact payload and the hash before."""
    return hashlib.sha256(f"{event_id}{ts}{kind}{payload}{prev_hash}".encode()).hexdigest()
