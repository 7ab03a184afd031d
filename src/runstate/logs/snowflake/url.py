"""What a `snowflake://` URL says: which schema of which database is the log, and who asks. Secrets are never in it."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from runstate.errors import InvalidUrl
from runstate.logs.snowflake.log import SnowflakeLog, busy_timeout_default_s, pool_max_default

_form = "snowflake://USER@ACCOUNT/DATABASE/SCHEMA?warehouse=NAME&role=NAME"
_name_pattern = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,254}")
_account_pattern = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")
_user_pattern = re.compile(r"[^\x00-\x20/?#]{1,255}")
_host_pattern = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")
_connection_pattern = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_options = frozenset(
    {"warehouse", "role", "connection", "host", "port", "protocol", "pool_max", "busy_timeout_s"},
)
_loopback = frozenset({"127.0.0.1", "localhost"})
_secrets = {
    "SNOWFLAKE_PASSWORD": "password",
    "SNOWFLAKE_PRIVATE_KEY_FILE": "private_key_file",
    "SNOWFLAKE_PRIVATE_KEY_FILE_PWD": "private_key_file_pwd",
}
"""Where secrets come from, unless `connection` names an entry of the driver's own connections.toml."""


def open_url(url: str, *, create: bool = True) -> SnowflakeLog:
    """`snowflake://USER@ACCOUNT/DATABASE/SCHEMA?warehouse=NAME&role=NAME&pool_max=N&busy_timeout_s=S`.

    Or `snowflake:///DATABASE/SCHEMA?connection=NAME`, with the rest from the driver's connections.toml.

    Raises:
        InvalidUrl: what is wrong with it. The URL itself is not repeated: somebody may have put a password into it.
    """
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        is_plain = parts.port is None and not parts.fragment and url.startswith("snowflake://")
    except ValueError:
        # Without its cause, which quotes parts of the URL.
        raise InvalidUrl(f"The URL cannot be read: write {_form}") from None
    options = dict(pairs)
    if unknown := sorted(options.keys() - _options):
        raise InvalidUrl(
            f"{unknown[0][:80]!r} is no option of a Snowflake log; there are {', '.join(sorted(_options))}"
        )
    if not is_plain or len(options) != len(pairs):
        raise InvalidUrl(f"The URL has something too much: write {_form}, every option once")
    if parts.password is not None:
        raise InvalidUrl("A password in a URL ends up in logs: put it into SNOWFLAKE_PASSWORD, and leave it out here")
    places = parts.path.removeprefix("/").split("/")
    if len(places) != 2:
        raise InvalidUrl(f"The URL names no database and schema: write {_form}")
    database, schema = (_name(place, "database or schema") for place in places)
    arguments: dict[str, Any] = {
        **_who(parts, options),
        **_where(options),
        # Quoted, so that a name is a name whatever it says.
        "database": f'"{database}"',
        "schema": f'"{schema}"',
        **{part: f'"{_name(options[part], part)}"' for part in ("warehouse", "role") if part in options},
    }
    pool_max = options.get("pool_max", str(pool_max_default))
    if not (pool_max.isascii() and pool_max.isdecimal() and 1 <= int(pool_max[:9]) <= 1000):
        raise InvalidUrl(f"pool_max={pool_max[:80]!r} is no number of connections: write one from 1 to 1000")
    busy_timeout_s = options.get("busy_timeout_s", str(busy_timeout_default_s))
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", busy_timeout_s):
        raise InvalidUrl(f"busy_timeout_s={busy_timeout_s[:80]!r} is no number of seconds")
    return SnowflakeLog(
        arguments,
        database=database,
        schema=schema,
        create=create,
        pool_max=int(pool_max),
        busy_timeout_s=float(busy_timeout_s),
    )


def _who(parts: SplitResult, options: dict[str, str]) -> dict[str, Any]:
    """The account, the user, and what proves who it is."""
    if (connection := options.get("connection")) is not None:
        if parts.netloc or not _connection_pattern.fullmatch(connection):
            raise InvalidUrl(
                "With a connection of connections.toml, write snowflake:///DATABASE/SCHEMA?connection=NAME"
            )
        return {"connection_name": connection}
    user, at, account = (unquote(part) for part in parts.netloc.rpartition("@"))
    if not at or not _user_pattern.fullmatch(user) or not _account_pattern.fullmatch(account):
        raise InvalidUrl(f"The URL names no user and account: write {_form}")
    secrets = {argument: os.environ[name] for name, argument in _secrets.items() if os.environ.get(name)}
    if not secrets.keys() & {"password", "private_key_file"}:
        raise InvalidUrl("No password and no key: set SNOWFLAKE_PASSWORD or SNOWFLAKE_PRIVATE_KEY_FILE")
    if "private_key_file" in secrets:
        secrets.pop("password", None)
        secrets["authenticator"] = "SNOWFLAKE_JWT"
    return {"user": user, "account": account, **secrets}


def _where(options: dict[str, str]) -> dict[str, Any]:
    """Another host than the account's own: a private link, or a stand-in on this machine."""
    found: dict[str, Any] = {}
    if (host := options.get("host")) is not None:
        if not _host_pattern.fullmatch(host):
            raise InvalidUrl(f"host={host[:80]!r} is no name of a host")
        found["host"] = host
    if (port := options.get("port")) is not None:
        if not (port.isascii() and port.isdecimal() and 1 <= int(port[:9]) <= 65535):
            raise InvalidUrl(f"port={port[:80]!r} is no port: write one from 1 to 65535")
        found["port"] = int(port)
    if (protocol := options.get("protocol")) is not None:
        if protocol != "https" and not (protocol == "http" and host in _loopback):
            raise InvalidUrl("protocol is https; http only to host=127.0.0.1, since it would show the password to all")
        found["protocol"] = protocol
    return found


def _name(text: str, what: str) -> str:
    name = unquote(text)
    if not _name_pattern.fullmatch(name):
        raise InvalidUrl(f"{name[:80]!r} is no {what}: letters, digits, _ and $, not a digit first")
    # As Snowflake takes a name that stands without quotes.
    return name.upper()
