"""What `verify` looks at in a session: manifest, segments, the digests of merged ones, pins, strays, snapshots."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate

import msgspec

from runstate.errors import LogDamaged
from runstate.logs.blob_refs import MISSING, blob_finding
from runstate.logs.frames import Damage
from runstate.logs.log import BlobRef, Finding
from runstate.logs.segments.damage import SEGMENT_DAMAGED, Spot, damage_finding, spot_of
from runstate.logs.segments.files import EVENTS, MANIFEST, SessionFiles
from runstate.logs.segments.lines import read_line
from runstate.logs.segments.manifest import Manifest, Segment
from runstate.logs.segments.reading import Reader, Recent
from runstate.logs.segments.recovery import TORN_TAIL
from runstate.logs.segments.snapshots import Kept, read_snapshot, snapshot_models
from runstate.logs.segments.strays import missing_events, strays
from runstate.logs.set_aside import list_set_aside
from runstate.models.canonical import digest
from runstate.storage.directories import names_in
from runstate.storage.disk import Disk

Told = Callable[[Manifest, int, list[bytes]], None]
"""Told of each segment that is intact: the index of its first event, and its lines."""


def examine(disk: Disk, files: SessionFiles, told: Told = lambda *_: None) -> tuple[Manifest, Spot | None]:
    """A session's manifest, and the first damage in it or in what it tells of. Everything is read from the disk.

    Raises:
        LogBusy: it was deleted and begun again meanwhile; look again.
    """
    reader = Reader(disk, files, Recent())
    view = reader.look()
    try:
        for first, lines, _ in reader.blocks(0, view):
            told(view.origin, first, lines)
    except LogDamaged as error:
        return view.origin, _narrowed(disk, files, view.origin, spot_of(error))
    return view.origin, None


def verify_session(disk: Disk, files: SessionFiles, has_blob: Callable[[BlobRef], bool]) -> Iterator[Finding]:
    """Findings for one session."""
    # The manifest last: of two looks at a session that is being written, the later one may show more.
    names, kept = names_in(disk, files.events), _kept(disk, files)
    check = _Check(files)
    manifest, spot = examine(disk, files, check)
    yield from check.found
    if spot is not None:
        yield damage_finding(files.stream, spot)
    else:
        yield from _remains(disk, files, manifest, names)
        yield from _snapshots(Reader(disk, files, Recent()), kept, manifest)
    for pin in manifest.pins.values():
        if not has_blob(pin.ref):
            yield blob_finding(MISSING, files.stream, pin.index + 1, pin.ref)
    yield from list_set_aside(disk, files.stream, files.home, EVENTS)


class _Check:
    """What is to be said of segments that are intact: each line, each key, each digest of what was merged."""

    def __init__(self, files: SessionFiles) -> None:
        self.found: list[Finding] = []
        self._files, self._keys = files, set[str]()
        self._closed: list[Segment] = []

    def __call__(self, manifest: Manifest, first: int, lines: list[bytes]) -> None:
        if len(self._closed) != len(manifest.closed):
            self._closed = sorted(manifest.closed, key=lambda part: part.first)
        self._prove(first, lines)
        for seq, line in enumerate(lines, first + 1):
            try:
                key = read_line(self._files.stream, seq, line).key
            except Damage as damage:
                self._add(damage.code, str(damage), seq)
                continue
            if key in self._keys:
                self._add("log.key_twice", f"The key {key[:80]!r} stands for two events", seq)
            self._keys.add(key)

    def _prove(self, first: int, lines: list[bytes]) -> None:
        ends = list(accumulate((len(line) + 1 for line in lines), initial=0))
        data = b"".join([line + b"\n" for line in lines])
        for at in range(bisect_left(self._closed, first, key=lambda part: part.first), len(self._closed)):
            part = self._closed[at]
            if part.first >= first + len(lines):
                break
            is_inside = part.last < first + len(lines)
            if is_inside and digest(data[ends[part.first - first] : ends[part.last - first + 1]]) != part.sha256:
                message = f"Events {part.first} to {part.last} are not those that were closed before a merge"
                self._add("log.merge_unproven", message, part.first + 1)

    def _add(self, code: str, message: str, seq: int) -> None:
        self.found.append(Finding(code=code, message=message, stream=self._files.stream, seq=seq))


def _narrowed(disk: Disk, files: SessionFiles, manifest: Manifest, spot: Spot) -> Spot:
    """In a merged segment, the digests of those that it was made of tell more exactly where it has changed."""
    whole = next((each for each in manifest.segments if spot.file == f"{EVENTS}/{each.name}"), None)
    if spot.code != SEGMENT_DAMAGED or whole is None:
        return spot
    try:
        data = disk.read(files.home / spot.file)
    except FileNotFoundError:
        return spot
    offset, first = 0, whole.first
    for part in manifest.closed:
        if part.first == first and part.last <= whole.last and part != whole:
            if digest(data[offset : offset + part.bytes]) != part.sha256:
                return msgspec.structs.replace(spot, offset=offset, bytes=part.bytes)
            offset, first = offset + part.bytes, part.last + 1
    return spot


def _remains(disk: Disk, files: SessionFiles, manifest: Manifest, names: list[str]) -> Iterator[Finding]:
    """What no append wrote and no crash leaves; an append that was killed is no finding."""
    for name, kind in strays(names, manifest):
        if kind == "odd":
            yield Finding(
                code="log.orphan_segment",
                message=f"{EVENTS}/{name} is neither in the manifest nor what a crash leaves; it is ignored",
                severity="warning",
                stream=files.stream,
                details={"file": f"{EVENTS}/{name}"},
            )
    if manifest.torn_bytes and b"\0" in disk.read(files.manifest)[manifest.end :]:
        yield Finding(
            code=TORN_TAIL,
            message=f"{manifest.torn_bytes} bytes behind line {manifest.lines - 1} of the manifest are no whole line; "
            "the next append keeps and cuts them",
            severity="warning",
            stream=files.stream,
            seq=manifest.events + 1,
            details={"file": MANIFEST, "offset": manifest.end, "bytes": manifest.torn_bytes, "intact": manifest.events},
        )


def _kept(disk: Disk, files: SessionFiles) -> dict[str, Kept | None]:
    models = snapshot_models(disk, files) if disk.exists(files.home) else []
    return {model: read_snapshot(disk, files, model) for model in models}


def _snapshots(reader: Reader, kept: dict[str, Kept | None], manifest: Manifest) -> Iterator[Finding]:
    files = reader.files
    for model, found in kept.items():
        if found is None or (found.events <= manifest.events and not found.is_of(reader)):
            yield Finding(
                code="snapshot.digest_mismatch",
                message=f"{files.snapshot(model).name} is not what was saved of these events; "
                "rebuild it with 'runstate replay'",
                stream=files.stream,
            )
        elif found.events > manifest.events:
            yield damage_finding(files.stream, missing_events(manifest, found.events))
