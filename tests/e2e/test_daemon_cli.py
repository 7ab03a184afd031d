"""The daemon and its queues from the command line: without a server, and through one."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from tests.commands import Cli
from tests.unit.runtimes.daemon_places import until

import runstate
from runstate.errors import AppendOutcomeUnknown, LogNotFound
from runstate.models.daemon import DAEMON
from runstate.runtimes.daemon import Client, Daemon, DaemonAway, socket_name
from runstate.runtimes.daemon.wire import request_bytes_max

# --- without a server ----------------------------------------------------------------------------------------------


def test_a_queue_from_push_to_complete(cli: Cli) -> None:
    assert cli("queue", "push", "d", "builds", '{"commit":"c1"}', "--id", "i1").out == "i1\n"
    assert cli("queue", "take", "d", "builds", "--worker", "w", "--start", "--json").rows[0]["id"] == "i1"
    assert cli("queue", "complete", "d", "builds", "i1", "--worker", "w").code == 0
    assert cli("queue", "take", "d", "builds", "--worker", "w").code == 3
    assert cli("queue", "stats", "d", "--json").rows == [
        {"queue": "builds", "pending": 0, "taken": 0, "failed": 0, "dead": 0, "workers": 1}
    ]


def test_every_line_of_the_input_is_an_item(cli: Cli) -> None:
    pushed = cli("queue", "push", "d", "builds", "--json", stdin=b'{"a":1}\n\nplain text\n3\n')
    assert len(pushed.rows) == 3
    listed = cli("queue", "list", "d", "builds", "--json").rows
    assert [(row["id"], row["data"]) for row in listed] == [
        (row["id"], data) for row, data in zip(pushed.rows, [{"a": 1}, "plain text", 3], strict=True)
    ]


def test_an_item_fails_dies_and_is_retried(cli: Cli) -> None:
    cli("queue", "push", "d", "builds", "x", "--id", "i1")
    cli("queue", "take", "d", "builds", "--worker", "w", "--start")
    statuses = []
    for _ in range(3):
        failed = cli("queue", "fail", "d", "builds", "i1", "--error", "exit 1", "--json")
        statuses.append((failed.rows[0]["status"], failed.rows[0]["failure_count"]))
        cli("queue", "take", "d", "builds", "--worker", "w")
    assert statuses == [("failed", 1), ("failed", 2), ("dead", 3)]
    assert [row["id"] for row in cli("queue", "list", "d", "builds", "--status", "dead", "--json").rows] == ["i1"]
    assert "1 to be tried again" in cli("queue", "retry", "d", "builds", "--dead").err
    assert cli("queue", "list", "d", "builds", "--json").rows[0]["status"] == "pending"


def test_tables_are_for_people(cli: Cli) -> None:
    cli("queue", "push", "d", "builds", "x", "--id", "i1")
    assert cli("queue", "list", "d", "builds").out.split() == [
        *("item", "status", "failures", "worker", "error", "data"),
        *("i1", "pending", "0", '"x"'),
    ]
    assert cli("queue", "stats", "d").out.split()[-6:] == ["builds", "1", "0", "0", "0", "0"]
    shown = cli("daemon", "state", "d")
    assert "builds" in shown.out
    assert "1 queues" in shown.err


def test_the_state_as_json_is_its_exact_bytes(cli: Cli, tmp_path: Path) -> None:
    cli("queue", "push", "d", "builds", "1e21", "--id", "ü")
    with Daemon.open(tmp_path / "d") as daemon:
        expected = DAEMON.dump(daemon.state).decode()
    assert cli("daemon", "state", "d", "--json").out == expected + "\n"


def test_events_are_told_in_order_and_where_the_log_begins(cli: Cli) -> None:
    cli("queue", "push", "d", "builds", stdin=b"1\n2\n3\n4\n5\n")
    assert [row["seq"] for row in cli("daemon", "tail", "d", "--limit", "2", "--json").rows] == [4, 5]
    assert [row["seq"] for row in cli("daemon", "tail", "d", "--after", "1", "--limit", "2", "--json").rows] == [2, 3]
    (row,) = cli("daemon", "tail", "d", "--limit", "1").rows
    assert (row["seq"], row["event"]["type"]) == (5, "queue:pushed")
    assert cli("daemon", "checkpoint", "d", "--json").rows == [{"seq": 5}]
    assert cli("daemon", "compact", "d", "--json").rows == [{"seq": 5}]
    assert [row["seq"] for row in cli("daemon", "tail", "d", "--after", "0", "--json").rows] == [5]
    assert cli("queue", "stats", "d", "--json").rows[0]["pending"] == 5


def test_nothing_to_checkpoint_is_said(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    assert "nothing has happened yet" in cli("daemon", "checkpoint", "d").err


def test_damage_is_found_and_repaired_with_its_evidence_kept(cli: Cli, tmp_path: Path) -> None:
    cli("queue", "push", "d", "builds", stdin=b"1\n2\n3\n")
    wal = tmp_path / "d" / "daemon" / "wal.jsonl"
    whole = wal.read_bytes()
    lines = whole.split(b"\n")
    wal.write_bytes(b"\n".join([lines[0], b"noise", *lines[2:]]))
    assert cli("daemon", "verify", "d").code == 1
    assert cli("daemon", "repair", "d", "--dry-run").code == 0
    assert b"noise" in wal.read_bytes()
    assert cli("daemon", "repair", "d").code == 0
    assert b"noise" in wal.with_name("wal.jsonl.bak").read_bytes()
    assert cli("daemon", "verify", "d").code == 0
    assert cli("queue", "stats", "d", "--json").rows[0]["pending"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("queue", "take", "d", "builds", "--worker", "ghost"), 2, "no worker 'ghost'; start it with --start"),
        (("queue", "complete", "d", "builds", "i1", "--worker", "ghost"), 2, "never started, or is gone"),
        (("queue", "stop", "d", "ghost"), 2, "no worker 'ghost'"),
        (("queue", "push", "d", "builds", "--event-id", "e1"), 2, "an id is one"),
        (("daemon", "serve", "ndjson:file"), 2, "--socket"),
        (("queue", "complete", "d", "builds", "none"), 2, "no item 'none'"),
        (("queue", "retry", "d", "builds", "i1"), 2, "pending"),
        (("queue", "retry", "d", "builds"), 2, "--dead"),
        (("queue", "list", "d", "builds", "--status", "lost"), 2, "no status"),
        (("queue", "push", "d", "builds", "x", "--id", "i1"), 2, "already"),
        (("queue", "push", "d", "a/b", "x"), 2, "slash"),
        (("queue", "push", "d", "builds", "--id", "i2"), 2, "an id is one"),
        (("queue", "stats", "none"), 3, "no directory"),
        (("daemon", "state", "none"), 3, "no directory"),
        (("daemon", "serve", "file"), 2, "is a file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_is_said(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    (tmp_path / "file").write_text("mine")
    cli("queue", "push", "d", "builds", "x", "--id", "i1")
    done = cli(*arguments)
    assert done.code == code
    assert said in done.err.replace("│", " ")


def test_nothing_to_show_is_said(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no daemon 'daemon' has written anything" in cli("queue", "stats", "empty").err
    cli("queue", "push", "d", "builds", "x", "--id", "i1")
    assert cli("queue", "list", "d", "bilds").err == "no items in 'bilds'; queues that hold some: builds\n"
    cli("queue", "take", "d", "builds", "--worker", "w", "--start")
    cli("queue", "complete", "d", "builds", "i1")
    assert cli("queue", "stop", "d", "w").code == 0
    assert "no queue holds items" in cli("queue", "stats", "d").err


def test_a_place_that_a_push_makes_is_told_once(cli: Cli, tmp_path: Path) -> None:
    done = cli("queue", "push", "d", "builds", stdin=b"\n")
    assert (done.code, "nothing to push" in done.err, (tmp_path / "d").exists()) == (0, True, False)
    assert "made d" in cli("queue", "push", "d", "builds", "x").err
    assert cli("queue", "push", "d", "builds", "x").err == ""


def test_a_push_that_is_sent_again_under_its_id_changes_nothing(cli: Cli) -> None:
    push = ("queue", "push", "d", "builds", "x", "--event-id", "e1")
    first = cli(*push).out
    cli("queue", "take", "d", "builds", "--worker", "w", "--start")
    cli("queue", "complete", "d", "builds", first.strip())
    assert cli(*push).out == first
    assert cli("queue", "list", "d", "builds", "--json").rows == []


def test_a_line_that_is_too_long_is_refused_and_nothing_is_pushed(cli: Cli, tmp_path: Path) -> None:
    done = cli("queue", "push", "d", "builds", stdin=b"short\n" + b"x" * (request_bytes_max + 1))
    assert (done.code, "Line 2" in done.err, (tmp_path / "d").exists()) == (2, True, False)


def test_a_worker_that_holds_all_it_may_is_told_so(cli: Cli) -> None:
    cli("queue", "push", "d", "builds", stdin=b"1\n2\n")
    held = cli("queue", "take", "d", "builds", "--worker", "w", "--start", "--json").rows[0]["id"]
    done = cli("queue", "take", "d", "builds", "--worker", "w")
    assert (done.code, f"w holds 1 of 1: {held}; complete" in done.err) == (3, True)
    assert cli("queue", "stop", "d", "w").code == 0
    assert {row["status"] for row in cli("queue", "list", "d", "builds", "--json").rows} == {"pending"}


def test_a_worker_is_not_started_anew_on_another_queue(cli: Cli) -> None:
    cli("queue", "push", "d", "builds", "x")
    cli("queue", "take", "d", "builds", "--worker", "w", "--start")
    assert cli("queue", "take", "d", "tests", "--worker", "w", "--start").code == 2
    assert cli("queue", "list", "d", "builds", "--json").rows[0]["status"] == "taken"


def test_a_second_daemon_is_told_to_try_again(cli: Cli, tmp_path: Path) -> None:
    with Daemon.open(tmp_path / "d"):
        done = cli("daemon", "serve", "d")
        assert (done.code, "Another daemon is at work" in done.err) == (4, True)
        assert cli("daemon", "state", "d").code == 0  # Who only looks is in nobody's way.


# --- through a server ----------------------------------------------------------------------------------------------


@pytest.fixture
def place() -> Iterator[Path]:
    """A short path: the kernel gives a socket's about a hundred characters."""
    with tempfile.TemporaryDirectory(prefix="rs-") as made:
        yield Path(made) / "d"


