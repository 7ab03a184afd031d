"""Envelopes: what a line says about itself, in either shape, for every model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from runstate.errors import InvalidEvent
from runstate.models.engine import ENGINE
from runstate.models.engine.events import members_json
from runstate.models.envelope import Envelope
from runstate.models.model import Model
from runstate.models.rundir import RUNDIR
from runstate.models.tagged import Fact, TaggedModel

at = "2026-11-15T09:30:00.500Z"


class Opened(msgspec.Struct, tag="opened", frozen=True):
    by: str = ""


class Doors(msgspec.Struct, frozen=True):
    opened: int = 0


class Door(TaggedModel[Opened, Doors]):
    name, version = "door", 1
    events, state = Opened, Doors

    def evolve(self, state: Doors, fact: Fact[Opened]) -> Doors:
        return Doors(state.opened + 1)


door = Door()
fact = b'{"stream":"d1","event":{"type":"opened","by":"me"},"key":"k1","tenant":"acme","emittedAt":"2026-11-15"}'
run_event = (
    b'{"event_id":"e1","run_id":"r1","ts":"2026-11-15T09:30:00.000Z","type":"NOTED","payload":{"b":1,"a":2.50},'
    b'"trace_id":"00000000000000000000000000000001","span_id":"0000000000000001"}'
)


def _stored(model: Model[Any, Any, Any], line: bytes) -> bytes:
    return model.draft(model.parse(line))[1].render(7, at, None)


def test_a_line_of_the_engine_as_a_producer_writes_it(write: Callable[..., Any]) -> None:
    event = write("StepStarted", "load", run="r-9")
    assert ENGINE.envelope(members_json(event)) == Envelope(
        "r-9", None, event.event_id, "StepStarted", event.idempotency_key, "acme", event.emitted_at, None
    )


def test_a_line_of_the_engine_as_a_log_stores_it(line: Callable[..., bytes], line_v1: Callable[..., bytes]) -> None:
    for stored, tenant in ((line(7), "acme"), (line_v1(7), "")):
        ENGINE.check_line(stored)
        said = ENGINE.envelope(stored)
        assert (said.seq, said.persisted_at, said.tenant, said.is_stored) == (7, at, tenant, True)


def test_a_place_may_be_written_like_any_number(line: Callable[..., bytes]) -> None:
    odd = line(7).replace(b'"runSeq":7,', b'"runSeq":7.0,')
    ENGINE.check_line(odd)
    assert ENGINE.envelope(odd) == ENGINE.envelope(line(7))


@pytest.mark.parametrize(
    "given", [{"run_seq": 7}, {"run_seq": 0}, {"persisted_at": at}, {"run_seq": 0, "persisted_at": at}]
)
def test_what_a_caller_of_v1_sends_is_no_place(v1: Callable[..., Any], given: dict[str, Any]) -> None:
    sent = members_json(v1(**given))
    ENGINE.check_line(sent)
    said = ENGINE.envelope(sent)
    assert (said.seq, said.persisted_at, said.is_stored) == (None, None, False)


def test_a_line_of_a_run_directory_tells_no_place() -> None:
    bare = Envelope("r1", None, "e1", "NOTED", "e1", "", "2026-11-15T09:30:00.000Z", None)
    assert RUNDIR.envelope(run_event) == bare
    stored = _stored(RUNDIR, run_event)
    RUNDIR.check_line(stored)
    assert RUNDIR.envelope(stored) == msgspec.structs.replace(bare, persisted_at=bare.emitted_at)
    without_time = run_event.replace(b'"ts":"2026-11-15T09:30:00.000Z",', b"")
    assert RUNDIR.envelope(without_time) == msgspec.structs.replace(bare, emitted_at="")


@pytest.mark.parametrize(
    ("said", "changed"), [(b'"b":1', b'"b":3'), (b'"NOTED"', b'"NOTEE"'), (b'"ts":"2026', b'"ts":"2027')]
)
def test_a_stored_line_of_a_run_directory_is_held_to_its_hash(said: bytes, changed: bytes) -> None:
    stored = _stored(RUNDIR, run_event)
    assert said in stored
    with pytest.raises(InvalidEvent, match="event_hash"):
        RUNDIR.check_line(stored.replace(said, changed))


def test_a_line_of_a_tagged_model_in_both_shapes() -> None:
    bare = Envelope("d1", None, Fact("d1", Opened(), "k1").event_id, "opened", "k1", "acme", "2026-11-15", None)
    door.check_line(fact)
    assert door.envelope(fact) == bare
    stored = _stored(door, fact)
    door.check_line(stored)
    assert door.envelope(stored) == msgspec.structs.replace(bare, seq=7, persisted_at=at)


@pytest.mark.parametrize(
    "part", [b'"seq":7,', b'"persistedAt":"2026",', b'"seq":-7,', b'"seq":-7,"persistedAt":"2026",']
)
def test_a_tagged_line_with_half_a_place_is_refused(part: bytes) -> None:
    with pytest.raises(InvalidEvent, match="assigned by the log"):
        door.check_line(b"{" + part + fact[1:])


def test_a_tagged_line_without_a_key_is_refused() -> None:
    with pytest.raises(InvalidEvent, match="key"):
        door.check_line(fact.replace(b'"k1"', b'""'))


def test_a_model_that_says_nothing_of_stored_lines_takes_every_line_for_a_producers() -> None:
    assert Model.envelope(RUNDIR, run_event) == RUNDIR.envelope(run_event)
