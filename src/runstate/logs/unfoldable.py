"""Which event of a stream its model cannot fold: the log is intact, and the event means nothing to this model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from runstate.errors import InvalidEvent, InvalidJson, ModelFailed, RunstateError
from runstate.logs.log import EventLog, Record
from runstate.models.model import AnyModel
from runstate.models.model_errors import translate_model_errors

unfoldable = (InvalidEvent, InvalidJson, ModelFailed)


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
        except Exception:  # noqa: BLE001 - a model of somebody else may raise anything
            advice = (
                "If a newer Runstate, or a newer version of the model, wrote it, open the log with that version. "
                f"'runstate fetch URL {stream} --after {record.seq - 1} --limit 1' shows it"
            )
            message = (
                f"Event {record.seq} of {stream!r} ({record.type}) is intact, and cannot be folded: {error}. {advice}"
            )
            return type(error)(message, **error.details | {"stream": stream, "seq": record.seq})
    return error


def _records(log: EventLog, stream: str, after_seq: int) -> Iterator[Record]:
    while page := log.read(stream, after_seq=after_seq):
        yield from page
        after_seq = page[-1].seq