class serving:  # noqa: N801 - reads as what it is: `with serving(place) as server`
    def __init__(self, place: Path, url: str = "", socket: Path | None = None) -> None:
        self._url, self._socket = url or str(place), socket or place / socket_name()

    def __enter__(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "runstate", "daemon", "serve", self._url]
        self._server = subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ | {"NO_COLOR": "1"})
        deadline = time.monotonic() + 30
        while not self._is_listening():
            assert time.monotonic() < deadline
            assert self._server.poll() is None
            time.sleep(0.01)
        return self._server

    def _is_listening(self) -> bool:
        try:
            Client(self._socket).close()
        except LogNotFound:
            return False
        return True

    def __exit__(self, *exc: object) -> None:
        self._server.kill()
        self._server.wait()
        if self._server.stderr is not None:
            self._server.stderr.close()


@pytest.mark.slow
def test_commands_talk_to_the_daemon_that_serves(cli: Cli, place: Path) -> None:
    at = str(place)
    with serving(place) as server, Client(place / socket_name()) as client:
        cli("queue", "push", at, "builds", "x", "--id", "i1")
        assert cli("queue", "take", at, "builds", "--worker", "w", "--start", "--json").rows[0]["id"] == "i1"
        assert client.stats()[0].taken == 1
        assert cli("queue", "complete", at, "builds", "i1", "--worker", "w").code == 0
        assert cli("queue", "list", at, "builds", "--json").rows == []
        assert cli("daemon", "state", at, "--json").out.encode() == DAEMON.dump(client.state) + b"\n"
        seqs: list[Any] = [row["seq"] for row in cli("daemon", "tail", at, "--json").rows]
        assert seqs == [1, 2, 3, 4]
        assert cli("daemon", "checkpoint", at, "--json").rows == [{"seq": 4}]
        assert cli("daemon", "serve", at).code == 4
        client.worker("bound", "builds")
        server.send_signal(signal.SIGTERM)
        _, said = server.communicate(timeout=30)
        assert (server.returncode, b"closing" in said) == (0, True)
    assert not (place / socket_name()).exists()


