"""A daemon with eight producers, killed with SIGKILL at random moments, again and again, also while it checkpoints.

After every kill, everything acknowledged is there, no seq comes twice, the log reads strictly and verifies, and the
daemon's state is what a fold of all that was ever acknowledged gives, byte for byte. Between two lives the log may be
emptied by a checkpoint, or damaged. `RUNSTATE_KILL_ROUNDS` says how often they are killed.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import msgspec
import pytest

from runstate.logs.registry import open_log
from runstate.models.daemon import DAEMON, DaemonEvent
from runstate.models.daemon import events as e
from runstate.models.daemon.lines import encode
from runstate.runtimes.daemon import Daemon
from runstate.runtimes.daemon.journal import load_state

rounds = int(os.environ.get("RUNSTATE_KILL_ROUNDS", "17"))
rounds_each = 100
"""On one log: everything that it ever held is folded after every round."""
producers = 8
parent, creator = 8, 9
stream = "daemon"
Events = dict[int, str]
"""The keys of events, by their seqs. Everything else about an event follows from its key."""


def event_of(key: str) -> DaemonEvent:
    """Whatever is sent changes the same few things, so that the state tells in which order it was stored."""
    _, producer, turn, part = map(int, key.split("-"))
    if producer == creator:
        return e.PipelineCreated("shared", "build", key, {}, "", "/", "build", 0, event_id=key)
    match turn % 3 + part:
        case 0:
            return e.PipelineUpdated("shared", {f"v{turn % 4}": key}, event_id=key)
        case 1:
            return e.WorkerStarted(f"w{turn % 2}", key, "", "q", 1, event_id=key)
        case 2:
            return e.PipelineUpdated("shared", {f"v{turn % 5}": key}, event_id=key)
        case _:
            return e.QueuePushed("q", f"i{turn % 6}", key, turn, event_id=key)


def keys_of(number: int, producer: int, turn: int) -> list[str]:
    return [f"{number}-{producer}-{turn}-{part}" for part in range(1 + turn % 3)]


def lines_of(events: Events, *, after_seq: int = 0) -> list[bytes]:
    return [encode(event_of(events[seq])) for seq in sorted(events) if seq > after_seq]


def folded(events: Events) -> bytes:
    return DAEMON.dump(DAEMON.fold(DAEMON.initial(stream), lines_of(events)))


# --- the process that is killed ---------------------------------------------------------------------------------------


def produce(url: str, number: int, told: int) -> None:
    """Emit for ever, and tell of everything that was acknowledged. Never returns."""
    daemon = Daemon.open(url, checkpoint_every_s=0.005 if number % 2 else None, lease_s=3600)
    telling = Lock()

    def emitted(keys: list[str]) -> Iterable[int]:
        return [daemon.emit(event_of(key)) for key in keys]

    def decided(keys: list[str]) -> Iterable[int]:
        """Several events in one append."""
        ticket = daemon._decided(lambda: daemon._write([event_of(key) for key in keys]))
        daemon._settle(ticket)
        return [result.seq for result in ticket.results]

    def buffered(keys: list[str]) -> Iterable[int]:
        """Several appends in one flush."""
        seqs = [daemon.emit(event_of(key), durable=False) for key in keys]
        daemon.flush()
        return seqs

    def tell(keys: list[str], store: Callable[[list[str]], Iterable[int]]) -> None:
        lines = [f"{seq} {key}\n" for seq, key in zip(store(keys), keys, strict=True)]
        with telling:
            os.write(told, "".join(lines).encode())

    def write(producer: int) -> None:
        for turn in range(1_000_000):
            keys = keys_of(number, producer, turn)
            tell(keys, (emitted, buffered, decided)[turn % 3])

    tell([f"{number}-{creator}-0-0"], decided)
    threads = [Thread(target=write, args=(producer,)) for producer in range(producers)]
    for thread in threads:
        thread.start()
    threads[0].join()
    os._exit(1)


def killed(url: str, number: int, chance: random.Random) -> Events:
    """What a process told before it was killed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            produce(url, number, write)
        except BaseException:  # noqa: BLE001 - whatever it is, this fork must not go on as its parent
            sys.excepthook(*sys.exc_info())
        os._exit(1)
    os.close(write)
    told, enough = b"", chance.choice((1, 40, chance.randrange(400)))
    try:
        while told.count(b"\n") < enough:
            ready, _, _ = select.select([read], [], [], 30)
            assert ready, "the producers are stuck"
            data = os.read(read, 65536)
            assert data, "the producers have died"
            told += data
        select.select([], [], [], chance.uniform(0, 0.01))  # A moment that nobody has chosen.
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    while data := os.read(read, 65536):
        told += data
    os.close(read)
    heard: Events = {}
    for line in told.decode().split("\n")[:-1]:
        seq, _, key = line.partition(" ")
        assert int(seq) not in heard, "a seq was given out twice in one life"
        heard[int(seq)] = key
    return heard


def in_doubt(number: int, heard: Events) -> list[str]:
    """What may be stored though nobody was told: the next turn of every producer."""
    turns = dict.fromkeys(range(producers), -1)
    for key in heard.values():
        _, producer, turn, _ = map(int, key.split("-"))
        turns[producer] = max(turns.get(producer, -1), turn)
    return [key for producer in range(producers) for key in keys_of(number, producer, turns[producer] + 1)]


# --- what else may happen between two lives ---------------------------------------------------------------------------


class Line(msgspec.Struct):
    """What an entry tells of its place."""

    seq: int
    record: dict[str, Any]


