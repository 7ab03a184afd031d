"""Which model the events of a log belong to: the one that its scheme goes with, or the one that it records itself."""

from __future__ import annotations

from runstate.models.model import AnyModel
from runstate.models.registry import find_model, resolve_model

_paired_models = {"ndjson": "rundir", "segments": "session", "wal": "daemon"}
"""The models that have a log of their own; all others are kept in databases, like the engine's."""


def recorded_model(url: str) -> str | None:
    """The name of the model that the log at a URL records; None for logs that record none.

    Raises:
        InvalidUrl, LogNotFound, NotALog, LogTooNew: there is no archive that can be read.
    """
    if not url.startswith("archive:"):
        return None
    from runstate.logs.archive.log import archived_model  # Only archives need it.

    return archived_model(url)


def default_model(url: str) -> str:
    """The name of the model to read the log at a URL with, if the caller gives none. It is installed.

    Raises:
        UnknownModel: an archive holds events of a model that is not installed.
    """
    recorded = recorded_model(url)
    if recorded is None:
        return _paired_models.get(url.partition(":")[0], "engine")
    resolve_model(recorded, None, _holder(url))
    return recorded


def model_for(url: str, given: str | AnyModel | None) -> AnyModel:
    """The model to read the log at a URL with: the given one, or the default.

    Raises:
        UnknownModel: there is no such model.
        ModelMismatch: the log records another one.
    """
    recorded = recorded_model(url)
    if recorded is not None:
        return resolve_model(recorded, given, _holder(url))
    given = default_model(url) if given is None else given
    return find_model(given) if isinstance(given, str) else given


def _holder(url: str) -> str:
    return f"The archive {url.removeprefix('archive:')[:200]!r}"
