"""Open a log by its URL: `memory:`, `sqlite:PATH`, and whatever else is installed (entry points `runstate.logs`)."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from runstate.errors import InvalidUrl, Unsupported, shown_url
from runstate.logs.log import EventLog
from runstate.models.registry import entry_point

_group = "runstate.logs"


def installed_schemes() -> list[str]:
    """The URL schemes of all logs that are installed."""
    return sorted({point.name for point in entry_points(group=_group)})


def entry_point_of(url: str) -> EntryPoint | None:
    """What opens the log that a URL names, not loaded yet. Its first extra brings the driver that it needs."""
    scheme, colon, _ = url.partition(":")
    return entry_point(_group, scheme) if colon else None


def open_log(url: str, *, create: bool = True) -> EventLog:
    """Open the log that a URL names, and make it if it is not there yet and `create` says so.

    Raises:
        InvalidUrl: no log of that scheme is installed, or the rest of the URL makes no sense to it.
        LogNotFound: there is none at that place, and it was not to be made.
        NotALog, LogTooNew: something else is at that place; it was left untouched.
        Unsupported: the log needs an extra that is not installed.
    """
    point = entry_point_of(url)
    if point is None:
        raise _not_a_log_url(shown_url(url))
    try:
        opener = point.load()
    except ImportError as error:
        raise Unsupported(f"The {point.name} log needs a driver: pip install {extra_of(point)} ({error})") from error
    return cast(EventLog, opener(url, create=create))


def _not_a_log_url(shown: str) -> InvalidUrl:
    scheme, colon, rest = shown.partition(":")
    # Every tool of Postgres takes postgres:// too; one spelling keeps one log one log.
    close = get_close_matches(scheme, installed_schemes(), 1) if colon else []
    advice = f"Did you mean {f'{close[0]}:{rest}'[:80]!r}? " if close else ""
    schemes = ", ".join(f"{known}:" for known in installed_schemes())
    return InvalidUrl(
        f"{shown[:80]!r} is not a log URL. {advice}A URL starts with one of: {schemes}",
        url=shown[:200],
    )


def extra_of(point: EntryPoint) -> str:
    """What to install for a log, as pip wants it."""
    return f"'runstate[{point.extras[0] if point.extras else point.name}]'"
