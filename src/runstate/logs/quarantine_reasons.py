"""Why an event may be quarantined. One that is intact, possible and whole is corrected by a later event instead."""

from __future__ import annotations

from typing import Any

from runstate.errors import InvalidArgument
from runstate.logs.blob_refs import CHANGED, BlobStates, blob_refs
from runstate.logs.log import EventLog, Record
from runstate.logs.stream_blobs import needed_by
from runstate.logs.unfoldable import folding, unfoldable
from runstate.models.model import Alert, AnyModel
from runstate.models.model_errors import translate_model_errors


def reason_of(log: EventLog, model: AnyModel, record: Record, state: Any, after_seq: int) -> str:
    """What is wrong with an event of a stream that had this state behind `after_seq`, in words that follow its name.

    Raises:
        InvalidArgument: nothing is.
        InvalidEvent, InvalidJson, ModelFailed: an event before it cannot be folded, so that its own state is unknown.
    """
    reason = (
        _undecodable(model, record)
        or (_refusal(log, model, record, state, after_seq) if record.seq > after_seq else "")
        or _lost_blob(log, model, record)
    )
    if not reason:
        is_known = record.seq > after_seq
        possible = "is possible where it stands" if is_known else f"is part of the checkpoint at seq {after_seq}"
        raise InvalidArgument(
            f"Event {record.seq} of {record.stream!r} can be folded, {possible}, and lacks no blob; only other events "
            "can be quarantined. Append the event that corrects it",
            stream=record.stream,
            seq=record.seq,
        )
    return reason


def _undecodable(model: AnyModel, record: Record) -> str:
    try:
        model.decode(record.body)
    except Exception as error:  # noqa: BLE001 - a user's model may raise anything
        return f"cannot be folded: {error}"
    return ""


def _refusal(log: EventLog, model: AnyModel, record: Record, state: Any, after_seq: int) -> str:
    alerts: list[Alert] = []
    with folding(log, model, record.stream, after_seq):
        state = model.fold(state, log.lines(record.stream, after_seq=after_seq, until_seq=record.seq - 1))
    try:
        with translate_model_errors(model, record.stream):
            model.fold(state, [record.body], alerts.append)
    except unfoldable as error:
        return f"cannot be folded: {error}"
    return f"is impossible where it stands: {alerts[0].why}" if alerts else ""


def _lost_blob(log: EventLog, model: AnyModel, record: Record) -> str:
    states, names = BlobStates(log.get_blob), needed_by(model)(record.body) or ()
    for ref in blob_refs(record.body):
        code = states.code(ref)
        if code is not None and (code == CHANGED or ref in names):
            return f"refers to the blob {ref}, which {'was changed' if code == CHANGED else 'is gone'}"
    return ""
