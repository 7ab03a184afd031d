"""The demo's sessions and its daemon: an agent that is killed, sent back and moved, and a queue that loses a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from runstate.cli.demo_processes import kill, start_python
from runstate.cli.output import words
from runstate.models.session import SESSION, Projections
from runstate.models.session.ids import RunId
from runstate.runtimes.daemon import Client, Daemon, Server
from runstate.runtimes.session import linear, open_sessions, unwrap
from runstate.storage.directories import make_directories
from runstate.storage.disk import RealDisk
from runstate.store import open as open_store

_sessions = 8
_killed_after = 18
_commits = 40
_waited_s = 60.0
_review = linear("review", "Read the change", "Run the tests", "Judge it", "Write the review")


def session_fleet(desk: Path, other: Path) -> tuple[str, bool]:
    """Reviews by an agent that is killed in the middle. Their URL, and whether nothing was lost or done twice."""
    url = f"segments:{desk / 'sessions'}"
    for directory in (desk, other):
        make_directories(RealDisk(), directory)
    with _child("review", str(desk), str(_killed_after)) as first:
        killed = first.wait()
    with _child("review", str(desk), "0") as second:
        done = second.wait()
    with (
        open_sessions(url, desk / "keyring.json") as here,
        open_sessions(f"segments:{other / 'sessions'}", other / "keyring.json") as there,
    ):
        start = unwrap(here.start_run("review-00", _review, run_id="run"))
        back = unwrap(here.rewind("review-00", start.node_id))
        unwrap(here.advance(back.ack_token or "", "On second thoughts"))
        moved = unwrap(there.import_(unwrap(here.export("review-01"))))
    words.print(
        f"the agent was killed (SIGKILL) after {_killed_after} steps, and finished after a restart; review-00 was "
        f"rewound to its start, which forks it; {moved.session_id} was copied to another desk"
    )
    with open_store(url, SESSION, create=False) as store:
        lines = {
            info.stream: len(Projections(store.project_snapshot(info.stream)).leaves(RunId("run")))
            for info in store.log.streams()
        }
        outputs = sum(record.type == "node_output_appended" for name in lines for record in store.log.read(name))
    # Each review has a line of its own but for the one that was sent back, and nothing was said twice.
    is_right = sorted(lines.values()) == [1] * (_sessions - 1) + [2] and outputs == _sessions * len(_review.steps) + 1
    return url, is_right and (killed, done) == (-signal.SIGKILL, 0)


def review(desk: str, kill_after: int) -> None:
    """The agent: does all reviews from the beginning, whatever was done before. What was, is not done again."""
    done = 0
    with open_sessions(f"segments:{desk}/sessions", Path(desk) / "keyring.json") as sessions:
        for number in range(_sessions):
            session = unwrap(sessions.create(session_id=f"review-{number:02d}", title=f"Review of change {number}"))
            place = unwrap(sessions.start_run(session, _review, run_id="run"))
            while place.step is not None and place.ack_token is not None:
                place = unwrap(sessions.advance(place.ack_token, f"{place.step.title}: done"))
                done += 1
                if done == kill_after:
                    os.kill(os.getpid(), signal.SIGKILL)


def build_queue(directory: Path) -> tuple[str, bool]:
    """Builds by three workers, one of which is killed. The log's URL, and whether each was completed exactly once."""
    # What checkpoints would drop is kept, for the pipeline that comes after.
    url = f"wal:{directory}?history=archive"
    make_directories(RealDisk(), directory)
    socket = directory / ".daemon.sock"
    with Daemon.open(url) as daemon, Server(daemon, socket), ExitStack() as stack:
        for number in range(_commits):
            daemon.push("builds", {"commit": f"c{number}"}, item_id=f"build-{number:02d}")
        # The one that is killed starts first: the others might leave her nothing to take.
        eve = stack.enter_context(_child("build", str(socket), "eve"))
        deadline = time.monotonic() + _waited_s
        while not any(item.worker_name == "eve" for item in daemon.items("builds", status="taken")):
            if time.monotonic() > deadline:
                return url, False
            time.sleep(0.001)
        kill(eve)
        others = [stack.enter_context(_child("build", str(socket), name)) for name in ("ada", "bob")]
        ended = [worker.wait() for worker in others]
        counts = Counter(record.type for record in daemon.events(limit=100_000))
        left = daemon.items("builds")
        daemon.checkpoint()
    words.print(
        f"{counts['queue:completed']} of {_commits} builds completed; eve was killed (SIGKILL), and "
        f"{counts['queue:failed']} of hers went to another worker"
    )
    return url, counts["queue:completed"] == _commits and not left and ended == [0, 0]


def build(socket: str, name: str) -> None:
    """A worker: takes builds until there are none."""
    with Client(Path(socket)) as daemon:
        worker = daemon.worker(name, "builds")
        while (item := worker.take(wait_s=1)) is not None:
            time.sleep(0.02)
            worker.complete(item.id)


def _child(work: str, *arguments: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A process of its own that does the work of that name."""
    program = "import sys; from runstate.cli import demo_runtimes as demo; demo.main(sys.argv[1:])"
    return start_python("-c", program, work, *arguments)


def main(arguments: list[str]) -> None:
    work, place, given = arguments
    if work == "review":
        review(place, int(given))
    else:
        build(place, given)
