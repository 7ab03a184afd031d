"""What a model raises while it folds a stream, as errors of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from runstate.errors import InvalidEvent, InvalidJson, ModelFailed, RunstateError
from runstate.models.model import AnyModel

UNKNOWN_EVENT = "UNKNOWN_EVENT"
"""The code of an alert of `Model.refusals`: this version of the model does not know the type of the event."""


@contextmanager
def translate_model_errors(model: AnyModel, stream: str) -> Iterator[None]:
    """Turn whatever a model raises while it folds a stream into an error of ours.

    Raises:
        InvalidEvent, InvalidJson, ModelFailed: with the name of the model.
    """
    try:
        yield
    except (InvalidEvent, InvalidJson) as error:
        raise type(error)(f"{error}; is {model.name!r} the right model?", **error.details) from error
    except RunstateError:
        raise
    except Exception as error:
        raise ModelFailed(
            f"The model {model.name!r} cannot fold the stream {stream!r}: {error!r}; is it the right model?",
            stream=stream,
        ) from error
