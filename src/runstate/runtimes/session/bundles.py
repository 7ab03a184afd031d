"""Bundles: a whole session as one JSON file, to be carried to another machine.

    {"format": "runstate.session", "version": 1, "sessionId": …,
     "manifest": [{"path": …, "sha256": …, "bytes": …}, …],
     "events": […], "workflows": {REF: …}, "snapshots": {REF: …}, "artifacts": {REF: base64}, "digest": …}

All digests are over RFC 8785 bytes, so a bundle may be indented, or go through any JSON tool, and is still the same.
`digest` is over the manifest and what stands before it, and so over everything. That of the events leaves each event's
`sessionId` out: the session may get another name where it is imported, and the same events in the same order still
prove themselves. A bundle holds no token and no key.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta

from runstate.errors import BlobNotFound, InvalidEvent, KeyMismatch, RunstateError, StreamNotFound
from runstate.logs.blob_refs import blob_refs
from runstate.logs.log import BlobRef, EventLog, Record
from runstate.models.canonical import canonical, digest, embed, parse
from runstate.models.session import SESSION
from runstate.models.session.events import SessionEvent
from runstate.models.session.ids import SessionId
from runstate.models.session.keys import fits
from runstate.models.session.state import Session
from runstate.runtimes.session.journal import impossible
from runstate.runtimes.session.node_snapshots import check_end, read_snapshot
from runstate.runtimes.session.places import Place
from runstate.runtimes.session.refusals import BundleTooNew, InvalidBundle
from runstate.runtimes.session.workflow import read_workflow

bundle_format = "runstate.session"
bundle_version = 1
bundle_bytes_max = 512 * 1024 * 1024
"""A larger file is refused before it is looked into."""

_sorted = msgspec.json.Encoder(order="sorted")
_Digest = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
_path = re.compile(r"events/[0-9]{12}-[0-9]{12}\.jsonl|(?:workflows|snapshots|artifacts)/sha256/[0-9a-f]{64}")


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of a bundle's manifest: a file of the session, as it would stand in a directory."""

    path: str
    sha256: _Digest
    bytes: int


