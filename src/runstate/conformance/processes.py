"""What a log for several processes promises: one order, one row per key, whoever writes."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import pytest

from runstate.conformance.claims.feeds import check_complete, follow, write
from runstate.conformance.claims.keepings import delete_again_and_again
from runstate.conformance.claims.tombstones import tombstone_of
from runstate.conformance.fixtures import LogKit, needs
from runstate.conformance.notes import findings, keys, notes, numbered, snapshot, stored
from runstate.conformance.opener import Opener
from runstate.conformance.threads import meanwhile, race, race_all
from runstate.conformance.workers import Acknowledged, Worker, check_stored
from runstate.conformance.writer import Task
from runstate.errors import SequenceConflict, StreamDeleted
from runstate.logs.log import Capability, EventLog


class MultiProcessLogConformance(LogKit):
    """The tests for logs that declare MULTI_PROCESS. Other processes must be able to open the opener's URL."""

    proves = Capability.MULTI_PROCESS

    # --- two handles -----------------------------------------------------------------------------------

    def test_what_one_handle_appends_the_other_reads(self, log: EventLog, opener: Opener) -> None:
        other = opener()
        log.append("s", notes("a"))
        assert keys(other.read("s")) == ["a"]
        assert other.append("s", notes("b"), expected_seq=1)[0].seq == 2
        assert keys(log.read("s")) == ["a", "b"]

    def test_a_key_is_known_to_every_handle(self, log: EventLog, opener: Opener) -> None:
        (first,) = log.append("s", notes("a"))
        (again,) = opener().append("s", notes("a"))
        assert (again.seq, again.persisted_at, again.idempotent) == (first.seq, first.persisted_at, True)

    def test_racing_handles_let_exactly_one_through_at_one_expected_seq(self, log: EventLog, opener: Opener) -> None:
        handles = [log, *(opener() for _ in range(3))]
        answers = race([partial(handles[n % 4].append, "s", notes(f"k{n}"), expected_seq=0) for n in range(16)])
        assert len([answer for answer in answers if not isinstance(answer, SequenceConflict)]) == 1
        assert len(stored(log, "s")) == 1

    def test_racing_handles_store_one_event_for_one_key(self, log: EventLog, opener: Opener) -> None:
        handles = [log, *(opener() for _ in range(3))]
        answers = race_all([partial(handles[n % 4].append, "s", notes("a")) for n in range(16)])
        assert len({(r.seq, r.event_id, r.persisted_at) for (r,) in answers}) == 1
        assert [r.persisted for (r,) in answers].count(True) == 1

    @needs(Capability.FEED)
    def test_a_follower_of_racing_handles_sees_every_event_exactly_once(self, log: EventLog, opener: Opener) -> None:
        handles = [opener() for _ in range(3)]
        with meanwhile(partial(follow, log)) as follower:
            race_all([partial(write, handles[number % 3], number, self.some(25)) for number in range(6)])
        check_complete(log, follower.result())

    @needs(Capability.DELETE)
    def test_a_stream_that_another_handle_deleted_is_gone(self, log: EventLog, opener: Opener) -> None:
        log.append("s", notes("a", "b"))
        opener().delete_stream("s")
        assert log.read("s") == []
        assert log.append("s", notes("a"))[0].seq == 1

    @needs(Capability.DELETE)
    def test_a_tombstone_that_another_handle_left_is_respected(self, log: EventLog, opener: Opener) -> None:
        log.append("s", notes("a", "b"))
        opener().delete_stream("s", tombstone=tombstone_of("s"))
        with pytest.raises(StreamDeleted):
            log.append("s", notes("c"))
        assert opener().tombstone("s") == tombstone_of("s")

    @needs(Capability.SNAPSHOTS)
    def test_another_handle_cannot_take_a_snapshot_backwards(self, log: EventLog, opener: Opener) -> None:
        log.append("s", numbered(3))
        log.save_snapshot("s", kept := snapshot(3))
        other = opener()
        other.save_snapshot("s", snapshot(2))
        assert [log.load_snapshot("s", "notes"), other.load_snapshot("s", "notes")] == [kept, kept]

    def test_closing_one_handle_leaves_the_other_open(self, log: EventLog, opener: Opener) -> None:
        opener().close()
        assert log.append("s", notes("a"))[0].seq == 1

    # --- two processes ---------------------------------------------------------------------------------

    @pytest.mark.slow
    def test_processes_may_make_a_new_log_at_once(self, opener: Opener) -> None:
        tasks = [Task("s", 3, name=f"w{number}") for number in range(6)]
        check_stored(opener(), tasks, run(opener, tasks))

    @pytest.mark.slow
    def test_two_processes_of_eight_threads_lose_nothing(self, opener: Opener) -> None:
        tasks = [Task("s", self.some(50), name=name, threads=8) for name in ("one", "two")]
        told = run(opener, tasks)
        log = opener()
        check_stored(log, tasks, told)
        assert sorted(told.values()) == list(range(1, len(stored(log, "s")) + 1))
        assert len(told) == sum(len(batch) for task in tasks for thread in range(8) for batch in task.sent(thread))
        assert findings(log) == []

    @pytest.mark.slow
    def test_two_processes_that_send_the_same_keys_store_each_once(self, opener: Opener) -> None:
        task = Task("s", self.some(50), threads=4)
        told = run(opener, [task, task])
        log = opener()
        check_stored(log, [task], told)
        assert len(stored(log, "s")) == len(told)

    @pytest.mark.slow
    @needs(Capability.FEED)
    def test_a_follower_of_two_processes_sees_every_event_exactly_once(self, log: EventLog, opener: Opener) -> None:
        with meanwhile(partial(follow, log)) as follower:
            run(opener, [Task(name, self.some(60), name=name, threads=4) for name in ("s", "t")])
        check_complete(log, follower.result())

    @pytest.mark.slow
    @needs(Capability.DELETE)
    def test_a_checked_deletion_that_races_another_process_loses_nothing_acknowledged(
        self, log: EventLog, opener: Opener
    ) -> None:
        log.append("s", notes("first"))
        with pytest.raises(SequenceConflict):
            log.delete_stream("s", expected_seq=0)
        with Worker(opener.url) as worker, meanwhile(partial(delete_again_and_again, log, "s")) as deleter:
            worker.start(Task("s", self.some(150), threads=2))
            told = worker.finish()
        kept = deleter.result() + keys(stored(log, "s"))
        assert sorted(kept) == sorted(["first", *told])

    @pytest.mark.slow
    def test_a_killed_process_holds_up_no_other(self, opener: Opener) -> None:
        lasting = Task("s", self.some(150), name="lasting", threads=2)
        doomed = [Task("s", 100_000, name=f"doomed-{number}", threads=2) for number in range(self.some(10))]
        told: Acknowledged = {}
        with Worker(opener.url) as first, Worker(opener.url) as second:
            first.start(lasting)
            for task in doomed:
                second.start(task)
                told |= second.kill(after_acknowledged=3, pause_s=0)
            told |= first.finish()
        log = opener()
        check_stored(log, [lasting, *doomed], told)
        assert findings(log) == []


def run(opener: Opener, tasks: list[Task]) -> Acknowledged:
    """Run every task in a process of its own, all at once.

    Raises:
        AssertionError: a process failed, or two were told different seqs for one key.
    """
    told: Acknowledged = {}
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(opener.url)) for _ in tasks]
        for worker, task in zip(workers, tasks, strict=True):
            worker.start(task)
        for worker in workers:
            heard = worker.finish()
            assert {key: seq for key, seq in heard.items() if told.get(key, seq) != seq} == {}
            told |= heard
    return told
