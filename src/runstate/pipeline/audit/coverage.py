"""Whether an audit has looked at all streams that were planned: what its rows of `audit.covered` say about that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name that users of Spark know

from runstate.errors import shown_url
from runstate.pipeline.source.census import Seen, check_seen, counted
from runstate.pipeline.source.relative_urls import located

_given: dict[str, str] = {}
"""The URLs of this process' audits, by what stands for them in findings: rows hold no secrets."""


class _Unseen(msgspec.Struct, frozen=True):
    urls: list[str]
    told: Seen


def remember(urls: Sequence[str]) -> None:
    """On the driver: keep the URLs of an audit, to look at the logs again."""
    _given.update({_stored(url): located(url) for url in urls})


def _stored(url: str) -> str:
    return shown_url(located(url))


def unseen(urls: Sequence[str]) -> dict[str, Any]:
    """For the details of a task's last row: that it has met fewer streams than were planned."""
    told = counted()
    if told is None or not told.is_short:
        return {}
    return {"unseen": _Unseen([*map(_stored, urls)], told)}


def unseen_texts() -> Column:
    """All such details of some rows, as `unseen`."""
    return F.collect_list(F.get_json_object("details", "$.unseen")).alias("unseen")


def check_all_seen(texts: Iterable[str]) -> None:
    """
    Raises:
        PipelineFailed: a task has not seen streams that the driver still sees.
    """
    for text in texts:
        found = msgspec.json.decode(text, type=_Unseen)
        check_seen("audit", [_given.get(url, url) for url in found.urls], [found.told])