@pytest.mark.slow
def test_a_daemon_that_is_terminated_gives_back_what_every_worker_holds(cli: Cli, place: Path) -> None:
    at = str(place)
    with serving(place) as server, Client(place / socket_name()) as client:
        cli("queue", "push", at, "builds", stdin=b"1\n2\n")
        assert cli("queue", "take", at, "builds", "--worker", "leased", "--start").code == 0
        assert client.worker("bound", "builds").take() is not None
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)
    assert [(row["status"], row["failure_count"]) for row in cli("queue", "list", at, "builds", "--json").rows] == [
        ("pending", 0),
        ("pending", 0),
    ]
    assert cli("queue", "stats", at, "--json").rows[0]["workers"] == 0


@pytest.mark.slow
def test_a_daemon_over_a_sqlite_file_is_found_beside_it(cli: Cli, place: Path) -> None:
    place.mkdir()
    url, socket = f"sqlite:{place / 'runs.db'}", place / f"runs.db{socket_name()}"
    with serving(place, url, socket), Client(socket) as client:
        client.worker("bound", "builds")
        cli("queue", "push", url, "builds", "x", "--id", "i1")
        done = cli("queue", "take", url, "builds", "--worker", "bound")
        assert (done.code, "belongs to whoever started it" in done.err) == (2, True)  # Only the one that serves knows.


