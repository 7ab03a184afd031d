"""An agent that reviews a change, step by step, and can be killed, sent back, and moved to another machine.

    python agent.py DESK                        begin the review, or go on with it
    python agent.py DESK --kill-after 2         the same, and die (SIGKILL) right after the second step is stored
    python agent.py DESK --again step-2         go back to a step, and take another line from there

A desk is a directory: its sessions, its keyring, and a note of what the agent is about to say, which it would lose if
it kept that in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from runstate.runtimes.session import Failed, Place, Sessions, Step, Wanted, linear, open_sessions, unwrap

review = linear("review", "Read the change", "Run the tests", "Judge it", "Write the review")


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("desk", type=Path)
    arguments.add_argument("--kill-after", type=int, default=0)
    arguments.add_argument("--again", default=None)
    given = arguments.parse_args()
    given.desk.mkdir(exist_ok=True)
    with open_sessions(f"segments:{given.desk}/sessions", given.desk / "keyring.json") as sessions:
        note = given.desk / "about-to-say.json"
        if given.again is None:
            place = replayed(sessions, note) or found(sessions) or begun(sessions)
        else:
            place = sent_back(sessions, given.again)
        work(sessions, place, note, given.kill_after)


def work(sessions: Sessions, place: Place, note: Path, kill_after: int) -> None:
    """Do what is left to do. Before it advances, the agent writes down the token and the words that it will use."""
    done = 0
    while place.step is not None and place.ack_token is not None:
        notes = work_on(place.step)
        note.write_text(json.dumps([place.ack_token, notes]))
        place = unwrap(sessions.advance(place.ack_token, notes))
        done += 1
        if done == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
    note.unlink(missing_ok=True)
    say(f"{done} steps done, the review is written")


def replayed(sessions: Sessions, note: Path) -> Place | None:
    """After a kill: say it again. If it was stored, this is the recorded outcome, and nothing is written twice."""
    if not note.exists():
        return None
    at = sessions.advance(*json.loads(note.read_text()))
    if isinstance(at, Failed):
        say(f"the token is of no use here: {at.code}")
        return None
    say("that step was stored" if at.value.replayed else "that step was not stored; it is now")
    return at.value


def found(sessions: Sessions) -> Place | None:
    """The session to resume, at the tip that was touched last."""
    best = next(iter(unwrap(sessions.find(Wanted(words=("change",)))).found), None)
    return None if best is None or best.tip is None else unwrap(sessions.rewind(best.session_id, best.tip))


def begun(sessions: Sessions) -> Place:
    session = unwrap(sessions.create(session_id="review-7", title="Review the change"))
    return unwrap(sessions.start_run(session, review))


def sent_back(sessions: Sessions, step_id: str) -> Place:
    """The node of this line at which a step was to be done; advancing from it once more is a fork."""
    here = found(sessions)
    if here is None:
        raise SystemExit("there is nothing to go back in")
    for node in unwrap(sessions.rehydrate(here.state_token)).lineage:
        place = unwrap(sessions.rewind(here.session_id, node))
        if place.step is not None and place.step.id == step_id:
            return place
    raise SystemExit(f"this line never came to {step_id}")


def say(words: str) -> None:
    sys.stdout.write(words + "\n")


def work_on(step: Step) -> str:
    """What a real agent would ask a model, or a person."""
    return f"{step.title}: done"


if __name__ == "__main__":
    main()
