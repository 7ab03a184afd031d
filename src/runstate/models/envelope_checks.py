"""What the envelope of an event may hold. One rule for all logs, though not every log would mind."""

from __future__ import annotations

from runstate.errors import InvalidEvent


def check_envelope(**texts: str) -> None:
    """
    Raises:
        InvalidEvent: one of the texts has a NUL, which no database keeps, or is no text: it has a lone surrogate.
    """
    joined = "".join(texts.values())
    if joined.isascii() and "\0" not in joined:
        return
    for name, text in texts.items():
        if "\0" in text:
            raise InvalidEvent(f"The event's {name} has a NUL: {text[:40]!r}. Leave it out, or encode it", field=name)
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InvalidEvent(f"The event's {name} is no text: {text[:40]!r} has a lone surrogate") from error
