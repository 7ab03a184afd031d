"""References to blobs: how they are written, found in a line, and held against the bytes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from runstate.errors import BlobNotFound, LogDamaged
from runstate.logs.log import BlobRef, Finding
from runstate.logs.quarantine import way_out
from runstate.models.canonical import digest

MISSING = "blob.missing"
CHANGED = "blob.digest_mismatch"
ref_bytes = len("sha256:") + 64
_digest_pattern = re.compile("[0-9a-f]{64}")
_ref_pattern = re.compile(rb'"(sha256:[0-9a-f]{64})"')
_mention_pattern = re.compile(rb"sha256:[0-9a-f]{64}")


def blob_digest(ref: BlobRef) -> str | None:
    """The digest in a reference; None where it is no reference, so that there can be no such blob."""
    kind, _, name = ref.partition(":")
    return name if kind == "sha256" and _digest_pattern.fullmatch(name) else None


def blob_refs(line: bytes) -> list[BlobRef]:
    """What a stored line refers to: its strings of that form, in order, each once. Whether there is such a blob, only
    its log can tell: such a string may be the digest of anything."""
    return [BlobRef(ref.decode()) for ref in dict.fromkeys(_ref_pattern.findall(line))]


def mentioned_refs(data: bytes) -> set[BlobRef]:
    """What any bytes may refer to, in whatever way: for a collection, which keeps what it is not sure about."""
    return {BlobRef(ref.decode()) for ref in _mention_pattern.findall(data)}


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


class BlobStates:
    """What is wrong with the blobs of a log, as the code of a finding. Each blob is read once."""

    def __init__(self, get: Callable[[BlobRef], bytes]) -> None:
        self._get = get
        self._codes: dict[BlobRef, str | None] = {}

    def code(self, ref: BlobRef) -> str | None:
        """None: it is there, and intact."""
        if ref not in self._codes:
            self._codes[ref] = self._look_at(ref)
        return self._codes[ref]

    def _look_at(self, ref: BlobRef) -> str | None:
        try:
            self._get(ref)
        except BlobNotFound:
            return MISSING
        except LogDamaged:
            return CHANGED
        return None


def changed_blob(name: str) -> Finding:
    """A blob whose bytes no longer have the digest that it is kept under."""
    return Finding(code=CHANGED, message=f"The blob sha256:{name} was changed", details={"ref": f"sha256:{name}"})


def blob_finding(code: str, stream: str, seq: int, ref: BlobRef) -> Finding:
    """A blob that an event refers to is missing, or was changed."""
    # A database does not replace bytes that it has under a digest, so a copy helps only where there are none.
    what, advice = "was changed", ""
    if code == MISSING:
        copy = f"'runstate copy BACKUP URL --stream {shlex.quote(stream)}'"
        what, advice = "is gone", f"{copy} puts it back from a log that holds it. If there is none: "
    message = f"Event {seq} refers to the blob {ref}, which {what}. {advice}{way_out(stream, seq)}"
    return Finding(code=code, message=message, stream=stream, seq=seq, details={"ref": ref})
