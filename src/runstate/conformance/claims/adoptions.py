"""Claims about adopting records of another log: they are kept as they are, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import msgspec
import pytest

from runstate.conformance.claims.appends import hostile_texts
from runstate.conformance.fixtures import LogKit, needs
from runstate.conformance.notes import as_held, followed, keys, note, notes, numbered, seqs, stored
from runstate.conformance.threads import race, race_all
from runstate.errors import SequenceConflict, Unsupported
from runstate.logs.log import Capability, EventLog, Record
from runstate.models.canonical import digest
from runstate.models.model import Draft

other_values: list[dict[str, Any]] = [
    {"event_id": "other"},
    {"type": "other"},
    {"key": "other"},
    {"tenant": "other"},
    {"emitted_at": "2000-01-01T00:00:00.000Z"},
    {"persisted_at": "2000-01-01T00:00:00.000Z"},
    {"body": b'{"other":true}'},
]


class LinkedNote(Draft, frozen=True, kw_only=True, gc=False):
    """A draft whose line holds the digest of the line before it."""

    chained: ClassVar[bool] = True

    def render(self, seq: int, persisted_at: str, previous: bytes | None = None) -> bytes:
        return b'%b,"before":"%b"}' % (super().render(seq, persisted_at)[:-1], digest(previous or b"").encode())


class AdoptionClaims(LogKit):
    """A copy is what it was copied from."""

    @needs(Capability.ADOPT)
    def test_adopted_records_keep_every_field_and_byte(self, log: EventLog) -> None:
        drafts = [note(f"k{n}", text, tenant=f"t-{n}", emitted_at="") for n, text in enumerate(hostile_texts)]
        held = as_held("s", drafts)
        assert log.adopt("s", held) == len(held)
        assert stored(log, "s") == held
        assert list(log.lines("s", after_seq=1)) == [record.body for record in held[1:]]
        assert [log.find("s", record.key) for record in held] == held
        assert list(log.verify()) == []

    @needs(Capability.ADOPT)
    def test_the_head_follows(self, log: EventLog) -> None:
        early = as_held(
            "s", [note("a", tenant="t-1"), note("b", tenant="t-2")], persisted_at="2020-01-01T00:00:00.000Z"
        )
        log.adopt("s", early)
        log.adopt("s", as_held("s", notes("c"), after_seq=2, persisted_at="2021-01-01T00:00:00.000Z"))
        info = log.stream("s")
        assert info is not None
        assert (info.tenant, info.last_seq, info.events) == ("t-1", 3, 3)
        assert (info.first_persisted_at, info.last_persisted_at) == (early[0].persisted_at, "2021-01-01T00:00:00.000Z")
        assert log.streams() == [info]

    @needs(Capability.ADOPT)
    def test_a_version_changes_with_what_is_adopted(self, log: EventLog) -> None:
        log.adopt("s", as_held("s", notes("a")))
        (before,) = log.heads()
        log.adopt("s", as_held("s", notes("a", "b")))
        (after,) = log.heads()
        assert after.version != before.version

    @needs(Capability.ADOPT)
    def test_what_is_adopted_twice_is_there_once(self, log: EventLog) -> None:
        held = as_held("s", numbered(5))
        assert [log.adopt("s", held), log.adopt("s", held), log.adopt("s", held[1:3])] == [5, 0, 0]
        assert stored(log, "s") == held

    @needs(Capability.ADOPT)
    def test_a_stretch_that_is_there_already_is_passed_over(self, log: EventLog) -> None:
        held = as_held("s", numbered(7))
        log.adopt("s", held[:3])
        assert log.adopt("s", held[1:]) == 4
        assert stored(log, "s") == held

    @needs(Capability.ADOPT)
    def test_nothing_adopted_makes_no_stream(self, log: EventLog) -> None:
        assert log.adopt("s", []) == 0
        assert log.stream("s") is None

    @needs(Capability.ADOPT)
    def test_one_call_may_adopt_thousands(self, log: EventLog) -> None:
        held = as_held("s", numbered(3000))
        assert log.adopt("s", held) == 3000
        assert stored(log, "s") == held

    # --- appending and adopting ------------------------------------------------------------------------

    @needs(Capability.ADOPT)
    def test_an_append_goes_on_after_adopted_records_and_knows_their_keys(self, log: EventLog) -> None:
        log.adopt("s", held := as_held("s", notes("a", "b")))
        again, new = log.append("s", [note("b", "other"), note("c")], expected_seq=2)
        assert (again.seq, again.event_id, again.persisted_at) == (2, held[1].event_id, held[1].persisted_at)
        assert (again.idempotent, again.persisted, again.mismatch) == (True, False, True)
        assert (new.seq, new.persisted) == (3, True)
        assert keys(stored(log, "s")) == ["a", "b", "c"]
        assert list(log.verify()) == []

    @needs(Capability.ADOPT)
    def test_adopted_records_may_follow_appended_ones(self, log: EventLog) -> None:
        log.append("s", notes("a", "b"))
        own = stored(log, "s")
        assert log.adopt("s", [*own, *as_held("s", notes("c"), after_seq=2)]) == 1
        assert keys(stored(log, "s")) == ["a", "b", "c"]
        assert list(log.verify()) == []

    @needs(Capability.ADOPT)
    def test_a_chain_goes_on_from_an_adopted_line(self, log: EventLog) -> None:
        log.adopt("s", as_held("s", notes("a")))
        log.append("s", [linked("b"), linked("c")])
        log.adopt("s", as_held("s", notes("d"), after_seq=3))
        log.append("s", [linked("e")])
        lines = list(log.lines("s"))
        befores = [msgspec.json.decode(line).get("before") for line in lines]
        assert befores == [None, digest(lines[0]), digest(lines[1]), None, digest(lines[3])]

    @needs(Capability.ADOPT, Capability.FEED)
    def test_the_feed_shows_adopted_records_as_if_appended_now(self, log: EventLog) -> None:
        log.adopt("s", first := as_held("s", numbered(3)))
        end = followed(log).next
        log.append("t", notes("x"))
        log.adopt("s", [*first, *as_held("s", notes("late"), after_seq=3)])
        assert keys(followed(log, end).records) == ["x", "late"]
        assert [record for record in followed(log).records if record.stream == "s"] == stored(log, "s")

    @needs(Capability.ADOPT, Capability.DELETE)
    def test_a_deleted_stream_can_be_adopted_again(self, log: EventLog) -> None:
        log.adopt("s", held := as_held("s", notes("a", "b")))
        log.delete_stream("s", expected_seq=2)
        assert log.adopt("s", held) == 2
        assert stored(log, "s") == held

    # --- what does not fit -----------------------------------------------------------------------------

    @needs(Capability.ADOPT)
    def test_a_record_that_differs_in_anything_is_a_conflict(self, log: EventLog) -> None:
        held = as_held("s", numbered(3))
        log.adopt("s", held)
        for other in other_values:
            changed = msgspec.structs.replace(held[1], **other)
            self._refuses(log, [held[0], changed, held[2], *as_held("s", notes("d"), after_seq=3)], seq=2)

    @needs(Capability.ADOPT)
    def test_a_key_that_stands_at_another_seq_is_a_conflict(self, log: EventLog) -> None:
        log.adopt("s", as_held("s", numbered(3)))
        for key in ("k1", "k3", "new"):
            self._refuses(log, as_held("s", [note("new"), note(key, "other")], after_seq=3), seq=5)

    @needs(Capability.ADOPT)
    def test_what_is_no_stretch_of_the_stream_is_refused(self, log: EventLog) -> None:
        log.adopt("s", held := as_held("s", notes("a", "b")))
        for bad in (
            as_held("other", notes("c"), after_seq=2),
            as_held("s", notes("c"), after_seq=-1),
            as_held("s", notes("c"), after_seq=2) * 2,
            as_held("s", notes("c", "d"), after_seq=2)[::-1],
        ):
            with pytest.raises(ValueError):
                log.adopt("s", bad)
        assert stored(log, "s") == held

    @needs(Capability.ADOPT)
    def test_a_gap_is_kept_or_refused_and_never_closed(self, log: EventLog) -> None:
        log.adopt("s", held := as_held("s", notes("a")))
        gapped = [*as_held("s", notes("b"), after_seq=3), *as_held("s", notes("c"), after_seq=6)]
        try:
            log.adopt("s", gapped)
        except Unsupported as error:
            assert "2 to 3" in str(error), "a refusal names the gap"
            assert stored(log, "s") == held
            assert log.append("s", notes("next"))[0].seq == 2
        else:
            assert stored(log, "s") == [*held, *gapped]
            assert log.adopt("s", [*held, *gapped]) == 0
            assert log.append("s", notes("next"), expected_seq=7)[0].seq == 8
            assert seqs(log.read("s", after_seq=1)) == seqs(log.read("s", after_seq=3, limit=9)) == [4, 7, 8]
            assert len(list(log.lines("s", after_seq=2, until_seq=7))) == 2
            self._refuses(log, as_held("s", notes("x"), after_seq=4), seq=5)
            info = log.stream("s")
            assert info is not None
            assert (info.last_seq, info.events) == (8, 4)
        assert list(log.verify()) == []

    # --- at once ---------------------------------------------------------------------------------------

    @needs(Capability.ADOPT)
    def test_racing_copies_adopt_each_record_once(self, log: EventLog) -> None:
        held = as_held("s", numbered(40))
        assert sum(race_all([partial(log.adopt, "s", held)] * 8)) == 40
        assert stored(log, "s") == held

    @needs(Capability.ADOPT)
    def test_an_adoption_that_races_appends_is_whole_or_not_there(self, log: EventLog) -> None:
        log.adopt("s", first := as_held("s", notes("a")))
        held = [*first, *as_held("s", numbered(20), after_seq=1)]
        tasks: list[Callable[[], object]] = [partial(log.append, "s", notes(f"n{n}")) for n in range(6)]
        *appended, _ = race([*tasks, lambda: log.adopt("s", held)])
        assert not any(isinstance(answer, Exception) for answer in appended)
        found = stored(log, "s")
        assert seqs(found) == list(range(1, len(found) + 1))
        assert (len(found), found[:21] == held) in {(7, False), (27, True)}
        assert list(log.verify()) == []

    @staticmethod
    def _refuses(log: EventLog, records: list[Record], *, seq: int) -> None:
        before = (stored(log, "s"), log.stream("s"))
        with pytest.raises(SequenceConflict) as caught:
            log.adopt("s", records)
        assert (caught.value.details["stream"], caught.value.details["seq"]) == ("s", seq)
        assert (stored(log, "s"), log.stream("s")) == before


def linked(key: str) -> Draft:
    plain = note(key)
    return LinkedNote(**{name: getattr(plain, name) for name in plain.__struct_fields__})
