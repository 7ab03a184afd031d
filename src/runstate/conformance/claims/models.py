"""Claims about the model of a stream: the first append records it, and events of another model are refused."""

from __future__ import annotations

from functools import partial

import pytest

from runstate.conformance.fixtures import LogKit, needs
from runstate.conformance.notes import as_held, keys, note, notes, stored
from runstate.conformance.threads import race
from runstate.errors import ModelMismatch
from runstate.logs.log import Capability, EventLog

hostile_names = ["ü \u2028", '","event":{', "a/../b:C.py", "x" * 300]


class ModelClaims(LogKit):
    """A log knows the model of each of its streams."""

    def test_the_first_append_records_the_model(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        log.append("t", [note("a", model="other"), note("b", model="other")])
        log.append("s", notes("b"))
        assert models(log) == {"s": "notes", "t": "other"}

    def test_any_name_of_a_model_is_recorded(self, log: EventLog) -> None:
        for number, model in enumerate(hostile_names):
            stream = f"s{number}"
            log.append(stream, [note("a", model=model)])
            assert models(log)[stream] == model
            assert log.append(stream, [note("b", model=model)])[0].seq == 2
            assert keys(stored(log, stream)) == ["a", "b"]
        assert list(log.verify()) == []

    def test_events_of_another_model_are_refused_and_nothing_is_written(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        before = (stored(log, "s"), log.stream("s"))
        for _ in range(3):
            with pytest.raises(ModelMismatch) as caught:
                log.append("s", [note("b", model="other"), note("c", model="other")])
            assert caught.value.details == {"stream": "s", "recorded": "notes", "given": "other"}
            assert all(repr(name) in str(caught.value) for name in ("s", "notes", "other"))
            assert (stored(log, "s"), log.stream("s")) == before
        assert log.append("s", notes("b"), expected_seq=1)[0].persisted

    def test_another_model_is_refused_whatever_the_keys_and_the_expected_seq(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        for expected_seq in (None, 0, 1, 2):
            for key in ("a", "new"):
                with pytest.raises(ModelMismatch):
                    log.append("s", [note(key, model="other")], expected_seq=expected_seq)
        assert keys(stored(log, "s")) == ["a"]

    def test_one_append_of_several_models_is_refused(self, log: EventLog) -> None:
        with pytest.raises(ModelMismatch):
            log.append("s", [note("a"), note("b", model="other")])
        assert (log.stream("s"), log.streams()) == (None, [])

    def test_racing_first_appends_of_two_models_let_one_model_through(self, log: EventLog) -> None:
        sent = [note(f"{model}{number}", model=model) for number in range(6) for model in ("one", "two")]
        answers = race([partial(log.append, "s", [draft]) for draft in sent])
        (model,) = models(log).values()
        refused = {draft.model for draft, answer in zip(sent, answers, strict=True) if isinstance(answer, Exception)}
        assert {type(answer) for answer in answers if isinstance(answer, Exception)} == {ModelMismatch}
        assert (refused, len(stored(log, "s"))) == ({"one", "two"} - {model}, 6)

    # --- streams that record none ----------------------------------------------------------------------

    def test_drafts_that_name_no_model_record_none_and_are_never_refused(self, log: EventLog) -> None:
        log.append("s", [note("a", model="")])
        assert models(log) == {"s": ""}
        log.append("t", notes("a"))
        assert log.append("t", [note("b", model="")])[0].seq == 2
        assert models(log)["t"] == "notes"

    def test_a_stream_that_records_none_accepts_any_model_and_never_records_one(self, log: EventLog) -> None:
        """A wrong one would be recorded for good."""
        log.append("s", [note("a", model="")])
        assert log.append("s", notes("b"))[0].seq == 2
        assert log.append("s", [note("c", model="other")])[0].seq == 3
        assert models(log) == {"s": ""}
        assert list(log.verify()) == []

    # --- copies, deletion ------------------------------------------------------------------------------

    @needs(Capability.ADOPT)
    def test_adopted_records_bring_their_model(self, log: EventLog) -> None:
        log.adopt("s", held := as_held("s", notes("a", "b")), model="notes")
        log.adopt("t", as_held("t", notes("a")))
        assert models(log) == {"s": "notes", "t": ""}
        with pytest.raises(ModelMismatch):
            log.append("s", [note("c", model="other")])
        assert log.adopt("s", held, model="notes") == 0
        assert log.append("s", notes("c"))[0].seq == 3
        assert list(log.verify()) == []

    @needs(Capability.ADOPT)
    def test_records_of_another_model_are_not_adopted(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        before = stored(log, "s")
        with pytest.raises(ModelMismatch) as caught:
            log.adopt("s", [*before, *as_held("s", [note("b", model="other")], after_seq=1)], model="other")
        assert caught.value.details == {"stream": "s", "recorded": "notes", "given": "other"}
        assert (stored(log, "s"), models(log)) == (before, {"s": "notes"})

    @needs(Capability.DELETE)
    def test_a_stream_that_was_deleted_may_begin_again_with_another_model(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        log.delete_stream("s")
        assert log.append("s", [note("a", model="other")])[0].seq == 1
        assert models(log) == {"s": "other"}


def models(log: EventLog) -> dict[str, str]:
    """The model that each stream records, by every way to ask for it.

    Raises:
        AssertionError: two of them tell different things.
    """
    listed = {info.stream: info.model for info in log.streams()}
    for stream, model in listed.items():
        info = log.stream(stream)
        assert info is not None and info.model == model
    for versions in (True, False):
        told = {head.stream: head.model for head in log.heads(versions=versions) if head.model is not None}
        assert told.items() <= listed.items()
    return listed
