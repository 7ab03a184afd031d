"""Which events of a stream its model cannot fold, or calls impossible: the log is intact, and says what cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from runstate.errors import InvalidEvent, InvalidJson, InvalidTransition, ModelFailed, RunstateError
from runstate.logs.log import EventLog, Finding, Record
from runstate.logs.quarantine import way_out
from runstate.models.model import Alert, AnyModel
from runstate.models.model_errors import UNKNOWN_EVENT, translate_model_errors

unfoldable = (InvalidEvent, InvalidJson, ModelFailed)
impossible_max = 1000
"""So many impossible events of a stream are named. Others are counted."""


@contextmanager
def folding(log: EventLog, model: AnyModel, stream: str, after_seq: int) -> Iterator[None]:
    """Turn whatever a model raises while it folds a stream behind `after_seq` into an error that names the event.

    Raises:
        InvalidEvent, InvalidJson, ModelFailed: with the seq in their details, where it can be found.
    """
    try:
        with translate_model_errors(model, stream):
            yield
    except unfoldable as error:
        raise locate(log, model, stream, after_seq, error) from error


def locate(log: EventLog, model: AnyModel, stream: str, after_seq: int, error: RunstateError) -> RunstateError:
    """The error of a fold that began behind `after_seq`, with the event that it is about and what to do.

    An event that cannot be decoded is found wherever the fold began, one that cannot be applied in a fold of the whole
    stream. Where it is not found, the error is as it was.
    """
    if isinstance(error, ModelFailed) and after_seq:
        return error
    state = model.initial(stream)
    for record in _records(log, stream, after_seq):
        try:
            if isinstance(error, ModelFailed):
                state = model.fold(state, [record.body])
            else:
                model.decode(record.body)
        except Exception:  # noqa: BLE001 - a user's model may raise anything
            advice = (
                "If a newer Runstate, or a newer version of the model, wrote it, open the log with that version. "
                f"{way_out(stream, record.seq)}"
            )
            message = (
                f"Event {record.seq} of {stream!r} ({record.type}) is intact, and cannot be folded: {error}. {advice}"
            )
            return type(error)(message, **error.details | {"stream": stream, "seq": record.seq})
    return error


def find_impossible(log: EventLog, model: AnyModel, stream: str, state: Any, after_seq: int) -> list[Finding]:
    """Fold a stream from a state on, and name the events that its model calls impossible where they stand.

    Raises:
        Truncated: the stream begins behind `after_seq`.
        InvalidEvent, InvalidJson, ModelFailed: an event cannot be folded.
    """
    refused: dict[int, Alert] = {}
    count = taken = 0

    def lines() -> Iterator[bytes]:
        nonlocal taken
        for line in log.lines(stream, after_seq=after_seq):
            taken += 1
            yield line

    def note(alert: Alert) -> None:
        nonlocal count
        count += taken not in refused
        if len(refused) < impossible_max:
            refused.setdefault(taken, alert)  # The last line that the fold has taken.

    with folding(log, model, stream, after_seq):
        model.fold(state, lines(), note)
    findings = []
    for number, record in enumerate(_records(log, stream, after_seq) if refused else (), 1):
        if number in refused:
            findings.append(_impossible(stream, record, refused.pop(number)))
        if not refused:
            break
    if count > len(findings):
        message = f"{count - len(findings)} more events are impossible where they stand"
        findings.append(Finding(code=InvalidTransition.code, message=message, severity="warning", stream=stream))
    return findings


def _impossible(stream: str, record: Record, alert: Alert) -> Finding:
    if alert.code == UNKNOWN_EVENT:
        message = (
            f"{record.type} is intact, and unknown to this version of the model: it changes nothing. "
            "If a newer version wrote it, open the log with that one"
        )
    else:
        message = (
            f"{record.type} is intact, and impossible where it stands: {alert.why}. Append the event that corrects "
            "it, if the state is not what it should be"
        )
    message = f"{message}. {way_out(stream, record.seq)}"
    details = {"eventId": record.event_id, "refusal": alert.code}
    return Finding(
        code=InvalidTransition.code,
        message=message,
        severity="warning",
        stream=stream,
        seq=record.seq,
        details=details,
    )


def _records(log: EventLog, stream: str, after_seq: int) -> Iterator[Record]:
    while page := log.read(stream, after_seq=after_seq):
        yield from page
        after_seq = page[-1].seq
