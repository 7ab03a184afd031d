"""The options of the data source: texts, as Spark hands them over."""

from __future__ import annotations

import msgspec

from runstate.errors import RunstateError


class InvalidOption(RunstateError):
    """An option of the data source makes no sense."""

    code = "pipeline.invalid_option"


def names_in(text: str, option: str) -> tuple[str, ...]:
    """One name, or a JSON list of them.

    Raises:
        InvalidOption: it begins like a list, and is none of texts.
    """
    if not text.startswith("["):
        return (text,)
    try:
        return msgspec.json.decode(text, type=tuple[str, ...])
    except msgspec.MsgspecError as error:
        raise InvalidOption(f"{option}: {text[:80]!r} is no JSON list of texts: {error}") from error
