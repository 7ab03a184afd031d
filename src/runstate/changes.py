"""What differs between two JSON documents: one line per value that was added, removed or changed."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One difference. `path` is a JSON Pointer (RFC 6901)."""

    path: str
    kind: Literal["added", "removed", "changed"]
    before: Any = None
    after: Any = None


def changes(before: Any, after: Any, path: str = "") -> list[Change]:
    """The differences, in document order. Lists are compared place by place: folds only ever add at their end."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = [*before, *(name for name in after if name not in before)]
        return [c for name in names for c in _member(before, after, name, f"{path}/{_escaped(name)}")]
    if isinstance(before, list) and isinstance(after, list):
        pairs = dict(enumerate(before)), dict(enumerate(after))
        places = range(max(len(before), len(after)))
        return [c for place in places for c in _member(*pairs, place, f"{path}/{place}")]
    if before == after and type(before) is type(after):
        return []
    return [Change(path, "changed", before, after)]


def _member(before: dict[Any, Any], after: dict[Any, Any], name: Any, path: str) -> list[Change]:
    if name not in before:
        return [Change(path, "added", after=after[name])]
    if name not in after:
        return [Change(path, "removed", before=before[name])]
    return changes(before[name], after[name], path)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
