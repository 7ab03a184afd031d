"""Files of segments that the manifest does not name: what a crash leaves, what a merge leaves, or a manifest cut short.

A segment without its line in the manifest never happened. Since the line of one segment is durable before the next one
is begun, a crash leaves at most the one that would come next; a later one shows that lines are missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from runstate.logs.segments.damage import EVENTS_MISSING, MANIFEST_CUT, Spot
from runstate.logs.segments.files import MANIFEST, span_of
from runstate.logs.segments.manifest import Manifest

Stray = Literal["unfinished", "merged", "beyond", "odd"]
"""A segment's file that the manifest does not name: of an append that never happened, of a merge (its events stand in
another file), of lines that the manifest has lost, or none of these."""


def strays(names: Sequence[str], manifest: Manifest) -> Iterator[tuple[str, Stray]]:
    """The files of segments that the manifest does not name, among those that there were before it was read."""
    standing = {segment.name for segment in manifest.segments}
    firsts = {segment.first for segment in manifest.closed}
    lasts = {segment.last for segment in manifest.closed}
    for name in names:
        if name in standing or (span := span_of(name)) is None:
            continue
        first, last = span
        if first > manifest.events:
            yield name, "beyond"
        elif first == manifest.events or (first in firsts and last >= manifest.events):
            yield name, "unfinished"
        else:
            yield name, "merged" if first in firsts and last in lasts else "odd"


def cut_short(names: Sequence[str], manifest: Manifest, *, is_there: bool) -> Spot | None:
    """Whether the manifest, or its file, has lost lines that it once had."""
    if not is_there:
        # Its file is made durable before the first segment is begun, so no crash leaves a segment alone.
        segments = [name for name in names if span_of(name) is not None]
        message = f"The manifest is gone, and there is {segments[0]}" if segments else ""
        return Spot(MANIFEST_CUT, message, 0, MANIFEST) if segments else None
    beyond = [name for name, kind in strays(names, manifest) if kind == "beyond"]
    if not beyond:
        return None
    message = f"The manifest ends before event {manifest.events}, and there is {beyond[0]}: lines of it are missing"
    return Spot(MANIFEST_CUT, message, manifest.events, MANIFEST, manifest.end)


def missing_events(manifest: Manifest, told: int) -> Spot:
    """The spot where events are missing that a snapshot tells of."""
    message = f"There were {told} events, now there are {manifest.events}"
    return Spot(EVENTS_MISSING, message, manifest.events, MANIFEST, manifest.end)
