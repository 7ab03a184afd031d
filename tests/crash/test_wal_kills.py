"""Eight producers, killed with SIGKILL at random moments, again and again on one stream, also while it is compacted.

Every acknowledged event is there after recovery, no seq comes twice, and the state is what a replay of everything ever
acknowledged gives. `RUNSTATE_KILL_ROUNDS` says how often they are killed.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Lock, Thread

import msgspec
import pytest

from runstate.conformance.notes import note
from runstate.logs.log import StoredSnapshot
from runstate.logs.wal import WalLog
from runstate.logs.wal.options import WalOptions
from runstate.models.canonical import digest

rounds = int(os.environ.get("RUNSTATE_KILL_ROUNDS", "20"))
producers = 8
State = dict[int, str]
"""The key of every event, by its seq."""


def state_of(log: WalLog) -> tuple[int, State]:
    """From the snapshot and the entries behind it, as any model would."""
    kept = log.load_snapshot("s", "notes")
    seq = 0 if kept is None else kept.seq
    state = {} if kept is None else msgspec.json.decode(kept.body, type=State)
    for record in iter(log.reader("s", processed_seq=seq).next_unprocessed, None):
        state[record.seq] = record.key
        seq = record.seq
    return seq, state


def checkpoint(log: WalLog) -> None:
    seq, state = state_of(log)
    body = msgspec.json.encode(state)
    log.checkpoint("s", StoredSnapshot("notes", 1, seq, digest(body), body))


def produce(root: Path, number: int, told: int) -> None:
    """Append for ever, and tell of everything that was acknowledged. Never returns."""
    log = WalLog(root, options=WalOptions(flush_interval_ms=1, flush_entries=10))
    telling = Lock()

    def write(producer: int) -> None:
        for turn in range(1_000_000):
            # A single one, several at once, or several that are buffered one by one.
            drafts = [note(f"{number}-{producer}-{turn}-{part}") for part in range(1 + turn % 3)]
            if turn % 2:
                results = log.append("s", drafts)
            else:
                results = [result for d in drafts for result in log.append_buffered("s", [d]).results]
                log.flush("s")
            lines = [f"{result.seq} {draft.key}\n" for draft, result in zip(drafts, results, strict=True)]
            with telling:
                os.write(told, "".join(lines).encode())

    def keep() -> None:
        while True:
            if log.stream("s") is not None:
                checkpoint(log)

    threads = [Thread(target=write, args=(producer,)) for producer in range(producers)]
    for thread in [*threads, *([Thread(target=keep)] if number % 2 else [])]:
        thread.start()
    threads[0].join()
    os._exit(1)


def killed(root: Path, number: int, chance: random.Random) -> Iterator[tuple[int, str]]:
    """What a process was told before it was killed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            produce(root, number, write)
        except BaseException:  # noqa: BLE001 - whatever it is, this fork must not go on as its parent
            sys.excepthook(*sys.exc_info())
        os._exit(1)
    os.close(write)
    told, enough = b"", chance.choice((1, 500, chance.randrange(5000)))
    try:
        while len(told) < enough:
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
    for line in told.decode().split("\n")[:-1]:
        seq, _, key = line.partition(" ")
        yield int(seq), key


def harm(root: Path, number: int, log: WalLog) -> bool:
    """What else may happen between two lives: a checkpoint, a flipped bit, noise. True: something was lost."""
    wal = root / "s" / "wal.jsonl"
    if number % 4 == 1:
        checkpoint(log)
    log.close()
    if number % 4 == 2:
        data = bytearray(wal.read_bytes())
        data[len(data) * 2 // 3] ^= 1
        wal.write_bytes(data)
        return True
    if number % 8 == 5:
        wal.write_bytes(b"\xff\xfenoise\0" * 20)
        return True
    return False


@pytest.mark.slow
def test_killed_producers_lose_nothing_and_no_seq_comes_twice(tmp_path: Path) -> None:
    chance = random.Random(17)
    ever: State = {}
    expected: State = {}
    for number in range(rounds):
        heard = dict(killed(tmp_path, number, chance))
        assert {seq: key for seq, key in heard.items() if ever.get(seq, key) != key} == {}, f"round {number}"
        ever |= heard
        expected |= heard
        log = WalLog(tmp_path)
        log.recover("s")
        _, state = state_of(log)
        assert {seq: key for seq, key in expected.items() if state.get(seq) != key} == {}, f"round {number}"
        ever |= state
        assert [finding for finding in log.verify("s") if finding.severity == "damage"] == [], f"round {number}"
        (after,) = log.append("s", [note(f"{number}-after")])
        assert after.seq > max(ever), f"round {number}"
        ever[after.seq] = f"{number}-after"
        if harm(tmp_path, number, log):
            log = WalLog(tmp_path)
            log.recover("s")
            expected = state_of(log)[1]
            (after,) = log.append("s", [note(f"{number}-harmed")])
            assert after.seq > max(ever), f"round {number}"
            ever[after.seq] = f"{number}-harmed"
            log.close()
        if len(ever) > 20_000:  # The state is written with every checkpoint: begin anew before that takes all the time.
            log = WalLog(tmp_path)
            log.delete_stream("s")
            log.close()
            ever, expected = {}, {}
