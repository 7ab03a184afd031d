"""A model of one's own, written in one short file, on every log that is installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import runstate
from runstate.errors import InvalidEvent, InvalidJson, InvalidStream
from runstate.models.canonical import canonical, parse
from runstate.models.registry import find_model
from runstate.models.tagged import Fact, TaggedModel

source = '''
"""A thermostat: what it was set to, what it measured, and whether it heats."""

import msgspec

from runstate import Fact, TaggedModel


class TargetSet(msgspec.Struct, tag="target_set", frozen=True):
    celsius: float


class Measured(msgspec.Struct, tag="measured", frozen=True):
    celsius: float
    sensor: str = "hall"


class State(msgspec.Struct, frozen=True):
    target: float = 20.0
    readings: dict[str, float] = {}
    heating: bool = False


class Thermostat(TaggedModel[TargetSet | Measured, State]):
    name, version = "thermostat", 1
    events, state = TargetSet | Measured, State

    def evolve(self, state: State, fact: Fact[TargetSet | Measured]) -> State:
        match fact.event:
            case TargetSet(celsius):
                state = msgspec.structs.replace(state, target=celsius)
            case Measured(celsius, sensor):
                state = msgspec.structs.replace(state, readings=state.readings | {sensor: celsius})
        return msgspec.structs.replace(state, heating=any(c < state.target for c in state.readings.values()))

    def status(self, state: State) -> str:
        return "heating" if state.heating else "idle"
'''


@pytest.fixture(scope="module")
def thermostat(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model's place, as a user names it."""
    path = tmp_path_factory.mktemp("models") / "thermostat.py"
    path.write_text(source)
    return f"{path}:Thermostat"


class Facts:
    """Makes facts of the model that stands in the file."""

    def __init__(self, place: str) -> None:
        self.model = find_model(place)
        self.module: Any = sys.modules[type(self.model).__module__]

    def target(self, celsius: float, key: str, **envelope: Any) -> Fact[Any]:
        return Fact(stream="home", event=self.module.TargetSet(celsius), key=key, **envelope)

    def measured(self, celsius: float, key: str, sensor: str = "hall", **envelope: Any) -> Fact[Any]:
        return Fact(stream="home", event=self.module.Measured(celsius, sensor), key=key, **envelope)


@pytest.fixture
def facts(thermostat: str) -> Facts:
    return Facts(thermostat)


@pytest.fixture
def opener(log_url: str, thermostat: str) -> Iterator[Callable[..., runstate.Store[Any, Any, Any]]]:
    opened: list[runstate.Store[Any, Any, Any]] = []

    def open_store(**options: Any) -> runstate.Store[Any, Any, Any]:
        opened.append(runstate.open(log_url, thermostat, **options))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


@pytest.fixture
def store(opener: Callable[..., runstate.Store[Any, Any, Any]]) -> runstate.Store[Any, Any, Any]:
    return opener()


def a_day(facts: Facts) -> list[Fact[Any]]:
    return [
        facts.target(21.5, "t1"),
        facts.measured(19, "m1"),
        facts.measured(22, "m2"),
        facts.measured(18, "m3", "attic"),
    ]


def test_facts_come_back_with_their_place_and_time(store: runstate.Store[Any, Any, Any], facts: Facts) -> None:
    sent = facts.measured(19.5, "m1", tenant="smith", emitted_at="2026-11-15T09:30:00Z")
    result = store.append_event(sent)
    (found,) = store.fetch_events("home")
    assert found == msgspec.structs.replace(sent, seq=1, persisted_at=result.persisted_at)


def test_the_snapshot_is_the_fold(store: runstate.Store[Any, Any, Any], facts: Facts) -> None:
    store.append_events(a_day(facts))
    kept: Any = store.get_snapshot("home")
    assert (kept.target, kept.readings, kept.heating) == (21.5, {"hall": 22.0, "attic": 18.0}, True)


def test_the_snapshot_on_file_is_what_a_replay_gives(store: runstate.Store[Any, Any, Any], facts: Facts) -> None:
    store.append_events(a_day(facts))
    stored = store.snapshots.stored("home")
    assert stored is not None
    assert stored.body == store.model.dump(store.project_snapshot("home")) == store.fresh_snapshot("home").body


def test_a_snapshot_of_any_place_can_be_had(store: runstate.Store[Any, Any, Any], facts: Facts) -> None:
    store.append_events(a_day(facts))
    heating = [store.snapshot_at("home", seq=seq).heating for seq in range(5)]
    assert heating == [False, False, True, False, True]


