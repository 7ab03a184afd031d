"""The socket: processes that share one daemon, workers that live as long as their connection, and what is refused."""

from __future__ import annotations

import json
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.unit.runtimes.daemon_places import until

from runstate.errors import (
    InvalidArgument,
    InvalidEvent,
    InvalidTransition,
    LogBusy,
    LogFailed,
    LogNotFound,
    RunstateError,
    Truncated,
)
from runstate.models.daemon import DAEMON
from runstate.models.daemon import events as e
from runstate.runtimes.daemon import Client, Daemon, DaemonAway, RequestRefused, Server, socket_name
from runstate.runtimes.daemon.wire import error_from, request_bytes_max

created = e.PipelineCreated("p", "build", "nightly", {}, "h", "/src", "build", 7)


@pytest.fixture
def place() -> Iterator[Path]:
    """A short path: the kernel gives a socket's about a hundred characters."""
    with tempfile.TemporaryDirectory(prefix="rs-") as made:
        yield Path(made)


@pytest.fixture
def daemon(place: Path) -> Iterator[Daemon]:
    with Daemon.open(place / "d", checkpoint_every_s=None) as made:
        yield made


@pytest.fixture
def server(daemon: Daemon, place: Path) -> Iterator[Server]:
    with Server(daemon, place / "d" / socket_name()) as made:
        yield made


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.path) as made:
        yield made


def test_the_socket_is_its_owners_alone(server: Server) -> None:
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o600


def test_a_client_can_ask_what_a_daemon_can_be_asked(daemon: Daemon, client: Client) -> None:
    assert client.emit(created) == 1
    assert client.push("q", {"ü": 1.5}, item_id="1") == "1"
    worker = client.worker("w", "q", concurrency=2)
    item = worker.take(pipeline_id="p")
    assert item == daemon.items("q")[0] == client.items("q")[0]
    assert worker.fail("1", "no").failure_count == 1
    assert worker.take() is not None
    client.heartbeat("w")
    worker.complete("1")
    assert worker.take() is None
    assert (client.stats(), client.seq) == (daemon.stats(), daemon.seq)
    assert client.state == daemon.state
    assert [event.seq for event in client.events()] == list(range(1, daemon.seq + 1))
    assert [bytes(event.event) for event in client.events()] == [record.body for record in daemon.events()]
    worker.stop()
    assert (client.checkpoint(), client.compact()) == (daemon.seq, daemon.seq)


def test_errors_come_over_as_what_they_are(client: Client) -> None:
    with pytest.raises(InvalidTransition, match="no worker 'ghost'") as refused:
        client.take("ghost")
    assert refused.value.details == {"worker": "ghost"}
    with pytest.raises(InvalidTransition, match="no pipeline"):
        client.emit(e.StepStarted("p9", "build"))
    with pytest.raises(InvalidEvent):
        client.emit(e.Custom(""))
    client.emit(created)
    client.emit(e.Custom("n"))
    client.checkpoint()
    client.compact()
    with pytest.raises(Truncated):
        client.events()


def test_an_error_of_an_unknown_code_is_an_error_still() -> None:
    told = error_from({"code": "no.such", "message": "words", "retryable": False, "details": None})
    assert (type(told), str(told)) == (RunstateError, "words")


# --- connections that end ------------------------------------------------------------------------------------------


def test_a_worker_dies_with_its_connection_and_its_items_have_failed(daemon: Daemon, server: Server) -> None:
    daemon.push("q", item_id="1")
    with Client(server.path) as client:
        assert client.worker("w", "q").take() is not None
    until(lambda: not daemon.state.workers)
    (item,) = daemon.items("q")
    assert (item.status, item.failure_count, item.error) == ("failed", 1, "the connection of the worker w has ended")


def test_a_client_that_hangs_up_while_it_waits_gets_no_item(daemon: Daemon, server: Server) -> None:
    client = Client(server.path)
    client.worker("w", "q")
    client._socket.sendall(b'{"op":"take","worker":"w","wait_s":60}\n')
    until(lambda: daemon._bells.get("q"))
    client.close()
    until(lambda: not daemon.state.workers)
    daemon.push("q", item_id="1")
    assert daemon.items("q")[0].status == "pending"


