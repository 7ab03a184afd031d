"""The rundir model: the events of a run directory put together as one `Model`."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from runstate.errors import InvalidEvent
from runstate.models.activity import Activity
from runstate.models.canonical import parse
from runstate.models.describing import describe_members
from runstate.models.envelope import Envelope
from runstate.models.hash_chain import compact, event_hash
from runstate.models.model import AlertSink, Description, Draft, Model
from runstate.models.rundir import activity as rundir_activity
from runstate.models.rundir import state as rundir_state
from runstate.models.rundir.events import RunEvent, check
from runstate.models.rundir.evolve import Fold, terminal_states
from runstate.models.rundir.state import RunDirectory
from runstate.models.statuses import StatusGroup, usual_group


class RunDraft(Draft, frozen=True, kw_only=True, gc=False):
    """An event of a run directory on its way: its time and its hashes are known once its place is."""

    ts: str
    payload: str
    chained: ClassVar[bool] = True
    tells_envelope: ClassVar[bool] = True

    def render(self, seq: int, persisted_at: str, previous: bytes | None = None) -> bytes:
        ts = self.ts or persisted_at
        prev_hash = "" if previous is None else _link_decoder.decode(previous).event_hash
        this_hash = event_hash(self.event_id, ts, self.type, self.payload, prev_hash)
        hashes = f',"prev_hash":"{prev_hash}","event_hash":"{this_hash}"}}'.encode()
        return self.prefix + ts.encode() + self.tail + hashes

    def same_content(self, stored: bytes) -> bool:
        given = self.prefix + self.tail + b"}"
        return _comparable(given) == _comparable(stored)


class RunDirectoryModel(Model[RunEvent, RunEvent, RunDirectory]):
    """Runs that keep their state in a directory, and resume from it."""

    name = "rundir"
    version = 1

    def parse(self, line: bytes) -> RunEvent:
        try:
            event = msgspec.convert(parse(line), RunEvent)
        except msgspec.ValidationError as error:
            raise InvalidEvent(str(error)) from error
        check(event)
        return event

    def check_line(self, line: bytes) -> None:
        event = self.parse(line)
        if event.event_hash is not UNSET and event.event_hash != event_hash(
            event.event_id, event.ts or "", event.type, compact(event.payload), event.prev_hash or ""
        ):
            raise InvalidEvent("event_hash is not the hash of what the line says; the line was changed after it")

    def envelope(self, line: bytes) -> Envelope:
        said = _said_decoder.decode(line)
        # Only a log writes the hash, and it puts the time there that it has stored the event at.
        stored = said.event_hash is not UNSET and said.ts is not UNSET
        ts = said.ts or ""
        return Envelope(said.run_id, None, said.event_id, said.type, said.event_id, "", ts, ts if stored else None)

    def draft(self, event: RunEvent) -> tuple[str, Draft]:
        check(event)
        ids = {"event_id": event.event_id, "run_id": event.run_id}
        rest = msgspec.structs.replace(event, ts=UNSET, prev_hash=UNSET, event_hash=UNSET)
        members = msgspec.json.encode({n: v for n, v in msgspec.to_builtins(rest).items() if n not in ids})
        return event.run_id, RunDraft(
            event_id=event.event_id,
            type=event.type,
            key=event.event_id,
            tenant="",
            emitted_at="" if event.ts is UNSET else event.ts,
            prefix=msgspec.json.encode(ids)[:-1] + b',"ts":"',
            tail=b'",' + members[1:-1],
            ts="" if event.ts is UNSET else event.ts,
            payload=compact(event.payload),
            model=self.name,
        )

    def decode(self, body: bytes) -> RunEvent:
        try:
            event = _event_decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise InvalidEvent(f"A stored line is no event of a run: {error}") from error
        if event.ts is UNSET:
            raise InvalidEvent("A stored line is no event of a run: it has no ts")
        return event

    def initial(self, stream: str) -> RunDirectory:
        return RunDirectory(stream)

    def evolve(self, state: RunDirectory, event: RunEvent) -> RunDirectory:
        fold = Fold(deepcopy(state))
        # Copied, since what the state takes from the payload must be the state's own.
        fold.apply(event.type, event.ts or "", deepcopy(event.payload))
        return fold.finish()

    def fold(self, state: RunDirectory, lines: Iterable[bytes], alert: AlertSink | None = None) -> RunDirectory:
        fold = Fold(state)
        fold.apply_lines(lines)
        return fold.finish()

    def dump(self, state: RunDirectory) -> bytes:
        return rundir_state.dump(state)

    def load(self, data: bytes) -> RunDirectory:
        return rundir_state.load(data)

    def status(self, state: RunDirectory) -> str:
        return state.run_state

    def status_group(self, status: str) -> StatusGroup:
        """A graph names the states between the first and the last as it likes: in all of them the run is at work."""
        group = usual_group(status)
        return "running" if group == "unknown" and status else group

    def is_over(self, state: RunDirectory) -> bool:
        return state.run_state in terminal_states.values()

    def describe(self, event: RunEvent) -> Description:
        described = describe_members(event.payload, "work_item_id", "name", "section", "issue_id", "gate", "new_state")
        # A work item's id begins with the run's, which stands beside it already.
        return msgspec.structs.replace(described, subject=described.subject.removeprefix(f"{event.run_id}:"))

    def activities(self, event: RunEvent) -> list[Activity]:
        return rundir_activity.activities(event)


class _Said(msgspec.Struct, gc=False):
    event_id: str
    run_id: str
    type: str
    ts: str | UnsetType = UNSET
    event_hash: str | UnsetType = UNSET


class _Link(msgspec.Struct):
    event_hash: str = ""


def _comparable(line: bytes) -> bytes:
    members = msgspec.json.decode(line)
    return compact({n: v for n, v in members.items() if n not in ("ts", "prev_hash", "event_hash")}).encode()


_said_decoder = msgspec.json.Decoder(_Said)
_link_decoder = msgspec.json.Decoder(_Link)
_event_decoder = msgspec.json.Decoder(RunEvent)

RUNDIR = RunDirectoryModel()
