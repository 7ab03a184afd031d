"""`runstate session …`: data on standard output, words on standard error, exit codes by kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Cli

import runstate
from runstate.errors import LogBusy
from runstate.logs.segments.log import SegmentsLog
from runstate.models.session import SESSION
from runstate.runtimes.session import Ok, Place, Sessions, linear, open_sessions, unwrap

url = "segments:sessions"
workflow = linear("fix", "Find the bug", "Mend it", "Write a test")


class Begun:
    """A session with a fork, its places by what was said there."""

    def __init__(self, sessions: Sessions) -> None:
        name = unwrap(sessions.create(session_id="s-1", title="Fix the parser"))
        self.start = unwrap(sessions.start_run(name, workflow, run_id="r-1"))
        self.one = self._on(sessions, self.start, "one way")
        self.other = self._on(sessions, unwrap(sessions.rewind(name, self.start.node_id)), "another way")
        unwrap(sessions.record_gap(self.other.state_token, "user_choice_needed", "warning", "Which parser?"))

    def _on(self, sessions: Sessions, place: Place, notes: str) -> Place:
        return unwrap(sessions.advance(place.ack_token or "", notes))


@pytest.fixture
def begun(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Begun:
    monkeypatch.setenv("RUNSTATE_KEYRING", str(tmp_path / "keyring.json"))
    with open_sessions(url, "keyring.json") as sessions:
        return Begun(sessions)


def everything(directory: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def error(told: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(told)
    return found


def test_list_tells_sessions_and_where_to_go_on(cli: Cli, begun: Begun) -> None:
    (row,) = cli("session", "list", url, "--json").rows
    assert (row["sessionId"], row["tip"], row["status"]) == ("s-1", begun.other.node_id, "in_progress")
    assert "Fix the parser" in cli("session", "list", url, "--word", "parser").out
    assert cli("session", "list", url, "--word", "absent", "--json").rows == []


def test_show_tells_runs_and_gaps(cli: Cli, begun: Begun) -> None:
    (told,) = cli("session", "show", url, "s-1", "--json").rows
    assert told["runs"]["r-1"]["leaves"] == 2
    assert told["runs"]["r-1"]["output"] == "another way"
    assert [gap["summary"] for gap in told["openGaps"].values()] == ["Which parser?"]
    shown = cli("session", "show", url, "s-1")
    assert "another way" in shown.out
    assert "Which parser?" in shown.out


def test_tree_draws_the_fork_and_marks_the_preferred_tip(cli: Cli, begun: Begun) -> None:
    drawn = cli("session", "tree", url, "s-1").out.rstrip("\n").split("\n")
    start, one, other = (place.node_id[:13] for place in (begun.start, begun.one, begun.other))
    assert drawn == [
        "r-1  fix  in_progress",
        f"└── {start} ─ {other}  at step-2: Mend it  ★ preferred",
        f"    └── fork at {start}: {one}  at step-2: Mend it",
    ]


def test_nothing_that_was_written_steers_the_terminal(cli: Cli, begun: Begun, tmp_path: Path) -> None:
    steering = "\x1b]0;pwned\x07\x1b[2J\r\x9b1m\u202e"
    with open_sessions(url, "keyring.json") as sessions:
        name = unwrap(sessions.create(session_id="s-2", title=f"title{steering}"))
        place = unwrap(sessions.start_run(name, linear("w", f"step{steering}"), run_id="r-1"))
        unwrap(sessions.append_output(place.state_token, f"notes{steering}"))
        unwrap(sessions.record_gap(place.state_token, "user_choice_needed", "warning", f"gap{steering}"))
    told = {
        words: cli("session", *command)
        for words, command in {
            "title": ("list", url),
            "notes": ("show", url, "s-2"),
            "gap": ("show", url, "s-2"),
            "step": ("tree", url, "s-2"),
            "at step-1: step": ("rewind", url, "s-2", place.node_id),
        }.items()
    }
    for words, answer in told.items():
        text = answer.out + answer.err
        assert f"{words}\\u001b]0;pwned\\u0007\\u001b[2J\\u000d\\u009b1m\\u202e" in text
        assert not set(text) & set(steering) - set("]0;pwned[2J1m")
    exported = cli("session", "show", url, "s-2", "--json").rows[0]["title"]
    assert exported == f"title{steering}"


def test_tree_as_json_tells_every_node(cli: Cli, begun: Begun) -> None:
    rows = cli("session", "tree", url, "s-1", "--run", "r-1", "--json").rows
    assert [row["nodeId"] for row in rows] == [p.node_id for p in (begun.start, begun.one, begun.other)]
    assert [row["edgeKind"] for row in rows] == [None, "acked_step", "forked_from_non_tip"]
    assert [row["isPreferred"] for row in rows] == [False, False, True]


def test_fork_and_rewind_give_tokens_that_work(cli: Cli, begun: Begun) -> None:
    before = everything(Path("sessions"))
    (rewound,) = cli("session", "rewind", url, "s-1", begun.start.node_id, "--json").rows
    assert everything(Path("sessions")) == before
    (forked,) = cli("session", "fork", url, "s-1", begun.start.node_id[:13], "--attempt", "mine", "--json").rows
    (again,) = cli("session", "fork", url, "s-1", begun.start.node_id[:13], "--attempt", "mine", "--json").rows
    assert (again["nodeId"], again["replayed"], forked["replayed"]) == (forked["nodeId"], True, False)
    with open_sessions(url, "keyring.json") as sessions:
        for row in (rewound, forked):
            assert not unwrap(sessions.advance(row["ackToken"], "on")).replayed
    assert "ack.v1." in cli("session", "rewind", url, "s-1", begun.start.node_id).out


def test_a_bundle_goes_from_one_directory_to_another(cli: Cli, begun: Begun) -> None:
    assert cli("session", "export", url, "s-1", "s-1.json").code == 0
    assert oct(Path("s-1.json").stat().st_mode & 0o777) == "0o600"
    assert cli("session", "export", url, "s-1").out.encode() == Path("s-1.json").read_bytes()
    (told,) = cli("session", "import", "segments:other", "s-1.json", "--keyring", "other.json", "--json").rows
    assert told["sessionId"] == "s-1"
    assert told["tips"][0]["nodeId"] == begun.other.node_id
    assert cli("session", "tree", "segments:other", "s-1").out == cli("session", "tree", url, "s-1").out
    renamed = cli("session", "import", "segments:other", "--keyring", "other.json", stdin=Path("s-1.json").read_bytes())
    assert "there was a session s-1 already" in renamed.err
    assert len(cli("session", "list", "segments:other", "--json").rows) == 2


def test_export_overwrites_nothing(cli: Cli, begun: Begun) -> None:
    Path("there.json").write_text("mine")
    assert cli("session", "export", url, "s-1", "there.json").code == 2
    assert Path("there.json").read_text() == "mine"


def test_a_bad_bundle_is_refused_with_a_code_and_nothing_is_made(cli: Cli, begun: Begun) -> None:
    bundle = json.loads(cli("session", "export", url, "s-1").out)
    Path("newer.json").write_text(json.dumps(bundle | {"version": 9}))
    bundle["manifest"][0]["path"] = "../../events.jsonl"
    Path("path.json").write_text(json.dumps(bundle))
    before = everything(Path("sessions"))
    for file, code in (("newer.json", "bundle.too_new"), ("path.json", "bundle.invalid")):
        refused = cli("session", "import", url, file, "--json")
        assert (refused.code, error(refused.err)["code"]) == (2, code)
    assert everything(Path("sessions")) == before


def test_what_is_not_there_has_exit_code_3(cli: Cli, begun: Begun) -> None:
    for arguments, code in (
        (("show", url, "nobody"), "stream.not_found"),
        (("export", url, "nobody"), "stream.not_found"),
        (("verify", url, "nobody"), "stream.not_found"),
        (("tree", url, "s-1", "--run", "r-9"), "session.node_not_found"),
        (("fork", url, "s-1", "node_nowhere"), "session.node_not_found"),
        (("rewind", url, "s-1", "node_"), "session.node_not_found"),
        (("list", "segments:nowhere"), "log.not_found"),
    ):
        answer = cli("session", *arguments, "--json")
        assert (answer.code, error(answer.err)["code"]) == (3, code)
    assert not Path("nowhere").exists()


def test_a_keyring_that_others_can_read_is_refused(cli: Cli, begun: Begun) -> None:
    Path("keyring.json").chmod(0o644)
    answer = cli("session", "rewind", url, "s-1", begun.start.node_id)
    assert answer.code == 2
    assert "chmod 600" in answer.err


def test_a_busy_session_has_exit_code_4(cli: Cli, begun: Begun, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: Any, **__: Any) -> Any:
        raise LogBusy("somebody else writes", stream="s-1")

    monkeypatch.setattr(SegmentsLog, "append", busy)
    answer = cli("session", "fork", url, "s-1", begun.start.node_id, "--json")
    assert (answer.code, error(answer.err)["code"], error(answer.err)["retryable"]) == (4, "log.busy", True)


def test_after_one_rotation_tokens_are_good_and_after_two_they_are_not(cli: Cli, begun: Begun) -> None:
    for is_good in (True, False):
        assert cli("session", "rotate").code == 0
        with open_sessions(url, "keyring.json") as sessions:
            assert isinstance(sessions.rehydrate(begun.other.state_token), Ok) is is_good


def test_gc_tells_what_it_would_delete_and_then_does(cli: Cli, begun: Begun) -> None:
    with open_sessions(url, "keyring.json") as sessions:
        unwrap(sessions.keep_artifact("forgotten", b"nobody names this"))
    before = everything(Path("sessions"))
    (would,) = cli("session", "gc", url, "--dry-run", "--json").rows
    assert len(would["removed"]) == 1
    assert everything(Path("sessions")).items() >= before.items()
    (done,) = cli("session", "gc", url, "--json").rows
    assert done["removed"] == would["removed"]
    assert cli("session", "verify", url).code == 0
    assert "0 blobs" in cli("session", "gc", url).err


def test_verify_finds_damage_and_repair_mends_it(cli: Cli, begun: Begun) -> None:
    assert cli("session", "verify", url).err == "intact\n"
    segments = sorted(Path("sessions/sessions/s-1/events").iterdir())
    flipped = bytearray(segments[-1].read_bytes())
    flipped[10] ^= 1
    segments[-1].write_bytes(flipped)
    found = cli("session", "verify", url, "s-1", "--json")
    assert found.code == 1
    assert {row["stream"] for row in found.rows} == {"s-1"}
    refused = cli("session", "export", url, "s-1", "--json")
    assert (refused.code, error(refused.err)["code"]) == (1, "log.damaged")
    assert cli("session", "repair", url, "--dry-run", "--json").rows
    assert cli("session", "verify", url).code == 1
    assert cli("session", "repair", url, "s-1").code == 0
    assert cli("session", "verify", url).code == 0
    (told,) = cli("session", "show", url, "s-1", "--json").rows
    assert told["openGaps"] == {}
    assert cli("session", "fork", url, "s-1", begun.start.node_id).code == 0


def test_verify_finds_an_event_that_is_impossible_where_it_stands(cli: Cli, begun: Begun) -> None:
    """Put there by something that is not this runtime: the same run, started twice."""
    with runstate.open(url, SESSION) as store:
        again = json.loads(store.log.read("s-1", after_seq=1, limit=1)[0].body)
        line = {n: v for n, v in again.items() if n not in ("eventIndex", "persistedAt")}
        store.append_event(SESSION.parse(json.dumps(line | {"eventId": "twice", "dedupeKey": "twice"}).encode()))
    found = cli("session", "verify", url, "--json")
    assert (found.code, [row["code"] for row in found.rows]) == (1, ["session.inconsistent", "event.key_mismatch"])


def test_verify_finds_a_node_whose_snapshot_is_gone(cli: Cli, begun: Begun) -> None:
    with open_sessions("sqlite:a.db", "keyring.json") as sessions:
        Begun(sessions)
    assert cli("session", "verify", "sqlite:a.db").code == 0
    import sqlite3

    with sqlite3.connect("a.db") as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE name LIKE '%blob%'")]
        for name in tables:
            if "autoindex" not in name:
                database.execute(f"DELETE FROM {name}")
    found = cli("session", "verify", "sqlite:a.db", "--json")
    assert found.code == 1
    assert "blob.not_found" in {row["code"] for row in found.rows}
