"""Makes text from outside safe to show: characters that steer a terminal or reorder a line become visible escapes."""

from __future__ import annotations

import re

_unsafe = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # control characters, among them the ones that begin an escape sequence
    "\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # direction marks, invisible characters
    "\u2028\u2029"  # line and paragraph separators
    "\U000e0000-\U000e007f"  # invisible tags
    "\ud800-\udfff"  # lone surrogates, which no encoding can write
    "]"
)


def escape_controls(text: str, *, keep: str = "") -> str:
    """The text with each unsafe character, except those in `keep`, written as JSON would escape it: `\\u001b`.

    Inside a JSON string the escape means the same character, so JSON stays the same value.
    """
    return _unsafe.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), text)


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