def test_a_client_that_has_shut_down_its_side_gets_its_answers(daemon: Daemon, server: Server) -> None:
    daemon.worker("w", "q", lease_s=1000)
    with socket.socket(socket.AF_UNIX) as bare:
        bare.connect(str(server.path))
        bare.sendall(b'{"op":"seq"}\n{"op":"take","worker":"w","wait_s":60}\n')
        bare.shutdown(socket.SHUT_WR)
        until(lambda: daemon._bells.get("q"))
        daemon.push("q", item_id="1")
        answers = bare.makefile("rb").readlines()
    assert [json.loads(answer)["ok"] for answer in answers[:1]] == [1]
    assert json.loads(answers[1])["ok"]["id"] == "1"


def test_a_client_that_shuts_down_its_side_and_then_leaves_gets_no_item(daemon: Daemon, server: Server) -> None:
    daemon.worker("w", "q", lease_s=1000)
    with socket.socket(socket.AF_UNIX) as bare:
        bare.connect(str(server.path))
        bare.sendall(b'{"op":"take","worker":"w","wait_s":60}\n')
        bare.shutdown(socket.SHUT_WR)
        until(lambda: daemon._bells.get("q"))
    until(lambda: not daemon._bells.get("q"))
    daemon.push("q", item_id="1")
    assert daemon.items("q")[0].status == "pending"


def test_many_clients_may_come_at_once(server: Server) -> None:
    room = Path("/proc/sys/net/core/somaxconn")
    if not room.exists() or int(room.read_text()) < 300:
        pytest.skip("needs a kernel that lets 300 wait: sysctl net.core.somaxconn=4096")
    is_over = threading.Event()
    server._loop.call_soon_threadsafe(is_over.wait, 30)  # Busy with something else, so that nobody is let in.
    clients = [socket.socket(socket.AF_UNIX) for _ in range(200)]
    try:
        for bare in clients:
            bare.setblocking(False)
        assert {bare.connect_ex(str(server.path)) for bare in clients} == {0}
        is_over.set()
        for bare in clients:
            bare.settimeout(30)
            bare.sendall(b'{"op":"seq"}\n')
        assert {bare.recv(100) for bare in clients} == {b'{"ok":0}\n'}
    finally:
        is_over.set()
        for bare in clients:
            bare.close()


def test_a_worker_with_a_lease_outlives_its_connection(daemon: Daemon, server: Server) -> None:
    daemon.push("q", item_id="1")
    with Client(server.path) as client:
        assert client.worker("w", "q", lease_s=1000).take() is not None
    with Client(server.path) as client:
        client.complete("q", "1", worker="w")
    assert daemon.items("q") == []


def test_a_worker_of_one_connection_is_not_anothers(server: Server, client: Client) -> None:
    client.worker("w", "q")
    with Client(server.path) as other:
        with pytest.raises(LogBusy):
            other.worker("w", "q")
        with pytest.raises(InvalidTransition, match="belongs to"):
            other.take("w")


def test_a_take_waits_for_a_push_of_another_client(server: Server, client: Client) -> None:
    worker = client.worker("w", "q")
    with ThreadPoolExecutor(1) as pool, Client(server.path) as other:
        taken = pool.submit(worker.take, wait_s=30)
        other.push("q", "late")
        item = taken.result()
    assert item is not None
    assert item.data == "late"


def test_a_server_that_closes_gives_back_what_its_workers_hold(daemon: Daemon, place: Path) -> None:
    daemon.push("q", item_id="1")
    with Server(daemon, place / "s") as server:
        client = Client(server.path)
        client.worker("w", "q").take()
    (item,) = daemon.items("q")
    assert (item.status, item.failure_count, daemon.state.workers) == ("pending", 0, {})
    with pytest.raises(DaemonAway):
        client.stats()
    client.close()
    assert not server.path.exists()


def test_no_daemon_no_client(place: Path, server: Server) -> None:
    with pytest.raises(LogNotFound):
        Client(place / "none")
    server.close()
    with pytest.raises(LogNotFound):
        Client(server.path)


def test_a_socket_that_a_killed_daemon_left_is_replaced(daemon: Daemon, place: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(place / "s"))
    left.close()
    with Server(daemon, place / "s"), Client(place / "s") as client:
        assert client.stats() == []


def test_a_socket_that_somebody_listens_at_is_left_to_them(
    daemon: Daemon, server: Server, client: Client, place: Path
) -> None:
    with Daemon.open(place / "other", checkpoint_every_s=None) as other, pytest.raises(LogBusy, match="listens at"):
        Server(other, server.path)
    assert client.stats() == []
    with Client(server.path) as late:
        assert late.seq == daemon.seq


