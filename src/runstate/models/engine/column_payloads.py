"""What payloads say that a snapshot keeps, as pieces of its JSON: many payloads at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import msgspec

from runstate.errors import InvalidJson
from runstate.models.canonical import embed, integer_max

# The plain fold's own functions, not copies of them: what they make of an event must be the same both ways.
from runstate.models.engine.evolve import _artifact_refs, _artifacts, _error, _skip_reason
from runstate.models.engine.state import StepError

encoder = msgspec.json.Encoder(order="sorted")


class Said(NamedTuple):
    """One payload. Which of these count depends on the event."""

    refs: bytes
    """The items of `artifactRefs`, without their brackets."""
    artifacts: bytes
    """The items of `artifacts`, without their brackets."""
    error: bytes | None
    reason: bytes | None
    run_ref: bytes | None


def read_payloads(texts: list[str]) -> Iterator[Said | None]:
    """What each payload says; None where the plain fold could not write it down either."""
    for begin in range(0, len(texts), _chunk):
        chunk = texts[begin : begin + _chunk]
        if together := _read_together(chunk):
            yield from together
        else:
            for text in chunk:
                alone = _read_together([text])
                yield alone[0] if alone else _read_alone(text)


_chunk = 100
"""Payloads read at once. Three times faster than one by one, which a single unusual one among them takes."""

_Integer = Annotated[int, msgspec.Meta(ge=-integer_max, le=integer_max)]
_Scalar = str | bool | None | _Integer
_Item = str | bool | None | _Integer | dict[str, _Scalar | list[_Scalar] | dict[str, _Scalar]]


class _Usual(msgspec.Struct, rename="camel", gc=False):
    """What most payloads say: items that msgspec writes canonically, and an error of the usual shape."""

    artifact_refs: list[_Item] = []
    artifacts: list[_Item] = []
    error: StepError | None = None
    reason: str | None = None
    engine_run_ref: _Item = None


_usual_decoder = msgspec.json.Decoder(_Usual)


def _read_together(texts: list[str]) -> list[Said] | None:
    """Payloads that are all of the usual kind; None where one is not."""
    joined = "\n".join(texts)
    # A backslash may hide a name beyond ASCII, which msgspec would sort in another way.
    if not joined.isascii() or "\\" in joined:
        return None
    try:
        found = _usual_decoder.decode_lines(joined)
    except (ValueError, RecursionError):
        return None
    if len(found) != len(texts):
        return None
    refs = _items([one.artifact_refs for one in found])
    artifacts = _items([one.artifacts for one in found])
    return [
        Said(some_refs, some, _encoded(one.error), _encoded(one.reason), _encoded(one.engine_run_ref))
        for some_refs, some, one in zip(refs, artifacts, found, strict=True)
    ]


def _items(lists: list[list[Any]]) -> list[bytes]:
    # No line break stands inside of encoded JSON: these are the places between two lists, and no others.
    return encoder.encode_lines(lists)[1:-2].split(b"]\n[") if any(lists) else [b""] * len(lists)


def _encoded(value: Any) -> bytes | None:
    return None if value is None else encoder.encode(value)


def _read_alone(text: str) -> Said | None:
    try:
        decoded = msgspec.json.decode(text)
        payload: dict[str, Any] = decoded if isinstance(decoded, dict) else {}
        return Said(
            encoder.encode(embed(_artifact_refs(payload)))[1:-1],
            encoder.encode(embed(_artifacts(payload)))[1:-1],
            _encoded(_error(payload)),
            _encoded(_skip_reason(payload)),
            _encoded(embed(payload.get("engineRunRef"))),
        )
    except (InvalidJson, ValueError, RecursionError):
        return None
