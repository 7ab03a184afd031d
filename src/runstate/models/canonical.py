"""One way to write JSON down, so that digests can be compared across machines and languages.

`parse` takes text from outside and accepts only what RFC 7493 (I-JSON) calls interoperable: UTF-8, no
duplicate names, no lone surrogates, no NaN, no integer that a double cannot hold. `canonical` writes the
bytes of RFC 8785, over which every digest is taken.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from typing import Any, NoReturn

import msgspec
import rfc8785

from runstate.errors import InvalidJson

depth_max = 100
"""How deep JSON may be nested. Deeper documents are attacks or accidents, and break recursive readers."""

undecodable = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What msgspec raises about bytes that are not the JSON it expects. RecursionError: they are nested too deep."""

integer_max = 2**53 - 1
"""The largest integer that every JSON reader keeps exact."""


def canonical(value: Any) -> bytes:
    """The RFC 8785 bytes of a JSON value.

    Raises:
        InvalidJson: the value holds something that JSON cannot say (NaN, 2^63, a lone surrogate).
    """
    try:
        return rfc8785.dumps(_as_doubles(value))
    except (rfc8785.CanonicalizationError, RecursionError, TypeError, OverflowError, UnicodeError) as error:
        raise InvalidJson(f"No canonical form: {error}") from error


def _as_doubles(value: Any) -> Any:
    """JSON has one kind of number, the double, and RFC 8785 writes a large one like an integer: 1e20 as 1 and 20 zeros.

    Read back, those digits are an integer beyond 2^53. They must give the same bytes again; no other such integer may.
    """
    kind = type(value)
    if kind is int and abs(value) > integer_max and rfc8785.dumps(float(value)) == b"%d" % value:
        return float(value)
    if kind is dict:
        return {name: _as_doubles(member) for name, member in value.items()}
    if kind is list or kind is tuple:
        return [_as_doubles(item) for item in value]
    return value


def embed(value: Any) -> Any:
    """`value`, in a form that msgspec's sorted encoder writes as RFC 8785 would.

    msgspec is far faster, and differs in two points alone: how it writes large numbers and floats, and how it sorts
    names beyond ASCII. A value with neither is handed back as it is.
    """
    return value if _plain(value) else msgspec.Raw(canonical(value))


def _plain(value: Any) -> bool:
    found = [value]
    for item in found:  # It grows by what stands in them.
        kind = type(item)
        if kind is dict:
            if not _are_ascii(item):
                return False
            found += item.values()
        elif kind is list:
            found += item
        elif kind is int:
            if not -integer_max <= item <= integer_max:
                return False
        elif not (kind is str or item is None or kind is bool):
            return False
    return True


def _are_ascii(names: Iterable[Any]) -> bool:
    try:
        return "".join(names).isascii()
    except TypeError:  # One is no text.
        return False


def digest(data: bytes) -> str:
    """Lower-case hex SHA-256."""
    return hashlib.sha256(data).hexdigest()


def parse(text: bytes | str) -> Any:
    """Read one JSON value from outside.

    Raises:
        InvalidJson: it is not JSON, or readers would disagree on what it says; the message says where.
    """
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        _check_text(decoded, "$")
        # Counting brackets first keeps the recursive parser below from ever meeting a bomb.
        if decoded.count("[") + decoded.count("{") > depth_max and _depth(decoded) > depth_max:
            raise InvalidJson(f"JSON is nested deeper than {depth_max} levels; flatten it")
        value = _decoder.decode(decoded)
        if "\\u" in decoded:
            _refuse_lone_surrogates(decoded, value)
    except UnicodeDecodeError as error:
        raise InvalidJson(f"Not UTF-8: byte {error.start} is {text[error.start]!r}") from error
    except json.JSONDecodeError as error:
        raise InvalidJson(f"Not JSON: {error.msg} at column {error.colno}") from error
    return value


def check_value(value: Any, path: str = "$", depth: int = 0) -> None:
    """Refuse a Python value that would not survive the way into JSON and back unchanged.

    `depth` is how many objects and lists the value will stand in.

    Raises:
        InvalidJson: naming the path of the first such value.
    """
    kind = type(value)
    if depth >= depth_max and (kind is dict or kind is list or kind is tuple):
        raise InvalidJson(f"JSON is nested deeper than {depth_max} levels; flatten it")
    if kind is str:
        _check_text(value, path)
    elif kind is dict:
        for name, member in value.items():
            if type(name) is not str:
                raise InvalidJson(f"A name must be a string at {path}, got {name!r}")
            _check_text(name, path)
            check_value(member, f"{path}.{name}", depth + 1)
    elif kind is list or kind is tuple:
        for index, item in enumerate(value):
            check_value(item, f"{path}[{index}]", depth + 1)
    elif kind is int:
        _check_integer(value, path)
    elif kind is float:
        if not math.isfinite(value):
            raise InvalidJson(f"{value} at {path} is no JSON number; leave the field out or send null")
    elif value is not None and kind is not bool:
        raise InvalidJson(f"{kind.__name__} at {path} is no JSON value")


def is_text(text: str) -> bool:
    """Whether it can be written as UTF-8: whether it has no lone surrogate."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _check_text(text: str, path: str) -> None:
    if not is_text(text):
        raise InvalidJson(f"A lone surrogate at {path} is no text")


def _check_integer(value: int, path: str) -> None:
    if not -integer_max <= value <= integer_max:
        raise InvalidJson(f"The integer at {path} is beyond 2^53 and would lose digits; send it as a string")


def _depth(text: str) -> int:
    """The deepest nesting in `text`, brackets inside strings left out."""
    deepest = level = 0
    in_string = escaped = False
    for sign in text:
        if in_string:
            if escaped:
                escaped = False
            elif sign == "\\":
                escaped = True
            elif sign == '"':
                in_string = False
        elif sign == '"':
            in_string = True
        elif sign in "[{":
            level += 1
            deepest = max(deepest, level)
            if deepest > depth_max:
                break
        elif sign in "]}":
            level -= 1
    return deepest


def _refuse_lone_surrogates(text: str, value: Any) -> None:
    if "\\ud" in text.lower():
        check_value(value)


def _integer(digits: str) -> int:
    # The length comes first: int() on a million digits is itself an attack.
    if len(digits) > 17 or abs(int(digits)) > integer_max:
        raise InvalidJson(f"The integer {digits[:20]} is beyond 2^53 and would lose digits; send it as a string")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise InvalidJson(f"The number {digits[:20]} is too large for JSON; send it as a string")
    return value


def _no_constant(name: str) -> NoReturn:
    raise InvalidJson(f"{name} is no JSON number; leave the field out or send null")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InvalidJson(f"The name {twice!r} stands twice in one object; readers would disagree on its value")
    return members


_decoder = json.JSONDecoder(
    object_pairs_hook=_members, parse_int=_integer, parse_float=_float, parse_constant=_no_constant
)
