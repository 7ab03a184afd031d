"""Whether a stored line says about itself what its log says about it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from runstate.logs.log import Record
from runstate.models.model import AnyModel, Model

Disagreement = Callable[[Record], dict[str, Any]]
"""Gives what a record's line says otherwise than its envelope."""


def disagreement_finder(model: AnyModel) -> Disagreement:
    """What to ask about each record of a stream. A line that cannot be read disagrees."""
    # A model that has not said how its stored lines tell of themselves may refuse to read them as a producer's.
    find = _of_place(model) if type(model).envelope is Model.envelope else _of_envelope(model)

    def differing(record: Record) -> dict[str, Any]:
        try:
            return find(record)
        except Exception as error:  # noqa: BLE001 - a model may be anybody's, and a line anything
            return {"unreadable": repr(error)[:200]}

    return differing


def _of_envelope(model: AnyModel) -> Disagreement:
    envelope = model.envelope

    def differing(record: Record) -> dict[str, Any]:
        said = envelope(record.body)
        if (
            said.stream == record.stream
            and said.key == record.key
            and said.type == record.type
            and said.event_id == record.event_id
            and said.tenant == record.tenant
            and (said.seq is None or said.seq == record.seq)
            # A producer need not give a time, and the line may then tell the log's. When the log has stored it is no
            # matter of the line's: a run directory's tells when it was written.
            and (not record.emitted_at or said.emitted_at == record.emitted_at)
        ):
            return {}
        names = ("stream", "seq", "key", "type", "event_id", "tenant", "emitted_at")
        pairs = {name: (getattr(said, name), getattr(record, name)) for name in names}
        return {name: ours for name, (ours, theirs) in pairs.items() if ours != theirs and ours is not None}

    return differing


def _of_place(model: AnyModel) -> Disagreement:
    decode = _place_decoder(model.seq_name).decode

    def differing(record: Record) -> dict[str, Any]:
        seq = decode(record.body).seq
        return {} if seq in (record.seq, UNSET) else {"seq": seq}

    return differing


@lru_cache(maxsize=16)
def _place_decoder(seq_name: str) -> msgspec.json.Decoder[Any]:
    line = msgspec.defstruct("Line", [("seq", int | UnsetType, UNSET)], rename={"seq": seq_name})
    return msgspec.json.Decoder(line)
