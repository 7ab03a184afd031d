"""What tests of sessions begin with: sessions in a directory, and a look at everything that is written there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runstate.logs.log import Record
from runstate.models.session import Projections, Session
from runstate.models.session.ids import NodeId, RunId, SessionId
from runstate.runtimes.session import Failed, Ok, Place, Sessions, Workflow, compiled, linear, open_sessions, unwrap

three_steps = linear("review", "Read", "Judge", "Write it down")
choices: Workflow = compiled(
    {
        "workflowId": "choices",
        "steps": [
            {"id": "begin", "title": "Begin", "next": ["again", "browse", "end"]},
            {"id": "again", "title": "Once more", "next": ["again", "end"], "visitsMax": 2},
            {"id": "browse", "title": "Look it up", "requires": ["web_browsing"], "next": ["end"]},
            {"id": "end", "title": "End"},
        ],
    }
)


class Desk:
    """Sessions at one place, as one user on one machine has them."""

    def __init__(self, sessions: Sessions, directory: Path) -> None:
        self.sessions, self.directory = sessions, directory
        self.store = sessions._journal.store

    def session(self, name: str = "s-1", workflow: Workflow = three_steps) -> Place:
        """A session with one run, at its first step."""
        unwrap(self.sessions.create(session_id=name, title="Fix the parser"))
        return unwrap(self.sessions.start_run(name, workflow, run_id="r-1"))

    def state(self, name: str = "s-1") -> Session:
        return self.store.project_snapshot(name)

    def seen(self, name: str = "s-1") -> Projections:
        return Projections(self.state(name))

    def records(self, name: str = "s-1") -> list[Record]:
        return self.store.log.read(name, limit=100_000)

    def kinds(self, name: str = "s-1") -> list[str]:
        return [record.type for record in self.records(name)]

    def edge_kinds(self, name: str = "s-1") -> list[str]:
        return [edge.kind for edge in self.seen(name).dag(RunId("r-1")).edges]

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Nothing is written: not a byte of a file, not a record, not a blob, not a key."""
        before = self._everything()
        yield
        assert self._everything() == before

    def _everything(self) -> Any:
        infos = self.store.log.streams()
        places = (self.directory, self.sessions._keyring.path.parent)
        paths = sorted(path for place in places for path in place.rglob("*"))
        files = {p: p.read_bytes() for p in paths if p.is_file() and "-shm" not in p.name}
        return infos, [self.records(info.stream) for info in infos], files


def failed(result: Ok[Any] | Failed) -> Failed:
    assert isinstance(result, Failed), result
    return result


@contextmanager
def desk_at(directory: Path, scheme: str = "memory", *, keys: str = "keys") -> Iterator[Desk]:
    (directory / "log").mkdir(parents=True, exist_ok=True)
    url = "memory:" if scheme == "memory" else f"{scheme}:{directory / 'log/sessions'}"
    with open_sessions(url, directory / keys / "keyring.json") as sessions:
        yield Desk(sessions, directory / "log")


def cut_last_plan(directory: Path, desk: Desk, name: str = "s-1") -> None:
    """A bit of the last segment is flipped, and the session is repaired: what its last plan wrote is gone."""
    segment = max((directory / f"log/sessions/sessions/{name}/events").glob("*.jsonl"))
    data = bytearray(segment.read_bytes())
    data[10] ^= 1
    segment.write_bytes(data)
    assert desk.store.log.repair(name)


def node(name: str) -> NodeId:
    return NodeId(name)


def session(name: str) -> SessionId:
    return SessionId(name)