def test_a_socket_whose_server_has_no_room_left_is_not_taken_for_abandoned(daemon: Daemon, place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as full, socket.socket(socket.AF_UNIX) as first:
        full.bind(str(place / "s"))
        full.listen(0)
        first.connect(str(place / "s"))
        with pytest.raises(LogBusy):
            Server(daemon, place / "s")
        assert (place / "s").exists()


def test_a_server_that_closes_leaves_the_socket_that_has_taken_its_place(daemon: Daemon, place: Path) -> None:
    server = Server(daemon, place / "s")
    (place / "s").unlink()
    with socket.socket(socket.AF_UNIX) as successor:
        successor.bind(str(place / "s"))
        server.close()
        assert (place / "s").exists()


@pytest.mark.parametrize("path", ["x" * 200, "none/s", "file"])
def test_where_no_socket_can_be_is_said(daemon: Daemon, place: Path, path: str) -> None:
    (place / "file").write_text("mine")
    with pytest.raises(LogFailed, match="No socket"):
        Server(daemon, place / path)
    assert (place / "file").read_text() == "mine"


# --- what is no request --------------------------------------------------------------------------------------------


def raw(server: Server, line: bytes) -> Any:
    with socket.socket(socket.AF_UNIX) as bare:
        bare.connect(str(server.path))
        bare.sendall(line)
        answer = bare.makefile("rb").readline()
    return json.loads(answer)


@pytest.mark.parametrize(
    "line",
    [
        b"noise\n",
        b"\xff\xfe\n",
        b"{}\n",
        b'{"op":"explode"}\n',
        b'{"op":"push"}\n',
        b'{"op":"push","queue":7}\n',
        b'{"op":"stats","more":1}\n',
        b'{"op":"items","queue":"q","limit":"x"}\n',
        b'{"op":"events","limit":0}\n',
        b"[" * 100_000 + b"\n",
    ],
    ids=lambda line: repr(line[:30]),
)
def test_what_cannot_be_understood_is_refused_and_the_daemon_goes_on(
    server: Server, client: Client, line: bytes
) -> None:
    assert raw(server, line)["error"]["code"] in (RequestRefused.code, InvalidArgument.code)
    assert client.stats() == []


def test_an_event_of_an_unknown_tag_is_refused_by_name(server: Server) -> None:
    answer = raw(server, b'{"op":"emit","event":{"type":"queue:gone"}}\n')
    assert answer["error"]["code"] == "event.invalid"
    assert "queue:gone" in answer["error"]["message"]


def test_a_request_beyond_the_limit_is_refused(server: Server, client: Client) -> None:
    line = b'{"op":"push","queue":"q","data":"%b"}\n' % (b"x" * (request_bytes_max + 1))
    with socket.socket(socket.AF_UNIX) as bare:
        bare.connect(str(server.path))
        sending = threading.Thread(target=_send, args=(bare, line))
        sending.start()
        answer = json.loads(bare.makefile("rb").readline())
        sending.join()
    assert answer["error"]["code"] == RequestRefused.code
    assert client.stats() == []


def _send(bare: socket.socket, line: bytes) -> None:
    try:
        bare.sendall(line)
    except (BrokenPipeError, ConnectionResetError):
        return  # The daemon has hung up in the middle, as it should.


def test_requests_may_be_sent_ahead_of_their_answers(server: Server) -> None:
    with socket.socket(socket.AF_UNIX) as bare:
        bare.connect(str(server.path))
        bare.sendall(b"".join(b'{"op":"push","queue":"q","item_id":"%d"}\n' % n for n in range(5)))
        answers = bare.makefile("rb")
        assert [json.loads(answers.readline())["ok"] for _ in range(5)] == list("01234")


def test_a_request_that_fails_in_the_daemon_is_told_and_logged(
    server: Server, client: Client, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise ArithmeticError("a bug")

    monkeypatch.setattr(daemon, "stats", broken)
    with pytest.raises(RunstateError, match="a bug"):
        client.stats()
    assert "a request failed" in caplog.text
    assert client.seq == 0


def test_state_over_the_socket_is_the_state_byte_for_byte(daemon: Daemon, client: Client) -> None:
    for n in range(1200):
        daemon.emit(e.QueuePushed("q", str(n), {"n": 1e21, "ü": [n]}, n), durable=False)
    assert DAEMON.dump(client.state) == DAEMON.dump(daemon.state)
