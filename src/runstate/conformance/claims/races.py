"""Claims about many threads on one log: they share commits, and nobody can tell."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from runstate.conformance.claims.refusals import unwritable
from runstate.conformance.fixtures import LogKit
from runstate.conformance.notes import keys, note, notes, numbered, seqs, stored
from runstate.conformance.threads import meanwhile, race, race_all
from runstate.errors import SequenceConflict
from runstate.logs.log import AppendResult, EventLog, Record


class RaceClaims(LogKit):
    """Promises 1 to 3 under load, and 10 as far as it shows from outside."""

    def test_racing_appends_each_get_a_seq_of_their_own(self, log: EventLog) -> None:
        answers = race_all([partial(log.append, "s", numbered(5, prefix=f"{n}-")) for n in range(16)])
        told = {result.seq: result.event_id for results in answers for result in results}
        assert told == {record.seq: record.event_id for record in stored(log, "s")}
        assert sorted(told) == list(range(1, 81))

    def test_a_batch_stays_together_among_racing_batches(self, log: EventLog) -> None:
        for results in race_all([partial(log.append, "s", numbered(5, prefix=f"{n}-")) for n in range(16)]):
            assert [result.seq for result in results] == list(range(results[0].seq, results[0].seq + 5))

    def test_two_hundred_threads_lose_nothing(self, log: EventLog) -> None:
        race_all([partial(log.append, f"s{n % 5}", notes(f"k{n}")) for n in range(200)])
        found = [stored(log, f"s{n}") for n in range(5)]
        assert [seqs(records) for records in found] == [list(range(1, 41))] * 5
        assert {key for records in found for key in keys(records)} == {f"k{n}" for n in range(200)}

    def test_racing_on_one_key_stores_one_event_and_gives_equal_answers(self, log: EventLog) -> None:
        answers = race_all([partial(log.append, "s", [note("a", emitted_at=f"{n}")]) for n in range(32)])
        assert len(stored(log, "s")) == 1
        assert {(r.event_id, r.seq, r.persisted_at, r.mismatch) for (r,) in answers} == {
            (r.event_id, r.seq, r.persisted_at, False) for r in stored(log, "s")
        }
        assert sorted((r.persisted, r.idempotent) for (r,) in answers) == [(False, True)] * 31 + [(True, False)]

    def test_racing_on_one_expected_seq_lets_exactly_one_through(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        answers = race([partial(log.append, "s", notes(f"k{n}"), expected_seq=1) for n in range(32)])
        winners = [answer for answer in answers if not isinstance(answer, SequenceConflict)]
        assert len(winners) == 1
        assert len(stored(log, "s")) == 2

    def test_a_conflict_harms_no_append_beside_it(self, log: EventLog) -> None:
        right = [partial(log.append, "s", notes(f"r{n}")) for n in range(16)]
        wrong = [partial(log.append, "s", notes(f"w{n}"), expected_seq=10_000) for n in range(16)]
        known = [partial(log.append, "t", notes("same")) for n in range(16)]
        answers = race([*right, *wrong, *known])
        assert [isinstance(answer, SequenceConflict) for answer in answers] == [False] * 16 + [True] * 16 + [False] * 16
        assert sorted(keys(stored(log, "s"))) == sorted(f"r{n}" for n in range(16))
        assert keys(stored(log, "t")) == ["same"]

    def test_a_draft_that_cannot_be_written_harms_no_append_beside_it(self, log: EventLog) -> None:
        def break_(number: int) -> bool:
            try:
                log.append("s", [unwritable])
            except Exception:  # noqa: BLE001 - which error is the model's affair
                return False
            return True

        turns = self.some(20)

        def write(number: int) -> bool:
            return all(log.append("s", notes(f"{number}-{turn}"))[0].persisted for turn in range(turns))

        tasks: list[Callable[[], bool]] = [partial(write if n % 2 else break_, n) for n in range(16)]
        assert race_all(tasks) == [False, True] * 8
        assert len(stored(log, "s")) == 8 * turns

    def test_a_reader_beside_writers_always_sees_a_prefix(self, log: EventLog) -> None:
        def watch(is_over: Callable[[], bool]) -> list[list[Record]]:
            seen = [log.read("s")]
            while not is_over():
                seen.append(log.read("s"))
            return seen

        def write(number: int) -> list[list[AppendResult]]:
            return [
                log.append("s", numbered(1 + turn % 3, prefix=f"{number}-{turn}-")) for turn in range(self.some(20))
            ]

        with meanwhile(watch) as reader:
            race_all([partial(write, number) for number in range(4)])
        whole = stored(log, "s")
        for seen in reader.result():
            assert seen == whole[: len(seen)]

    def test_an_append_that_has_returned_can_be_read_by_everyone(self, log: EventLog) -> None:
        def write_and_read(number: int) -> bool:
            for turn in range(self.some(10)):
                (result,) = log.append("s", notes(f"{number}-{turn}"))
                if seqs(log.read("s", after_seq=result.seq - 1, limit=1)) != [result.seq]:
                    return False
            return True

        assert all(race_all([partial(write_and_read, number) for number in range(8)]))
