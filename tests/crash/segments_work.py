"""What the crash tests of the segments log share: plans of events in both forms of lines, and what must hold after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

import msgspec

from runstate.conformance.notes import findings, keys, note, stored
from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.logs.blob_refs import blob_refs
from runstate.logs.log import BlobRef
from runstate.logs.segments import SegmentsLog
from runstate.logs.segments.compaction import Limits
from runstate.logs.segments.files import SessionFiles
from runstate.logs.segments.verify import examine
from runstate.models.canonical import digest
from runstate.models.model import Draft

root = PurePosixPath("/log")
sent = [f"k{number}" for number in range(5)]
plans = [sent[:2], sent[2:3], sent[3:]]
whole_plans = [0, 2, 3, 5]
limits = Limits(segment_events_max=4)


class SessionDraft(Draft, frozen=True, kw_only=True, gc=False):
    """A line of the session model's shape."""

    def render(self, seq: int, persisted_at: str, previous: bytes | None = None) -> bytes:
        return super().render(seq - 1, persisted_at)


def bare(key: str, text: str = "", session: str = "r") -> Draft:
    members = {"eventId": f"evt-{key}", "sessionId": session, "kind": "noted", "dedupeKey": key, "data": {"text": text}}
    return SessionDraft(
        event_id=f"evt-{key}",
        type="noted",
        key=key,
        tenant="",
        emitted_at="",
        prefix=b'{"eventIndex":%d,"persistedAt":"%b",',
        tail=msgspec.json.encode(members)[1:],
    )


Form = Callable[[str, str], Draft]
forms: dict[str, Form] = {"bare": bare, "framed": note}


def blob_of(key: str) -> bytes:
    return f"the snapshot of {key}".encode()


def ref_of(key: str) -> BlobRef:
    return BlobRef(f"sha256:{digest(blob_of(key))}")


def send(log: SegmentsLog, form: Form, plan: list[str]) -> None:
    """Append a plan. Its first event refers to a blob, which is put before."""
    log.put_blob(blob_of(plan[0]))
    log.append("r", [form(key, ref_of(key) if key == plan[0] else "") for key in plan])


def history(form: Form, sending: list[list[str]]) -> Callable[[SimulatedDisk], Iterator[str]]:
    def scenario(disk: SimulatedDisk) -> Iterator[str]:
        log = SegmentsLog(root, disk=disk, limits=limits)
        for plan in sending:
            send(log, form, plan)
            yield from plan
        log.close()

    return scenario


def opened(disk: SimulatedDisk) -> SegmentsLog:
    return SegmentsLog(root, disk=disk, limits=limits)


def check_stored(disk: SimulatedDisk, acknowledged: tuple[str, ...], during: str) -> list[str]:
    """Acknowledged ⊆ stored ⊆ sent, in order, whole plans, no damage."""
    log = opened(disk)
    seen = keys(stored(log, "r"))
    assert seen == sent[: len(seen)], during
    assert len(seen) >= len(acknowledged), during
    assert len(seen) in whole_plans, during
    assert [finding for finding in log.verify() if finding.severity == "damage"] == [], during
    return seen


def check_pinned(disk: SimulatedDisk, during: str) -> None:
    """Every blob that a stored line refers to is there and pinned, and the collector leaves it alone."""
    log = opened(disk)
    refs = {ref for line in log.lines("r") for ref in blob_refs(line)}
    manifest, spot = examine(disk, SessionFiles("r", root))
    assert spot is None
    assert set(manifest.pins) == refs, during
    log.collect_blobs()
    assert [log.get_blob(ref) for ref in refs], during


def check_recovered(disk: SimulatedDisk, form: Form, acknowledged: tuple[str, ...], during: str) -> None:
    """What a crash left is right before recovery and after it, and the session goes on."""
    seen = check_stored(disk, acknowledged, during)
    log = opened(disk)
    log.put_blob(blob_of("after"))
    assert log.append("r", [form("after", ref_of("after"))])[0].seq == len(seen) + 1, during
    log.close()
    assert keys(stored(opened(disk), "r")) == [*seen, "after"], during
    assert findings(opened(disk)) == [], during
    check_pinned(disk, during)


def check_lasting(disk: SimulatedDisk, during: str) -> None:
    """What a log holds now is there after the next power cut too."""
    held = keys(stored(opened(disk), "r"))
    for crashed in disk.crash_states(states_max=8):
        assert keys(stored(opened(crashed), "r")) == held, during
        assert [f for f in opened(crashed).verify() if f.severity == "damage"] == [], during