def test_a_diff_says_what_changed(store: runstate.Store[Any, Any, Any], facts: Facts) -> None:
    store.append_events(a_day(facts))
    changes = [(c.path, c.kind, c.before, c.after) for c in store.diff("home", from_seq=3, to_seq=4)]
    assert changes == [("/heating", "changed", False, True), ("/readings/attic", "added", None, 18)]


def test_the_same_key_again_changes_nothing(store: runstate.Store[Any, Any, Any], facts: Facts) -> None:
    first = store.append_event(facts.measured(19, "m1", emitted_at="2026-11-15T09:30:00Z"))
    again = store.append_event(facts.measured(19, "m1", emitted_at="2026-11-15T09:31:00Z"))
    assert (again.seq, again.persisted, again.mismatch) == (first.seq, False, False)


def test_another_measurement_under_the_same_key_is_told(
    opener: Callable[..., runstate.Store[Any, Any, Any]], facts: Facts
) -> None:
    raised: list[str] = []
    store = opener(on_alert=lambda alert: raised.append(alert.code))
    store.append_event(facts.measured(19, "m1"))
    store.append_event(facts.measured(20, "m1"))
    assert (raised, store.project_snapshot("home").readings) == (["IDEMPOTENCY_CONTENT_MISMATCH"], {"hall": 19.0})


def test_a_fact_that_was_read_can_be_appended_elsewhere(store: runstate.Store[Any, Any, Any], facts: Facts) -> None:
    store.append_events(a_day(facts))
    copied = msgspec.structs.replace(store.fetch_events("home")[2], stream="copy")
    store.append_event(copied)
    (record,) = store.log.read("copy")
    assert (parse(record.body)["seq"], store.fetch_events("copy")[0].seq) == (1, 1)


def test_a_line_of_json_becomes_the_same_fact(facts: Facts) -> None:
    line = b'{"stream":"home","key":"m1","event":{"type":"measured","celsius":19},"tenant":"smith"}'
    assert facts.model.parse(line) == facts.measured(19.0, "m1", tenant="smith")


@pytest.mark.parametrize(
    "line",
    [
        b'{"stream":"home","key":"m1","event":{"type":"exploded"}}',
        b'{"stream":"home","key":"m1","event":{"celsius":19}}',
        b'{"stream":"home","key":"m1","event":{"type":"measured","celsius":"warm"}}',
        b'{"stream":"home","event":{"type":"measured","celsius":19}}',
        b'{"stream":"home","key":"m1","event":{"type":"measured","celsius":19},"seq":4}',
        b'{"stream":"home","key":"m1","event":{"type":"measured","celsius":19},"persistedAt":"2026-11-15T09:30:00Z"}',
        b"[]",
    ],
)
def test_a_line_that_is_no_fact_is_refused(line: bytes, facts: Facts) -> None:
    with pytest.raises(InvalidEvent):
        facts.model.parse(line)


def test_a_line_that_is_no_json_is_refused(facts: Facts) -> None:
    with pytest.raises(InvalidJson):
        facts.model.parse(b'{"stream":"home","stream":"home"}')


@pytest.mark.parametrize(
    "change",
    [
        {"key": ""},
        {"key": "k" * 257},
        {"key": "\ud800"},
        {"tenant": "\ud800"},
        {"tenant": 5},
        {"emitted_at": None},
    ],
    ids=ascii,
)
def test_an_envelope_that_was_put_together_wrongly_is_refused(change: dict[str, Any], facts: Facts) -> None:
    with pytest.raises(InvalidEvent):
        facts.model.draft(msgspec.structs.replace(facts.measured(1, "k"), **change))


@pytest.mark.parametrize("celsius", [float("nan"), float("inf"), "warm", None, 2**53], ids=repr)
def test_a_value_that_json_cannot_carry_is_refused(celsius: Any, facts: Facts) -> None:
    with pytest.raises(InvalidEvent):
        facts.model.draft(facts.measured(celsius, "k"))


@pytest.mark.parametrize("stream", ["", "a\0", "a\nb", "x" * 513])
def test_a_stream_that_no_log_takes_is_refused(stream: str, facts: Facts) -> None:
    with pytest.raises(InvalidStream):
        facts.model.draft(msgspec.structs.replace(facts.measured(1, "k"), stream=stream))


def test_the_event_id_comes_from_stream_and_key(facts: Facts) -> None:
    a, b = facts.measured(1, "k"), facts.measured(2, "k")
    assert a.event_id == b.event_id != facts.measured(1, "other").event_id


