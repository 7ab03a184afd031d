"""What a `postgresql://` URL says: where the server is, and which schema of which database is the log."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from runstate.errors import InvalidUrl
from runstate.logs.postgres.log import PostgresLog, busy_timeout_default_s, pool_max_default, schema_default

_schema_pattern = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_options = ("schema", "pool_max", "busy_timeout_s", "partitions")
_partitions_max = 256
_escaping = "In a password, write @ as %40, / as %2F, ? as %3F, # as %23 and % as %25"


def open_url(url: str, *, create: bool = True) -> PostgresLog:
    """`postgresql://USER:PASSWORD@HOST:PORT/DATABASE?schema=NAME&pool_max=N&busy_timeout_s=S&partitions=N`.

    Everything but those four options is libpq's, and its environment variables and password file count too.

    Raises:
        InvalidUrl: what is wrong with it. The URL itself is not repeated: it may hold a password.
    """
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        # Without its cause, which quotes parts of the URL.
        raise InvalidUrl(f"The URL cannot be read: write postgresql://USER@HOST:PORT/DATABASE. {_escaping}") from None
    ours = dict(pair for pair in pairs if pair[0] in _options)
    # libpq takes a + for a plus.
    rest = urlencode([pair for pair in pairs if pair[0] not in _options], quote_via=quote)
    if not url.startswith("postgresql://"):
        raise InvalidUrl("The URL names no server: write postgresql://USER@HOST:PORT/DATABASE")
    _check_hosts(parts.netloc)
    conninfo = urlunsplit(("postgresql", parts.netloc, parts.path, rest, ""))
    if not parts.netloc:
        # urlunsplit() leaves the two slashes out where no host is named, and libpq needs them.
        conninfo = f"postgresql://{conninfo.removeprefix('postgresql:').removeprefix('//')}"
    try:
        conninfo_to_dict(conninfo)
    except psycopg.Error:
        # Without its words, which may repeat the whole URL.
        raise InvalidUrl(
            "The URL is none that Postgres understands: a wrong option, or a character to be escaped"
        ) from None
    schema = ours.get("schema", schema_default)
    if not _schema_pattern.fullmatch(schema) or schema.startswith("pg_"):
        raise InvalidUrl(f"{schema[:80]!r} is no schema for a log: small letters, digits and _, not pg_…")
    pool_max = _number(ours.get("pool_max", str(pool_max_default)), "pool_max", 1000)
    partitions = _number(ours["partitions"], "partitions", _partitions_max) if "partitions" in ours else None
    busy_timeout_s = ours.get("busy_timeout_s", str(busy_timeout_default_s))
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", busy_timeout_s):
        raise InvalidUrl(f"busy_timeout_s={busy_timeout_s[:80]!r} is no number of seconds")
    return PostgresLog(
        conninfo,
        schema=schema,
        create=create,
        pool_max=pool_max,
        busy_timeout_s=float(busy_timeout_s),
        partitions=partitions,
    )


def _check_hosts(netloc: str) -> None:
    """
    Raises:
        InvalidUrl: a host or a port is not one. Most often that is a part of the password, which libpq would print.
    """
    for host in netloc.rpartition("@")[2].split(","):
        port = host.rpartition("]")[2].partition(":")[2]
        if port and not (port.isascii() and port.isdecimal()):
            raise InvalidUrl(f"A port of the URL is not a number. {_escaping}")
    if netloc.count("@") > 1:
        raise InvalidUrl(f"The URL has more than one @ before the database. {_escaping}")


def _number(text: str, option: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= most):
        raise InvalidUrl(f"{option}={text[:80]!r} makes no sense: write a number from 1 to {most}")
    return int(text)
