"""Where to make a log of each installed scheme for a test: `url_at("sqlite", directory / "fleet")`.

Most logs live at a path. Those that live on a server have a module `tests.NAME_server` with `url_at(place)`, which
gives every path a log of its own on a server that it starts on loopback. A log that takes no new events has no place
here: what it holds comes from another log.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from runstate.logs.registry import installed_schemes

servers = {
    "postgresql": "tests.postgres_server",
    "dynamodb": "tests.dynamodb_server",
    "snowflake": "tests.snowflake_server",
}
"""Imported when a log of theirs is asked for: a driver that is not installed is no matter of the other logs' tests."""
credentials = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "SNOWFLAKE_PASSWORD": "not-a-secret",
}
"""What those servers ask for, by the names that drivers look for in the environment."""
take_no_events = frozenset({"archive"})
"""They are filled from other logs."""


def url_at(scheme: str, place: Path) -> str:
    """The URL of a log of that scheme which is not there yet; another one for each path."""
    if scheme in servers:
        found: str = import_module(servers[scheme]).url_at(place)
        return found
    return "memory:" if scheme == "memory" else f"{scheme}:{place}"


def durable_schemes() -> list[str]:
    """Of all logs that outlive their process and take events."""
    return [scheme for scheme in installed_schemes() if scheme != "memory" and scheme not in take_no_events]