def harm(home: Path, number: int, told_seq: int) -> tuple[int | None, bytes]:
    """Damage the WAL in some rounds. The seq of the last entry before the damage, or 0, and the whole file as it is
    now; None: it was left alone."""
    wal, kind = home / "wal.jsonl", {2: "flip", 4: "zeros", 6: "noise"}.get(number % 8)
    data = wal.read_bytes() if wal.exists() else b""
    *lines, stub = data.split(b"\n")
    if kind is None or not lines:
        return None, data
    places = [msgspec.json.decode(line, type=Line) for line in lines]
    offset, first = 0, 0
    if kind == "flip":
        offset = len(data[: -len(stub) or None]) * 2 // 3
        offset -= data[offset : offset + 1] == b"\n"
        first = data.count(b"\n", 0, offset)
        data = data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]
    elif kind == "zeros":  # As a disk leaves it that has lost what it had flushed: the last append that was told of.
        first = next((index for index, place in enumerate(places) if place.seq >= told_seq), len(places) - 1)
        while first and places[first - 1].record.get("more"):
            first -= 1
        offset = sum(len(line) + 1 for line in lines[:first])
        data = data[:offset] + bytes(len(data) - offset)
    else:
        data = b"\xff\xfenoise\0" * 20
    wal.write_bytes(data)
    return places[first - 1].seq if first else 0, data


def has_evidence(home: Path, damaged: bytes) -> bool:
    """Whether the file is kept as it was, or what was cut off from it."""
    bak, torn = home / "wal.jsonl.bak", home / "wal.jsonl.torn"
    return (bak.exists() and bak.read_bytes() == damaged) or (torn.exists() and damaged.endswith(torn.read_bytes()))


def archived_seq(home: Path) -> int:
    """The last seq in the archive, by the names of its segments."""
    return max((int(path.name.split("-")[1]) for path in (home / "archive").glob("*.gz")), default=0)


def until(events: Events, seq: int) -> Events:
    return {each: key for each, key in events.items() if each <= seq}


# --- the test ---------------------------------------------------------------------------------------------------------


class Record:
    """What the test itself knows of everything that was ever stored."""

    def __init__(self) -> None:
        self.ever: Events = {}
        """Every seq that anybody was told of or has seen."""
        self.kept: Events = {}
        """What the state is a fold of: all of it, but for what damage has taken away."""
        self.logged: Events = {}
        """What the log holds, or has dropped with a checkpoint."""

    def add(self, events: Events) -> None:
        assert {seq: key for seq, key in events.items() if self.ever.get(seq, key) != key} == {}, "a seq came twice"
        self.ever |= events
        self.kept |= events
        self.logged |= events

    def lose(self, home: Path, intact_seq: int, snapshot_seq: int) -> None:
        """The WAL is damaged behind a seq, or from its beginning."""
        self.kept = until(self.kept, max(intact_seq, snapshot_seq))
        self.logged = until(self.logged, intact_seq or archived_seq(home))


def check(daemon: Daemon, record: Record, history: str) -> None:
    """By the daemon, and by its log read strictly: everything that was acknowledged, and nothing else."""
    assert DAEMON.dump(daemon.state) == folded(record.kept)
    log = daemon._journal.log
    snapshot = log.load_snapshot(stream, DAEMON.name)
    start = 0 if history == "archive" or snapshot is None else snapshot.seq
    assert list(log.lines(stream, after_seq=start)) == lines_of(record.logged, after_seq=start)
    read = {found.seq: found.key for found in log.read(stream, after_seq=start, limit=1_000_000)}
    assert read == {seq: key for seq, key in record.logged.items() if seq > start}
    assert [finding for finding in log.verify(stream) if finding.severity == "damage"] == []


@pytest.mark.slow
@pytest.mark.parametrize("history", ["drop", "archive"])
def test_a_killed_daemon_comes_back_with_everything_it_acknowledged_and_repeats_no_seq(
    tmp_path: Path, history: str
) -> None:
    for start in range(0, rounds, rounds_each):
        place = tmp_path / str(start)
        endure(place, range(start, min(rounds, start + rounds_each)), history)


def endure(place: Path, numbers: range, history: str) -> None:
    url, home, chance = f"wal:{place}?history={history}", place / stream, random.Random(numbers.start)
    record, last_seq = Record(), 0
    for number in numbers:
        heard = killed(url, number, chance)
        assert min(heard) > last_seq, f"round {number}"
        record.add(heard)
        intact_seq, damaged = harm(home, number, max(heard))
        with open_log(url, create=False) as reader:
            stored = reader.load_snapshot(stream, DAEMON.name)
            seen = load_state(reader, stream) if intact_seq is None else None
        with Daemon.open(url, checkpoint_every_s=None, lease_s=3600) as daemon:
            known = {key: daemon._journal.known(key) for key in in_doubt(number, heard)}
            record.add({seq: key for key, seq in known.items() if seq is not None})
            if intact_seq is not None:
                record.lose(home, intact_seq, 0 if stored is None else stored.seq)
                assert has_evidence(home, damaged), f"round {number}"
            else:
                # A kill leaves no gap, and who only reads sees all that was acknowledged before anything is recovered.
                seqs = [seq for seq in record.ever if seq > last_seq]
                assert sorted(seqs) == list(range(last_seq + 1, daemon.seq + 1)), f"round {number}"
                assert seen is not None
                assert seen[1] >= max(heard)
                assert DAEMON.dump(seen[0]) == folded(until(record.kept, seen[1])), f"round {number}"
            check(daemon, record, history)
            assert daemon.seq >= max(record.ever), f"round {number}"
            key = f"{number}-{parent}-1-0"
            last_seq = daemon.emit(event_of(key))
            assert last_seq not in record.ever, f"round {number}"
            record.add({last_seq: key})
            if number % 4 == 1:
                daemon.checkpoint()
                daemon.compact()
                assert (home / "wal.jsonl").read_bytes().count(b"\n") == 1
            check(daemon, record, history)