class Bundle(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A bundle, as it stands in its file."""

    format: str = bundle_format
    version: int = bundle_version
    session_id: SessionId
    manifest: tuple[Part, ...] = ()
    events: list[dict[str, Any]]
    workflows: dict[_Digest, Any]
    snapshots: dict[_Digest, Any]
    artifacts: dict[_Digest, str]
    digest: str = ""

    def with_digests(self) -> Bundle:
        listed = msgspec.structs.replace(self, manifest=tuple(_parts(self)))
        return msgspec.structs.replace(listed, digest=_digest_of(listed))


class Imported(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A session that was taken over from a bundle."""

    session_id: SessionId
    imported_from: SessionId
    """What it is called where it comes from. Another id than its own: there was a session of that id here."""
    events: int
    events_digest: str
    bundle_digest: str
    tips: list[Place]
    """Where to go on, one place for each run, with tokens that were made here."""


class Opened(msgspec.Struct, frozen=True):
    """A bundle of which everything was found to be right."""

    session_id: SessionId
    digest: str
    events_digest: str
    """The same for the same events in the same order, whatever the session is called."""
    events: list[SessionEvent]
    blobs: list[bytes]
    state: Session

    def records(self, session_id: SessionId) -> list[Record]:
        """The events as the log of a session of that id holds them."""
        records = []
        for seq, event in enumerate(self.events, 1):
            write = msgspec.structs.replace(event, session_id=session_id, event_index=UNSET, persisted_at=UNSET)
            draft, persisted_at = SESSION.draft(write)[1], str(event.persisted_at)
            records.append(
                Record(
                    stream=session_id,
                    seq=seq,
                    event_id=draft.event_id,
                    type=draft.type,
                    key=draft.key,
                    tenant=draft.tenant,
                    emitted_at=draft.emitted_at,
                    persisted_at=persisted_at,
                    body=draft.render(seq, persisted_at),
                )
            )
        return records


def pack(log: EventLog, session_id: SessionId) -> bytes:
    """A session as a bundle that `unpack` takes.

    Raises:
        StreamNotFound: there is no such session.
        LogDamaged, BlobNotFound: something of it is not there as it was.
        InvalidTransition: the log holds events that are impossible, and that nobody would take over.
    """
    if log.stream(session_id) is None:
        raise StreamNotFound(f"There is no session {session_id!r}", stream=session_id)
    lines = list(log.lines(session_id))
    state = SESSION.fold(SESSION.initial(session_id), lines)
    workflows = {BlobRef(run.workflow_hash) for run in state.runs.values()}
    snapshots = {BlobRef(node.snapshot_ref) for node in state.nodes.values()}
    others = {ref for line in lines for ref in blob_refs(line)} - workflows - snapshots
    needed = _given_out(state)
    bundle = Bundle(
        session_id=session_id,
        events=[parse(line) for line in lines],
        workflows={ref: parse(log.get_blob(ref)) for ref in sorted(workflows)},
        snapshots={ref: parse(log.get_blob(ref)) for ref in sorted(snapshots)},
        artifacts={
            ref: text for ref in sorted(others) if (text := _artifact(log, ref, needed=ref in needed)) is not None
        },
    )
    data = msgspec.json.encode(bundle.with_digests()) + b"\n"
    unpack(data)  # What nobody could import is no bundle.
    return data


def unpack(data: bytes) -> Opened:
    """Check everything about a bundle. Writes nothing.

    Raises:
        BundleTooNew: upgrade to read it.
        InvalidBundle: with the `reason`, and the `path` of the part it is about.
        InvalidJson, InvalidEvent, KeyMismatch, InvalidTransition: one of its events is none, with its `event_index`.
        InvalidWorkflow, InvalidSnapshot, SnapshotOfAnotherWorkflow, SnapshotTooNew: its runs do not stand on what they
            should.
    """
    bundle = _decoded(data)
    _check_digests(bundle)
    events, state = _checked_events(bundle)
    blobs = _checked_blobs(bundle, state)
    return Opened(bundle.session_id, bundle.digest, bundle.manifest[0].sha256, events, blobs, state)


# --- the file --------------------------------------------------------------------------------------------


def _decoded(data: bytes) -> Bundle:
    if len(data) > bundle_bytes_max:
        raise InvalidBundle(f"The bundle has more than {bundle_bytes_max} bytes", reason="size")
    value = parse(data)
    if not isinstance(value, dict) or value.get("format") != bundle_format:
        raise InvalidBundle("The file is no bundle of a session", reason="format")
    version = value.get("version")
    if type(version) is int and version > bundle_version:
        raise BundleTooNew(
            f"The bundle has version {version}, this Runstate reads up to {bundle_version}; nothing was imported",
            version=version,
        )
    try:
        bundle = msgspec.convert(value, Bundle)
    except msgspec.ValidationError as error:
        raise InvalidBundle(f"The bundle is refused: {error}", reason="shape") from error
    if bundle.version != bundle_version or not bundle.events:
        raise InvalidBundle("The bundle is refused: it has no events, or no version there ever was", reason="shape")
    return bundle


def _parts(bundle: Bundle) -> list[Part]:
    lines = b"".join(_canonical({n: v for n, v in e.items() if n != "sessionId"}) + b"\n" for e in bundle.events)
    parts = [_part(f"events/{0:012d}-{len(bundle.events) - 1:012d}.jsonl", lines)]
    for name, blobs, encode in _sections(bundle):
        parts += [_part(f"{name}/{ref.replace(':', '/')}", encode(blobs[ref])) for ref in sorted(blobs)]
    return parts


def _sections(bundle: Bundle) -> list[tuple[str, dict[str, Any], Callable[[Any], bytes]]]:
    return [
        ("workflows", bundle.workflows, _canonical),
        ("snapshots", bundle.snapshots, _canonical),
        ("artifacts", bundle.artifacts, _bytes),
    ]


def _part(path: str, data: bytes) -> Part:
    return Part(path=path, sha256=f"sha256:{digest(data)}", bytes=len(data))


def _digest_of(bundle: Bundle) -> str:
    head = {name: getattr(bundle, name) for name in ("format", "version", "manifest")}
    return f"sha256:{digest(canonical(msgspec.to_builtins(head | {'sessionId': bundle.session_id})))}"


def _canonical(value: Any) -> bytes:
    """RFC 8785, at the speed of msgspec: a bundle may hold a hundred thousand events."""
    return _sorted.encode(embed(value))


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError) as error:
        raise InvalidBundle(f"An artifact is no base64: {error}", reason="artifact") from error


