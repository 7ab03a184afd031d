"""References to blobs: how they are written, found in a line, and held against the bytes."""

from __future__ import annotations

import re

from runstate.errors import BlobNotFound, LogDamaged
from runstate.logs.log import BlobRef
from runstate.models.canonical import digest

_digest_pattern = re.compile("[0-9a-f]{64}")
_ref_pattern = re.compile(rb'"(sha256:[0-9a-f]{64})"')


def blob_digest(ref: BlobRef) -> str | None:
    """The digest in a reference; None where it is no reference, so that there can be no such blob."""
    kind, _, name = ref.partition(":")
    return name if kind == "sha256" and _digest_pattern.fullmatch(name) else None


def blob_refs(line: bytes) -> list[BlobRef]:
    """What a stored line refers to: its strings of that form, in order, each once. Whether there is such a blob, only
    its log can tell: such a string may be the digest of anything."""
    return [BlobRef(ref.decode()) for ref in dict.fromkeys(_ref_pattern.findall(line))]


def checked_blob(ref: BlobRef, data: bytes | None) -> bytes:
    """What was found under a reference.

    Raises:
        BlobNotFound: nothing.
        LogDamaged: its bytes no longer have that digest.
    """
    if data is None:
        raise BlobNotFound(f"There is no blob {ref[:80]!r}", ref=ref)
    if f"sha256:{digest(data)}" != ref:
        raise LogDamaged(f"The blob {ref} no longer has that digest", ref=ref)
    return data
