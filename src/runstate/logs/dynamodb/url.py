"""What a `dynamodb://` URL says: which table of which region is the log. Credentials are never part of it."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from runstate.errors import InvalidUrl
from runstate.logs.dynamodb.log import DynamoLog
from runstate.logs.dynamodb.table import busy_timeout_default_s

_form = "dynamodb://TABLE?region=REGION&endpoint=URL&busy_timeout_s=S"
_table_pattern = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_region_pattern = re.compile(r"[a-z0-9-]{1,64}")
_seconds_pattern = re.compile(r"[0-9]{1,6}(\.[0-9]{1,3})?")
_options = ("region", "endpoint", "busy_timeout_s")


def open_url(url: str, *, create: bool = True) -> DynamoLog:
    """`dynamodb://TABLE?region=REGION&endpoint=URL&busy_timeout_s=S`; the options may be left out.

    Without a region, the one of the AWS configuration counts; credentials always come from there.

    Raises:
        InvalidUrl: what is wrong with it. The URL itself is not repeated: somebody may have put a secret into it.
    """
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        # Without its cause, which quotes parts of the URL.
        raise InvalidUrl(f"The URL cannot be read: write {_form}") from None
    options = dict(pairs)
    if len(options) < len(pairs) or not set(options) <= set(_options):
        raise InvalidUrl(f"The URL has an option twice, or one that is not known: write {_form}")
    if "@" in parts.netloc:
        raise InvalidUrl("The URL holds credentials: leave them to the AWS configuration, a profile, or a role")
    if not url.startswith("dynamodb://") or parts.path or parts.fragment or not _table_pattern.fullmatch(parts.netloc):
        raise InvalidUrl(f"The URL names no table (3 to 255 letters, digits, '_', '.', '-'): write {_form}")
    region, endpoint = options.get("region"), options.get("endpoint")
    if region is not None and not _region_pattern.fullmatch(region):
        raise InvalidUrl(f"region={region[:80]!r} is no region: write one like eu-central-1")
    if endpoint is not None:
        _check_endpoint(endpoint)
    busy_timeout_s = options.get("busy_timeout_s", str(busy_timeout_default_s))
    if not _seconds_pattern.fullmatch(busy_timeout_s):
        raise InvalidUrl(f"busy_timeout_s={busy_timeout_s[:80]!r} is no number of seconds")
    return DynamoLog(
        parts.netloc, region=region, endpoint=endpoint, create=create, busy_timeout_s=float(busy_timeout_s)
    )


def _check_endpoint(endpoint: str) -> None:
    wrong = InvalidUrl("The endpoint is none: write endpoint=http://HOST:PORT or https://HOST, without credentials")
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise wrong
    if parts.username is not None or parts.query or parts.fragment or parts.path.strip("/"):
        raise wrong
