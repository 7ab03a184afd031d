"""Text keeps to its budget of bytes: what is longer is refused, or cut with a visible marker, as its type says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

from msgspec import inspect

from runstate.errors import InvalidEvent
from runstate.models.canonical import integer_max
from runstate.models.session.events import SessionEvent

cut_marker = "…[cut]"
_each = "[]"
"""Stands in a path for every item of a list."""

_Rule = Callable[[Any, str], Any]


def cut(text: str, bytes_max: int) -> str:
    """The text if it fits; else as many of its whole characters as fit with a marker that shows the cut."""
    data = text.encode()
    if len(data) <= bytes_max:
        return text
    return data[: bytes_max - len(cut_marker.encode())].decode("utf-8", "ignore") + cut_marker


def fit(members: dict[str, Any]) -> dict[str, Any]:
    """An event's members on their way in: long text cut where its type says so, and 1.0 taken for the integer 1.

    Raises:
        InvalidEvent: a text that may not be cut has more bytes than its budget.
    """
    return _applied(_entering, members)


def check(members: dict[str, Any]) -> None:
    """
    Raises:
        InvalidEvent: a text in a stored event has more bytes than its budget.
    """
    _applied(_stored, members)


def _applied(rules: dict[str, list[tuple[tuple[str, ...], _Rule]]], members: dict[str, Any]) -> dict[str, Any]:
    kind = members.get("kind")
    for path, rule in rules.get(kind, []) if isinstance(kind, str) else []:
        members = _changed(members, path, rule, "$")
    return members


def _changed(value: Any, path: tuple[str, ...], rule: _Rule, place: str) -> Any:
    """The value with a rule applied at a path. What has not the shape for it is left for the decoder to refuse."""
    if not path:
        return rule(value, place)
    name, rest = path[0], path[1:]
    if name == _each:
        if not isinstance(value, list | tuple):
            return value
        return [_changed(item, rest, rule, f"{place}[{number}]") for number, item in enumerate(value)]
    if not isinstance(value, dict) or name not in value:
        return value
    return value | {name: _changed(value[name], rest, rule, f"{place}.{name}")}


def _cut(bytes_max: int, value: Any, place: str) -> Any:
    return cut(value, bytes_max) if isinstance(value, str) else value


def _refuse(bytes_max: int, value: Any, place: str) -> Any:
    if isinstance(value, str) and len(value.encode()) > bytes_max:
        raise InvalidEvent(f"{place} has {len(value.encode())} bytes of UTF-8, at most {bytes_max} are taken")
    return value


def _integral(value: Any, place: str) -> Any:
    return int(value) if type(value) is float and value.is_integer() and abs(value) <= integer_max else value


def _parts(shape: inspect.Type, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], inspect.Type]]:
    """The path of every text that has a budget, and of every integer."""
    match shape:
        case inspect.Metadata() | inspect.IntType():
            yield path, shape
        case inspect.StructType(fields=fields):
            for field in fields:
                yield from _parts(field.type, (*path, field.encode_name))
        case inspect.VarTupleType(item_type=item):
            yield from _parts(item, (*path, _each))
        case inspect.UnionType(types=types):
            for option in types:
                yield from _parts(option, path)


def _rules(*, entering: bool) -> dict[str, list[tuple[tuple[str, ...], _Rule]]]:
    rules: dict[str, list[tuple[tuple[str, ...], _Rule]]] = {}
    for kind in cast(inspect.UnionType, inspect.type_info(SessionEvent)).types:
        found = rules.setdefault(str(cast(inspect.StructType, kind).tag), [])
        for path, part in _parts(kind):
            if isinstance(part, inspect.Metadata):
                bytes_max = cast(inspect.StrType, part.type).max_length or 0
                is_cut = entering and (part.extra or {})["too_long"] == "cut"
                found.append((path, partial(_cut if is_cut else _refuse, bytes_max)))
            elif entering:
                found.append((path, _integral))
    return rules


_entering, _stored = _rules(entering=True), _rules(entering=False)
