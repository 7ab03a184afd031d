"""What a durable log promises: whatever was acknowledged is there after a close, a kill, a kill while recovering."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from functools import partial
from typing import ClassVar

import pytest

from runstate.conformance.claims.feeds import check_complete
from runstate.conformance.claims.tombstones import tombstone_of
from runstate.conformance.fixtures import LogKit, needs
from runstate.conformance.notes import as_held, findings, followed, keys, note, notes, numbered, snapshot, stored
from runstate.conformance.opener import Opener
from runstate.conformance.threads import race
from runstate.conformance.workers import Acknowledged, Worker, check_stored
from runstate.conformance.writer import Task
from runstate.errors import LogClosed, ModelMismatch, StreamDeleted
from runstate.logs.log import Capability, EventLog, Position, Record
from runstate.logs.submitting import submit


class DurableLogConformance(LogKit):
    """The tests for logs that declare DURABLE. Other processes must be able to open the opener's URL."""

    proves = Capability.DURABLE

    kill_rounds: ClassVar[int] = int(os.environ.get("RUNSTATE_KILL_ROUNDS", "100"))
    kill_seed: ClassVar[int] = int(os.environ.get("RUNSTATE_KILL_SEED", "1"))

    # --- closed and opened again -----------------------------------------------------------------------

    def test_records_are_the_same_after_reopening(self, log: EventLog, opener: Opener) -> None:
        log.append("s", [note("a", "ü€🜁\u2028"), note("b")])
        log.append("t", numbered(1500))
        before = [(stored(log, name), log.stream(name)) for name in ("s", "t")]
        log.close()
        log = opener()
        assert [(stored(log, name), log.stream(name)) for name in ("s", "t")] == before
        assert list(log.verify()) == []

    def test_what_was_submitted_before_closing_is_there_after_reopening(self, log: EventLog, opener: Opener) -> None:
        for number in range(self.some(30)):
            submit(log, f"s{number % 3}", notes(f"k{number}"))
        log.close()
        log = opener()
        found = [key for number in range(3) for key in keys(stored(log, f"s{number}"))]
        assert sorted(found) == sorted(f"k{number}" for number in range(self.some(30)))

    def test_keys_are_known_after_reopening(self, log: EventLog, opener: Opener) -> None:
        (first,) = log.append("s", [note("a", "one")])
        log.close()
        log = opener()
        (again,) = log.append("s", [note("a", "two")])
        assert (again.seq, again.event_id, again.persisted_at) == (first.seq, first.event_id, first.persisted_at)
        assert (again.idempotent, again.persisted, again.mismatch) == (True, False, True)

    def test_the_model_of_a_stream_is_recorded_after_reopening(self, log: EventLog, opener: Opener) -> None:
        log.append("s", notes("a"))
        log.close()
        log = opener()
        assert [(info.stream, info.model) for info in log.streams()] == [("s", "notes")]
        with pytest.raises(ModelMismatch):
            log.append("s", [note("b", model="other")])
        assert log.append("s", notes("b"))[0].seq == 2

    def test_seq_goes_on_after_reopening(self, log: EventLog, opener: Opener) -> None:
        log.append("s", notes("a", "b"))
        log.close()
        log = opener()
        assert log.append("s", notes("c"), expected_seq=2)[0].seq == 3

    @needs(Capability.FEED)
    def test_a_position_is_good_after_reopening(self, log: EventLog, opener: Opener) -> None:
        log.append("s", numbered(5))
        middle, end = log.feed(limit=2).next, followed(log).next
        rest = log.feed(after=middle).records
        log.close()
        log = opener()
        assert log.feed(after=middle).records == rest
        log.append("t", notes("new"))
        assert keys(log.feed(after=end).records) == ["new"]

    @needs(Capability.FEED, Capability.DELETE)
    def test_no_position_is_used_twice_after_deleting_and_reopening(self, log: EventLog, opener: Opener) -> None:
        log.append("newest", numbered(5))
        end = followed(log).next
        log.delete_stream("newest")
        log.close()
        log = opener()
        log.append("s", notes("a"))
        assert keys(log.feed(after=end).records) == ["a"]

    @needs(Capability.ADOPT)
    def test_adopted_records_are_the_same_after_reopening(self, log: EventLog, opener: Opener) -> None:
        log.adopt("s", held := as_held("s", [note("a", "ü€🜁\u2028"), *numbered(1500)]))
        log.close()
        log = opener()
        assert stored(log, "s") == held
        assert list(log.verify()) == []
        assert log.adopt("s", held) == 0
        assert log.append("s", [note("a"), note("new")])[1].seq == 1502

    @needs(Capability.DELETE)
    def test_a_deleted_stream_stays_deleted_after_reopening(self, log: EventLog, opener: Opener) -> None:
        log.append("s", notes("a"))
        log.delete_stream("s")
        log.close()
        log = opener()
        assert (log.read("s"), log.streams()) == ([], [])
        assert log.append("s", notes("a"))[0].persisted

    @needs(Capability.DELETE)
    def test_a_tombstone_is_kept_after_reopening(self, log: EventLog, opener: Opener) -> None:
        log.append("s", notes("a", "b"))
        log.delete_stream("s", tombstone=tombstone_of("s"))
        log.close()
        log = opener()
        assert (log.tombstone("s"), log.streams()) == (tombstone_of("s"), [])
        with pytest.raises(StreamDeleted):
            log.append("s", notes("c"))
        assert list(log.verify()) == []

    @needs(Capability.SNAPSHOTS)
    def test_a_snapshot_is_kept_after_reopening(self, log: EventLog, opener: Opener) -> None:
        log.append("s", numbered(3))
        log.save_snapshot("s", kept := snapshot(3))
        log.close()
        assert opener().load_snapshot("s", "notes") == kept

    @needs(Capability.BLOBS)
    def test_a_blob_is_kept_after_reopening(self, log: EventLog, opener: Opener) -> None:
        ref = log.put_blob(b"data")
        log.close()
        assert opener().get_blob(ref) == b"data"

    def test_closing_finishes_what_was_accepted_and_refuses_the_rest(self, log: EventLog, opener: Opener) -> None:
        def write(number: int) -> list[str]:
            done: list[str] = []
            with suppress(LogClosed):
                for turn in range(200):
                    log.append("s", notes(f"{number}/{turn}"))
                    done.append(f"{number}/{turn}")
                    if (number, turn) == (0, 5):
                        log.close()
            return done

        answers = race([partial(write, number) for number in range(8)])
        acknowledged = [key for answer in answers if isinstance(answer, list) for key in answer]
        assert sorted(keys(stored(opener(), "s"))) == sorted(acknowledged)

    # --- killed ----------------------------------------------------------------------------------------

    @pytest.mark.slow
    def test_a_killed_writer_loses_nothing_that_it_acknowledged(self, opener: Opener) -> None:
        chance = random.Random(self.kill_seed)
        with Worker(opener.url) as worker:
            for number in range(self.kill_rounds):
                task = Task(f"s{number}", 100_000, threads=chance.choice((1, 1, 4)), seed=number)
                worker.start(task)
                told = worker.kill(
                    after_acknowledged=chance.choice((0, 1, chance.randrange(40), chance.randrange(40))),
                    pause_s=chance.choice((0, chance.uniform(0, 0.04))),
                )
                check_round(opener, task, told)
        log = opener()
        assert findings(log) == []

    @pytest.mark.slow
    @needs(Capability.ADOPT)
    def test_a_killed_copy_has_adopted_whole_calls_and_goes_on(self, log: EventLog, opener: Opener) -> None:
        log.adopt("s", as_held("s", notes("a")))  # Else refused: so a log without it needs no kills.
        log.close()
        chance = random.Random(self.kill_seed)
        told: Acknowledged = {}
        rounds = max(self.some(10), self.kill_rounds // 5)
        with Worker(opener.url) as worker:
            for number in range(rounds):
                task = Task(f"s{number}", 100_000, seed=number, adopts=True)
                worker.start(task)
                told = worker.kill(after_acknowledged=chance.randrange(20), pause_s=chance.uniform(0, 0.02))
                # Again from the beginning, as whoever was killed has to.
                worker.start(task)
                told |= worker.kill(after_acknowledged=len(told) + chance.randrange(20), pause_s=0)
                check_round(opener, task, told)
        assert findings(opener()) == []

    @pytest.mark.slow
    def test_a_writer_that_is_killed_and_resends_everything_stores_each_key_once(self, opener: Opener) -> None:
        chance = random.Random(self.kill_seed)
        task = Task("s", 60, threads=2)
        told: Acknowledged = {}
        with Worker(opener.url) as worker:
            for number in range(kills := self.some(12)):
                worker.start(task)
                heard = worker.kill(after_acknowledged=number * 100 // kills, pause_s=chance.uniform(0, 0.01))
                assert {key: seq for key, seq in heard.items() if told.get(key, seq) != seq} == {}
                told |= heard
            worker.start(task)
            told |= worker.finish()
        log = opener()
        check_stored(log, [task], told)
        assert len(told) == len(stored(log, "s"))

    @pytest.mark.slow
    @needs(Capability.FEED)
    def test_a_follower_misses_nothing_over_kills(self, log: EventLog, opener: Opener) -> None:
        log.close()
        chance = random.Random(self.kill_seed)
        seen: list[Record] = []
        after: Position | None = None
        with Worker(opener.url) as worker:
            for number in range(self.some(10)):
                worker.start(Task(f"s{number % 3}", 100_000, name=f"w{number}", threads=4))
                worker.kill(after_acknowledged=chance.randrange(30), pause_s=0)
                log = opener()
                page = followed(log, after, page=7)
                seen, after = seen + page.records, page.next
                log.close()
        check_complete(opener(), seen)


def check_round(opener: Opener, task: Task, told: Acknowledged) -> None:
    """What a kill has left is what was acknowledged and perhaps a little more; and the log goes on from there."""
    log = opener()
    check_stored(log, [task], told)
    assert findings(log, task.stream) == []
    before = stored(log, task.stream)
    (result,) = log.append(task.stream, notes("afterwards"))
    *others, last = stored(log, task.stream)
    # A server may still have been at work for the one that was killed: what it has committed since is whole too.
    assert others[: len(before)] == before
    assert (last.seq, last.key) == (result.seq, "afterwards")
    assert last.seq == len(others) + 1
    log.close()
