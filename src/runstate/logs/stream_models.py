"""The model that a stream records: its first append sets it, and every later one must be of the same.

A stream of an older version records none, and never will: a later append could name the wrong one for good.
"""

from __future__ import annotations

from collections.abc import Sequence

from runstate.errors import ModelMismatch
from runstate.logs.log import EventLog, Head, StreamInfo
from runstate.models.model import Draft


def shared_model(stream: str, drafts: Sequence[Draft]) -> str:
    """The model of all drafts of one append.

    Raises:
        ModelMismatch: they are of several models.
    """
    model = drafts[0].model if drafts else ""
    for draft in drafts:
        if draft.model != model:
            raise ModelMismatch(
                f"One append to the stream {stream!r} holds events of the models {model!r} and {draft.model!r}. "
                "Append the events of each model to a stream of its own",
                stream=stream,
                recorded=model,
                given=draft.model,
            )
    return model


def model_after(stream: str, recorded: str, given: str, last_seq: int) -> str:
    """The model that a stream at `last_seq` records once events of the model `given` were added to it.

    Raises:
        ModelMismatch: the stream records another one.
    """
    check_model(stream, recorded, given)
    return recorded if last_seq else given


def check_model(stream: str, recorded: str, given: str) -> None:
    """Empty names stand for no model.

    Raises:
        ModelMismatch: the stream records another one.
    """
    if recorded and given and recorded != given:
        raise ModelMismatch(
            f"The stream {stream!r} holds events of the model {recorded!r}, not of {given!r}. Pass the model that "
            "wrote it, or choose another stream",
            stream=stream,
            recorded=recorded,
            given=given,
        )


def find_stream(log: EventLog, stream: str, model: str) -> StreamInfo | None:
    """A stream, or None.

    Raises:
        ModelMismatch: it records another model.
    """
    info = log.stream(stream)
    if info is not None:
        check_model(stream, info.model, model)
    return info


def find_whole_stream(log: EventLog, stream: str, model: str) -> StreamInfo | None:
    """A stream whose last event can be read, or None.

    Raises:
        ModelMismatch: it records another model.
        LogDamaged: it goes on with something that is damaged, and nobody knows its last state.
    """
    info = find_stream(log, stream, model)
    if info is not None and info.damaged:
        log.read(stream, after_seq=info.last_seq, limit=1)
    return info


def head_model(log: EventLog, head: Head) -> str:
    """The model that a stream records, which may need a look at it."""
    if head.model is not None:
        return head.model
    info = log.stream(head.stream)
    return "" if info is None else info.model
