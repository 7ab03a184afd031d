"""Markup that is safe by construction, and figures as people read them.

`tag` escapes whatever is not `Html`, and only `tag` and the page's own constants make `Html`: an id that was made to
break out of the page ends up as the text that it is.
"""

from __future__ import annotations

import html
import math
import re

from runstate.models.escaping import escape_controls

text_chars_max = 1000
"""Characters of one text on the page. Longer ones are cut, with a mark."""

name_chars_max = 200
"""The same for an id or a name."""

missing = "\u2013"
"""Stands where there is nothing to tell."""


class Html(str):
    """Markup, already escaped. Anything that is put together from it by other means than `tag` is plain text again."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | float | bool | None) -> Html:
    """An element. Underscores in the names of attributes are hyphens; None and False leave an attribute out."""
    inside = "".join(child if isinstance(child, Html) else safe(child) for child in children)
    given = "".join(
        f" {key.strip('_').replace('_', '-')}" + ("" if value is True else f'="{_attribute(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{given}>" if name in _void else f"<{name}{given}>{inside}</{name}>")


def joined(*parts: str) -> Html:
    """Parts one after the other; what is no markup is escaped."""
    return Html("".join(part if isinstance(part, Html) else safe(part) for part in parts))


def safe(text: str) -> Html:
    """Text from outside as markup: bounded, escaped, and with invisible and control characters made visible."""
    return Html(html.escape(escape_controls(shortened(text, text_chars_max))))


def identity(text: str) -> Html:
    """An id or a name, kept apart from the direction in which the text around it is written."""
    return tag("bdi", shortened(text, name_chars_max)) if text else Html(missing)


def shortened(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


_void = frozenset({"meta", "input"})
"""Elements of HTML without an end. Those of SVG all have one: without it, what follows would be their child."""


def _attribute(value: str | float) -> str:
    return safe(value) if isinstance(value, str) else number(value)


def number(value: float) -> str:
    """A coordinate: short, and the same on every machine."""
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


# --- figures ---------------------------------------------------------------------------------------------------------


_long = 1e18
"""Figures from here on are written with an exponent: nobody reads that many digits, and no page is that wide."""


def count(value: float | None) -> str:
    """A whole number with separators: 1,234,567."""
    if value is None or not math.isfinite(value):
        return missing
    return f"{value:,.0f}" if value < _long else f"{value:.2e}"


def compact(value: float) -> str:
    """A number for the mark of an axis: 250, 1.5k, 2M."""
    if value >= _long:
        return f"{value:.0e}"
    for size, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f}".removesuffix(".0") + unit
    return f"{value:.0f}"


def compact_money(value: float) -> str:
    """An amount for the mark of an axis: 0.25, 12, 1.5k."""
    return compact(value) if value >= 10 or value == 0 else f"{value:.2g}"


def share(value: float | None) -> str:
    """A fraction as a percentage. What is not nothing never reads as 0%."""
    if value is None or not math.isfinite(value):
        return missing
    if 0 < value < 0.001:
        return "<0.1%"
    return f"{value * 100:.1f}%".replace(".0%", "%")


def money(value: float | None) -> str:
    """An amount in whatever currency the events are in: two digits after the point, more for less than 1."""
    if value is None or not math.isfinite(value):
        return missing
    if value >= _long:
        return f"{value:.2e}"
    if value == 0 or value >= 1:
        return f"{value:,.2f}"
    return f"{value:.4f}" if value >= 0.0001 else "<0.0001"


def duration(milliseconds: float | None) -> str:
    """Milliseconds in the unit that fits: 0.4 ms, 830 ms, 12.4 s, 3 min 12 s, 2 h 5 min, 3 d 4 h."""
    if milliseconds is None or not math.isfinite(milliseconds):
        return missing
    if milliseconds < 999.5:
        return f"{milliseconds:.0f} ms" if milliseconds >= 9.95 or milliseconds == 0 else f"{milliseconds:.1f} ms"
    seconds = milliseconds / 1000
    if seconds < 59.95:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    if seconds >= _long:
        return f"{seconds / 86400:.2e} d"
    whole = round(seconds)
    for unit, below, size, size_below in (("min", "s", 60, 1), ("h", "min", 3600, 60), ("d", "h", 86400, 3600)):
        limit = {"min": 3600, "h": 86400, "d": math.inf}[unit]
        if whole < limit:
            big, rest = divmod(whole, size)
            small = rest // size_below
            return f"{big:,} {unit} {small} {below}" if small else f"{big:,} {unit}"
    return missing


def moment(at: str | None) -> str:
    """A time to read: 2026-11-15 09:30:00 UTC. What is not written like one is shown as it is."""
    if not at:
        return missing
    day, _, clock = at.upper().partition("T")
    if len(day) != 10 or len(clock) < 8 or not clock.endswith(("Z", "+00:00")):
        return at
    return f"{day} {clock[:8]} UTC"


def exact_moment(at: str | None) -> str:
    """The same with its milliseconds, if it has some: 2026-11-15 09:30:00.250 UTC."""
    words, fraction = moment(at), re.search(r"\.[0-9]{1,3}", at or "")
    return words.replace(" UTC", f"{fraction[0]} UTC") if fraction and words != at else words