def _artifact(log: EventLog, ref: BlobRef, *, needed: bool) -> str | None:
    """What an event refers to, if the log holds it: what no output names as its artifact may be the digest of anything.

    Raises:
        BlobNotFound: it is needed, and gone.
    """
    try:
        return b64encode(log.get_blob(ref)).decode()
    except BlobNotFound:
        if needed:
            raise
        return None


def _given_out(state: Session) -> set[str]:
    """What the outputs of a session name as their artifacts."""
    return {artifact.digest for output in state.outputs.values() for artifact in output.artifacts}


# --- what must be so -------------------------------------------------------------------------------------


def _check_digests(bundle: Bundle) -> None:
    for part in bundle.manifest:
        if not _path.fullmatch(part.path):
            raise InvalidBundle(f"{part.path[:200]!r} is no path in a bundle", reason="path", path=part.path[:200])
    expected = _parts(bundle)
    if [part.path for part in bundle.manifest] != [part.path for part in expected]:
        raise InvalidBundle("The manifest does not list what the bundle holds", reason="manifest")
    for listed, found in zip(bundle.manifest, expected, strict=True):
        hexes = found.path.partition("/sha256/")[2]
        if listed != found or (hexes and found.sha256 != f"sha256:{hexes}"):
            raise InvalidBundle(f"{found.path} has not the digest that it should", reason="digest", path=found.path)
    if bundle.digest != _digest_of(bundle):
        raise InvalidBundle("The bundle has not the digest that it should", reason="digest", path="")


def _checked_events(bundle: Bundle) -> tuple[list[SessionEvent], Session]:
    """The events, each checked by the model in the state that the ones before it give."""
    state, events, keys = SESSION.initial(bundle.session_id), list[SessionEvent](), set[str]()
    for index, members in enumerate(bundle.events):
        if members.get("eventIndex") != index:
            raise InvalidBundle(
                f"The event with the index {members.get('eventIndex')!r} stands at {index}", reason="order", index=index
            )
        try:
            line = msgspec.json.encode(members)
            SESSION.check_line(line)
            event = SESSION.decode(line)
            if event.session_id != bundle.session_id or event.persisted_at is UNSET:
                raise InvalidEvent(f"The event is none that the session {bundle.session_id!r} has stored")
            if event.dedupe_key in keys:
                raise InvalidEvent(f"Two events have the key {event.dedupe_key!r}")
            for refusal in SESSION.refusals(state, event):
                raise impossible(refusal)
            if not fits(event):
                raise KeyMismatch(f"The key {event.dedupe_key!r} is none of this event's own")
            state = SESSION.fold(state, [line])
        except RunstateError as error:
            error.details["event_index"] = index
            raise
        keys.add(event.dedupe_key)
        events.append(event)
    return events, state


def _checked_blobs(bundle: Bundle, state: Session) -> list[bytes]:
    """Exactly what the events stand on is there: workflows, snapshots of those workflows, artifacts that are named."""
    pinned = {str(run.workflow_hash) for run in state.runs.values()}
    standing = {
        (str(node.snapshot_ref), state.runs[node.run_id].workflow_hash, node.is_terminal)
        for node in state.nodes.values()
    }
    named = {str(ref) for members in bundle.events for ref in blob_refs(msgspec.json.encode(members))}
    held = set(bundle.workflows) == pinned and set(bundle.snapshots) == {ref for ref, _, _ in standing}
    missing = _given_out(state).difference(bundle.workflows, bundle.snapshots, bundle.artifacts)
    if not held or missing or not set(bundle.artifacts) <= named:
        raise InvalidBundle("The bundle holds other blobs than its events stand on", reason="reference")
    workflows = {ref: read_workflow(_canonical(value)) for ref, value in bundle.workflows.items()}
    for ref, workflow_hash, is_terminal in standing:
        check_end(read_snapshot(_canonical(bundle.snapshots[ref]), workflows[workflow_hash]), is_terminal)
    return [encode(value) for _, blobs, encode in _sections(bundle) for value in blobs.values()]