@pytest.mark.slow
def test_a_daemon_that_was_killed_leaves_a_socket_that_is_in_nobodys_way(cli: Cli, place: Path) -> None:
    with serving(place) as server:
        cli("queue", "push", str(place), "builds", "x", "--id", "i1")
        server.kill()
        server.communicate()
    assert (place / socket_name()).exists()
    assert cli("queue", "stats", str(place), "--json").rows[0]["pending"] == 1
    with serving(place):
        assert cli("queue", "stats", str(place), "--json").rows[0]["pending"] == 1


@pytest.mark.slow
def test_a_daemon_does_not_take_the_socket_of_another(cli: Cli, place: Path) -> None:
    with serving(place), Client(place / socket_name()) as client:
        done = cli("daemon", "serve", str(place.parent / "other"), "--socket", str(place / socket_name()))
        assert (done.code, "Another daemon listens" in done.err) == (4, True)
        assert client.push("builds", item_id="i1") == "i1"
        assert cli("queue", "stats", str(place), "--json").rows[0]["pending"] == 1


def test_a_daemon_ends_with_an_error_when_nobody_knows_what_is_stored(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, is_over = os.fdatasync, Event()

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    def push_twice() -> None:
        """To a daemon whose disk breaks between the two. One that goes on serving is ended, which is no error."""
        until(lambda: (place / socket_name()).exists())
        with Client(place / socket_name()) as client:
            client.push("builds", item_id="i1")
            monkeypatch.setattr(os, "fdatasync", fail)
            with suppress(AppendOutcomeUnknown, DaemonAway):
                client.push("builds", item_id="i2")
        if not is_over.wait(10):
            os.kill(os.getpid(), signal.SIGTERM)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    client = Thread(target=push_twice)
    client.start()
    try:
        done = cli("daemon", "serve", str(place))
    finally:
        is_over.set()
        client.join()
        monkeypatch.setattr(os, "fdatasync", flush)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert (done.code, "Start the daemon again" in done.err) == (4, True)
    assert not (place / socket_name()).exists()
    with Daemon.open(place) as daemon:
        assert [item.id for item in daemon.items("builds")] == ["i1"]


@pytest.mark.slow
def test_a_tail_that_follows_sees_what_comes(place: Path) -> None:
    with serving(place), Client(place / socket_name()) as client:
        client.push("builds", item_id="i1")
        command = [sys.executable, "-m", "runstate", "daemon", "tail", str(place), "--follow", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as tail:
            assert tail.stdout is not None
            first = json.loads(tail.stdout.readline())
            client.push("builds", item_id="i2")
            second = json.loads(tail.stdout.readline())
            tail.kill()
    assert [first["event"]["item_id"], second["event"]["item_id"]] == ["i1", "i2"]


def test_nothing_that_was_pushed_steers_the_terminal(cli: Cli) -> None:
    steering = "\x1b]0;pwned\x07\x9b2J\u202e\r"
    data = json.dumps({"note": steering}, ensure_ascii=False)
    assert cli("queue", "push", "d", f"builds{steering}", data, "--id", f"item{steering}").code == 0
    taken = cli("queue", "take", "d", f"builds{steering}", "--worker", f"w{steering}", "--start")
    shown = [cli("queue", "list", "d", f"builds{steering}"), cli("queue", "stats", "d"), cli("daemon", "state", "d")]
    for outcome in (taken, *shown):
        assert outcome.code == 0
        assert not set(steering) - set("]0;pwned2J") & set(outcome.out + outcome.err)
        assert "\\u001b]0;pwned\\u0007\\u009b2J\\u202e\\u000d" in outcome.out


def test_ids_with_control_characters_do_not_steer_the_terminal_in_streams(cli: Cli) -> None:
    with runstate.open("sqlite:runs.db") as store:
        store.run("r-\u202e\x9b", tenant="t\x1b[2J", plan="p").started()
    outcome = cli("streams", "sqlite:runs.db")
    assert not {"\u202e", "\x9b", "\x1b"} & set(outcome.out)
    assert "r-\\u202e\\u009b" in outcome.out