def test_the_draft_carries_the_tag_as_its_type(facts: Facts) -> None:
    assert [facts.model.draft(fact)[1].type for fact in a_day(facts)] == [
        "target_set",
        "measured",
        "measured",
        "measured",
    ]


def test_the_status_is_the_models_own_word(store: runstate.Store[Any, Any, Any], facts: Facts) -> None:
    store.append_events(a_day(facts))
    assert store.model.status(store.project_snapshot("home")) == "heating"


@given(readings=st.lists(st.tuples(st.floats(-50, 1e300), st.sampled_from(["hall", "attic", "küche"])), max_size=8))
@settings(max_examples=30, deadline=None)
def test_a_state_is_dumped_as_it_was_loaded(readings: list[tuple[float, str]], thermostat: str) -> None:
    facts = Facts(thermostat)
    state = facts.model.initial("home")
    for number, (celsius, sensor) in enumerate(readings):
        state = facts.model.evolve(state, facts.measured(celsius, str(number), sensor))
    dumped = facts.model.dump(state)
    assert facts.model.dump(facts.model.load(dumped)) == dumped


@pytest.mark.parametrize("data", [b"", b"[]", b'{"target":"warm"}', b"\xff", b'{"target":1'])
def test_bytes_that_are_no_state_are_refused(data: bytes, facts: Facts) -> None:
    with pytest.raises(InvalidJson):
        facts.model.load(data)


# --- states of all shapes --------------------------------------------------------------------------------


class Tick(msgspec.Struct, tag="tick", frozen=True):
    note: Any = None


class Shapes(msgspec.Struct):
    names: set[str] = set()
    by_number: dict[int, str] = {}
    anything: Any = None


class ShapesModel(TaggedModel[Tick, Shapes]):
    name, version = "shapes", 1
    events, state = Tick, Shapes

    def evolve(self, state: Shapes, fact: Fact[Tick]) -> Shapes:
        return state


shapes = ShapesModel()


def test_a_set_is_dumped_in_one_order_on_every_machine() -> None:
    names = {f"name-{number}" for number in range(20)}
    assert json.loads(shapes.dump(Shapes(names=names)))["names"] == sorted(names)


def test_numbers_may_be_names_in_a_state() -> None:
    state = Shapes(by_number={2: "b", 10: "j"})
    assert shapes.load(shapes.dump(state)) == state


@pytest.mark.parametrize("value", [1e17, [1e20, 0.5], {"a": -1e18}, 2.0**68, 1e21, 0.5, 7], ids=repr)
def test_a_double_of_any_size_survives_in_a_state(value: Any) -> None:
    dumped = shapes.dump(Shapes(anything=value))
    assert (
        shapes.dump(shapes.load(dumped))
        == dumped
        == canonical({"anything": value, "byNumber": {}, "names": []}).replace(b"byNumber", b"by_number")
    )


def test_a_payload_is_as_deep_as_a_parsed_one_may_be() -> None:
    note: Any = []
    for _ in range(200):
        note = [note]
        fact = Fact(stream="s", event=Tick(note), key="k")
        try:
            _, draft = shapes.draft(fact)
        except InvalidEvent:
            break
        parse(draft.render(1, "2026-11-15T09:30:00Z"))
    else:
        pytest.fail("a note of 200 levels was taken")


def test_the_models_file_needs_no_more_than_a_screen() -> None:
    assert len(source.strip().split("\n")) < 50


def test_the_model_stands_in_a_file(thermostat: str) -> None:
    assert Path(thermostat.rpartition(":")[0]).is_file()


def test_a_model_that_names_no_version_has_version_1(tmp_path: Path) -> None:
    class Counted(msgspec.Struct, tag="counted", frozen=True):
        pass

    class Total(msgspec.Struct, frozen=True):
        count: int = 0

    class Counter(TaggedModel[Counted, Total]):
        name = "counter"
        events, state = Counted, Total

        def evolve(self, state: Total, fact: Fact[Counted]) -> Total:
            return Total(state.count + 1)

    with runstate.open(f"sqlite:{tmp_path}/log.db", Counter()) as store:
        store.append_event(Fact("s", Counted(), key="a"))
        assert store.rebuild_snapshot("s").version == 1


def test_what_is_no_event_at_all_is_refused_without_the_models_inside(tmp_path: Path) -> None:
    with runstate.open("memory:", "engine") as store, pytest.raises(InvalidEvent) as refused:
        store.append_event({"type": "RunStarted"})  # type: ignore[arg-type]
    assert "KeyError" not in str(refused.value)
    assert "store.model.parse(line)" in str(refused.value)
