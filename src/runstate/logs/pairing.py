"""Which model a log is read with: the given one, the one that its streams record, or the one that goes with the log."""

from __future__ import annotations

from collections.abc import Iterable

from runstate.errors import LogDamaged, LogNotFound, ModelMismatch, shown_url
from runstate.logs.log import EventLog
from runstate.logs.registry import open_log
from runstate.logs.stream_models import head_model
from runstate.models.model import AnyModel
from runstate.models.registry import find_model, resolve_model

_paired_models = {"ndjson": "rundir", "segments": "session", "wal": "daemon"}
"""The models that have a log of their own; all others are kept in databases, like the engine's."""
_streams_sampled = 100
"""Streams whose models decide what a log is opened with. Reading any stream with another model is refused."""


def recorded_model(url: str) -> str | None:
    """The name of the model that the log at a URL records as a whole; None for logs whose streams do.

    Raises:
        InvalidUrl, LogNotFound, NotALog, LogTooNew: there is no archive that can be read.
    """
    if not url.startswith("archive:"):
        return None
    from runstate.logs.archive.log import archived_model  # Only archives need it.

    return archived_model(url)


def default_model(url: str) -> str:
    """The name of the model that goes with the log at a URL, whatever its streams record. It is installed.

    Raises:
        UnknownModel: an archive holds events of a model that is not installed.
    """
    recorded = recorded_model(url)
    if recorded is None:
        return _paired_models.get(url.partition(":")[0], "engine")
    resolve_model(recorded, None, holder(url))
    return recorded


def model_for(url: str, log: EventLog, given: str | AnyModel | None) -> AnyModel:
    """The model to open a store of a log with: the given one, else the one that its streams record, else the default.

    Where they record several, it is the default model if that is among them.

    Raises:
        UnknownModel: there is no such model, or it is not installed.
        ModelMismatch: the log records another one, or several.
    """
    recorded = recorded_model(url)
    if recorded is not None:
        return resolve_model(recorded, given, holder(url))
    if given is not None:
        return find_model(given) if isinstance(given, str) else given
    return resolve_model(default_name(url, log), None, holder(url))


def default_name(url: str, log: EventLog) -> str:
    """The name of the model that `model_for` chooses where none is given. It may not be installed.

    Raises:
        ModelMismatch: the streams record several models, and the default one is not among them.
    """
    names, default = recorded_names(log), recorded_model(url) or _paired_models.get(url.partition(":")[0], "engine")
    if default in names or not names:
        return default
    if len(names) > 1:
        raise ModelMismatch(
            f"{holder(url)} holds streams of the models {', '.join(map(repr, names))}. Pass --model with one of them",
            recorded=names,
        )
    return names[0]


def recorded_names(log: EventLog) -> list[str]:
    """The models that the first streams of a log record."""
    try:
        infos = log.streams(limit=_streams_sampled)
    except LogDamaged:  # Whatever is done with the log next meets it too.
        return []
    return sorted({info.model for info in infos if info.model})


def check_model_is_used(url: str, log: EventLog, model: str) -> None:
    """
    Raises:
        ModelMismatch: the log has streams, and all of them record other models.
    """
    others = set()
    for head in log.heads(versions=False):
        recorded = head_model(log, head)
        if recorded in ("", model):
            return
        others.add(recorded)
    if others:
        raise holds_others(url, others, model)


def holds_others(url: str, recorded: Iterable[str], given: str) -> ModelMismatch:
    """The error for a log without a stream of the given model."""
    names = sorted(recorded)
    return ModelMismatch(
        f"{holder(url)} holds streams of the model {', '.join(map(repr, names))}, and none of {given!r}. "
        "Leave out --model, or pass the model that wrote them",
        recorded=names,
        given=given,
    )


def model_to_append(url: str, given: str | None) -> AnyModel:
    """The model to append events to the log at a URL with; the log is not created.

    Raises:
        as `model_for`, and what `open_log` raises.
    """
    try:
        with open_log(url, create=False) as log:
            return model_for(url, log, given)
    except LogNotFound:
        return find_model(default_model(url) if given is None else given)


def holder(url: str) -> str:
    """A log as the subject of a sentence."""
    if url.startswith("archive:"):
        return f"The archive {url.removeprefix('archive:')[:200]!r}"
    return f"The log {shown_url(url)[:200]}"
