"""The JSON Schemas are the authority: the typed decoder takes exactly the documents that they take.

Documents come from both sides: typed events that are written down, and documents that are made from the schema
files themselves, every rule of every property kept, met at its edge, and broken.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import runstate
from runstate.contracts import RunStateStoreV1, RunStateStoreV2
from runstate.errors import InvalidEvent, InvalidJson, InvalidStream
from runstate.models.canonical import parse
from runstate.models.engine import ENGINE, CanonicalEngineEvent, RunEventRecord, RunEventWrite
from runstate.models.engine.events import check, from_members, members_json
from runstate.models.model import check_stream

Json = dict[str, Any]
Schemas = Callable[[str], Json]

kinds: dict[str, Any] = {
    "engine.event.v1": CanonicalEngineEvent,
    "engine.event.v2.write": RunEventWrite,
    "engine.event.v2.record": RunEventRecord,
}
every_schema = [*kinds, "engine.append-result.v1", "engine.append-result.v2", "engine.snapshot"]


def decoder_takes(name: str, document: Any) -> bool:
    try:
        # Written and parsed first, as every document from outside is.
        from_members(kinds[name], parse(msgspec.json.encode(document)))
    except (InvalidEvent, InvalidStream, InvalidJson):
        return False
    return True


def schema_takes(schema: Json) -> Callable[[Any], bool]:
    return jsonschema_rs.Draft202012Validator(schema).is_valid


# --- the files themselves --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", every_schema)
def test_a_schema_is_valid_and_names_itself(name: str, schemas: Schemas) -> None:
    schema = schemas(name)
    jsonschema_rs.meta.validate(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"https://runstate.dev/schemas/{name}.schema.json"


@pytest.mark.parametrize("name", every_schema)
def test_every_property_and_definition_is_described(name: str, schemas: Schemas) -> None:
    schema = schemas(name)
    described = [schema, *schema["properties"].values(), *schema["$defs"].values()]
    for definition in schema["$defs"].values():
        described += definition.get("properties", {}).values()
    assert schema["title"]
    assert all(node.get("description", "").endswith(".") for node in described)


@pytest.mark.parametrize("name", every_schema)
def test_every_pattern_is_anchored_at_both_ends(name: str, schemas: Schemas) -> None:
    patterns = [node["pattern"] for node in schemas(name)["$defs"].values() if "pattern" in node]
    assert all(pattern.startswith("^") and pattern.endswith("$") for pattern in patterns)


# --- from the schemas: every property, one at a time -----------------------------------------------------

wrong_types = [None, True, False, 0, 1, -1, 1.0, 0.0, -0.0, 1.5, 1e3, 1e300, "", "a", "1", [], ["a"], {}, {"a": 1}]
integers = [0, 1, 2, -1, 2**53 - 1, 2**53 - 2, 9007199254740992.0, -9007199254740992.0, 1.0, 2.0, 0.5, 1e15, 1e16, "1"]
spoilers = [
    "\n",
    " ",
    "\0",
    "\t",
    "\r\n",
    "\u2028",
    "\u00a0",
    "|",
    "/",
    "\\",
    "\x7f",
    "\x80",
    "é",
    "\U0001f600",
    "0",
    "Z",
]
texts = ["x", "RUN", "ß", "e\u0301", "\U0001f600", " ", "\n", "a\nb", "\u2028", "\0", "|", "a|b", "a/b", "a\\b"]
texts += [".", "..", "...", ". ", "a.", "\x1f", "\x7f", "\x80", "0", "RunStarted", "StepStarted"]
uuids = ["123e4567-e89b-42d3-a456-426614174000", "123E4567-E89B-42D3-B456-426614174000"]
uuids += ["123e4567-e89b-12d3-a456-426614174000", "123e4567-e89b-42d3-c456-426614174000"]
uuids += ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"]
uuids += [
    "123e4567e89b42d3a456426614174000",
    "{123e4567-e89b-42d3-a456-426614174000}",
    "g23e4567-e89b-42d3-a456-426614174000",
]
uuids += ["urn:uuid:123e4567-e89b-42d3-a456-426614174000", "123e4567-e89b-42d3-a456-42661417400"]
uuids += ["123e4567-e89b-42d3-8456-4266141740000", "१23e4567-e89b-42d3-8456-426614174000"]
days = ["2026-11-15", "2026-02-28", "2026-02-29", "2024-02-29", "2000-02-29", "1900-02-29", "2100-02-29", "0000-02-29"]
days += ["2400-02-29", "2096-02-29", "2026-01-31", "2026-03-31", "2026-04-30", "2026-04-31", "2026-06-31", "2026-09-31"]
days += ["2026-11-31", "2026-12-31", "2026-12-32", "2026-00-10", "2026-13-10", "2026-10-00", "0000-01-01", "9999-12-31"]
days += ["2026-1-1", "26-01-01", "12026-01-01", "2026/01/01", "२०२६-01-01", "-001-01-01"]
clocks = [
    "T09:30:00",
    "T00:00:00",
    "T23:59:59",
    "T24:00:00",
    "T23:60:00",
    "T23:59:60",
    "T9:30:00",
    "T09:30",
    "t09:30:00",
]
clocks += [" 09:30:00", "T09:30:00.1", "T09:30:00.123456789", "T09:30:00.1234567890", "T09:30:00.", "T09:30:00,5", ""]
zones = [
    "Z",
    "+00:00",
    "-00:00",
    "+01:00",
    "-23:59",
    "+24:00",
    "+23:60",
    "z",
    "",
    "+0100",
    "+01",
    " Z",
    "UTC",
    "Z\n",
    "Z ",
]
times = [f"{day}T09:30:00Z" for day in days] + [f"2026-11-15{clock}Z" for clock in clocks]
times += [f"2026-11-15T09:30:00{zone}" for zone in zones]
counters = ["0", "1", "9", "10", "01", "00", "+1", "-1", "1.0", "1e3", " 1", "1 ", "1\n", "१", "9" * 15, "9" * 16, ""]
types = [
    "RunQueued",
    "RunStarted",
    "RunCancelled",
    "StepStarted",
    "StepSkipped",
    "SignalAccepted",
    "StepCorrected",
    "runstarted",
]


def resolved(schema: Json, node: Json) -> Json:
    """A property's rules, those of the definition that it refers to among them."""
    if "$ref" not in node:
        return node
    definition: Json = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return definition | {k: v for k, v in node.items() if k not in ("$ref", "description")}


def values_for(rules: Json) -> Iterator[Any]:
    """Values that keep, just keep, just break and break the rules of one property."""
    yield from wrong_types
    if rules.get("type") == "integer":
        yield from integers
        yield from (rules["minimum"] - 1, rules["minimum"], rules["maximum"], rules["maximum"] + 1)
    if rules.get("type") == "string":
        strings = [*texts, *uuids, *times, *counters, *types]
        yield from strings
        yield from (text + spoiler for text in (uuids[0], times[0], "1", "a") for spoiler in spoilers)
        yield from (spoiler + text for text in (uuids[0], times[0], "1", "a") for spoiler in spoilers)
        for length in (255, 256, 257, 511, 512, 513):
            yield "x" * length
            yield "x" * (length - 1) + "\n"
        yield from ("é" * 100, "\U0001f600" * 50)
        # Longer than 512 bytes, so not for a run id, whose limit counts bytes: see the test about it.
        yield from () if rules.get("maxLength") == 512 else ("é" * 257, "\U0001f600" * 256, "\U0001f600" * 257)
    if rules.get("type") == "object":
        yield from ({"a": {"b": [None]}}, {"": ""}, {"eventData": 1})


def a_valid_value(schema: Json, node: Json) -> Any:
    rules = resolved(schema, node)
    fits = schema_takes({"$defs": schema["$defs"], **node})
    candidates = (value for value in values_for(rules) if value not in (None, "") and fits(value))
    return next(candidates, None)


def a_valid_document(schema: Json, event_type: str) -> Json:
    """A document with every member that it may have."""
    document = {n: a_valid_value(schema, node) for n, node in schema["properties"].items() if node.get("not") != {}}
    document["eventType"] = event_type
    if event_type.startswith("Run"):
        del document["stepId"]
    return document


def single_changes(schema: Json) -> Iterator[Json]:
    """Documents that differ from a valid one in one member: each value of each, each left out, new ones added."""
    for event_type in types:
        whole = a_valid_document(schema, event_type)
        yield whole
        yield {n: v for n, v in whole.items() if n in schema["required"] or n == "stepId"}
        for name, node in schema["properties"].items():
            yield {n: v for n, v in whole.items() if n != name}
            if event_type in ("RunStarted", "StepCorrected") or name in ("stepId", "eventType"):
                for value in values_for(resolved(schema, node)):
                    yield whole | {name: value}
        for unknown in ("unknown", "extra", "", "event_id", "RunId", "run_seq", "eventid", "payload", "é|"):
            for value in (None, 1, {}, {"runSeq": 1}):
                yield whole | {unknown: value}


def disagreements(name: str, schema: Json) -> list[Json]:
    takes = schema_takes(schema)
    return [document for document in single_changes(schema) if takes(document) != decoder_takes(name, document)]


@pytest.mark.parametrize("name", kinds)
def test_schema_and_decoder_agree_on_every_change_of_one_member(name: str, schemas: Schemas) -> None:
    assert disagreements(name, schemas(name)) == []


@pytest.mark.parametrize("name", kinds)
def test_the_documents_are_taken_and_refused_in_their_hundreds(name: str, schemas: Schemas) -> None:
    schema = schemas(name)
    takes = schema_takes(schema)
    verdicts = [takes(document) for document in single_changes(schema)]
    assert min(verdicts.count(True), verdicts.count(False)) > 100


def rules_in(schema: Json) -> list[tuple[str, ...]]:
    """The path of every rule that the schema lays down."""
    rules: list[tuple[str, ...]] = [("required", str(place)) for place in range(len(schema["required"]))]
    rules += [("allOf", str(place)) for place in range(len(schema["allOf"]))]
    for name, node in schema["properties"].items():
        rules += [("properties", name, keyword) for keyword in node if keyword != "description"]
    for name, node in schema["$defs"].items():
        rules += [("$defs", name, keyword) for keyword in node if keyword != "description"]
    return rules


def without(schema: Json, path: tuple[str, ...]) -> Json:
    looser: Any = copy.deepcopy(schema)
    node = looser
    for part in path[:-1]:
        node = node[part]
    del node[int(path[-1]) if isinstance(node, list) else path[-1]]
    return dict(looser)


@pytest.mark.parametrize("name", kinds)
def test_no_rule_can_be_left_out_of_a_schema_unnoticed(name: str, schemas: Schemas) -> None:
    schema = schemas(name)
    # Made once, from the whole schema: documents that were made from a looser one could miss what it lacks.
    documents = list(single_changes(schema))
    verdicts = [decoder_takes(name, document) for document in documents]
    for rule in rules_in(schema):
        looser = schema_takes(without(schema, rule))
        assert any(looser(d) != verdict for d, verdict in zip(documents, verdicts, strict=True)), rule


# --- from the schemas: many members at once --------------------------------------------------------------


def drawn_value(schema: Json, node: Json) -> st.SearchStrategy[Any]:
    rules = resolved(schema, node)
    choices: list[st.SearchStrategy[Any]] = [st.sampled_from(list(values_for(rules)))]
    if "pattern" in rules:
        # Python's `$` also matches before a last newline, so that some of these are wrong by just that.
        matching = st.from_regex(re.compile(rules["pattern"])).filter(encodable)
        choices += [matching, st.builds(spoiled, matching, st.integers(0, 99), st.sampled_from(spoilers))]
    if rules.get("type") == "integer":
        choices.append(st.integers(-3, 2**53 - 1) | st.floats(-1e17, 1e17))
    return st.one_of(choices).filter(within_512_bytes if node.get("$ref") == "#/$defs/runId" else lambda _: True)


def encodable(text: str) -> bool:
    return not re.search("[\ud800-\udfff]", text)


def within_512_bytes(value: Any) -> bool:
    return not isinstance(value, str) or len(value.encode()) <= 512 or len(value) > 512


def spoiled(text: str, place: int, spoiler: str) -> str:
    at = place % (len(text) + 1)
    return text[:at] + spoiler + text[at + place % 2 :]


@pytest.mark.parametrize("name", kinds)
def test_schema_and_decoder_agree_on_random_documents(name: str, schemas: Schemas) -> None:
    schema = schemas(name)
    takes = schema_takes(schema)
    wholes = [a_valid_document(schema, event_type) for event_type in types]
    drawn = {member: drawn_value(schema, node) for member, node in schema["properties"].items()}

    @given(st.data())
    @settings(max_examples=80, deadline=None)
    def agree(data: st.DataObject) -> None:
        document = dict(data.draw(st.sampled_from(wholes)))
        for member in data.draw(st.lists(st.sampled_from(sorted(drawn)), max_size=3, unique=True)):
            document[member] = data.draw(drawn[member])
        for member in data.draw(st.lists(st.sampled_from(sorted(drawn)), max_size=1)):
            document.pop(member, None)
        assert takes(document) == decoder_takes(name, document)

    agree()


@pytest.mark.parametrize("name", kinds)
@pytest.mark.parametrize("document", [None, [], "event", 1, True, {}], ids=repr)
def test_what_is_no_event_object_is_refused_by_both(name: str, document: Any, schemas: Schemas) -> None:
    assert not schema_takes(schemas(name))(document)
    assert not decoder_takes(name, document)


def test_the_decoder_alone_counts_the_bytes_of_a_run_id(schemas: Schemas, write: Callable[..., RunEventWrite]) -> None:
    """The one known difference: JSON Schema cannot count bytes. The decoder is the stricter one, never the looser."""
    for run, characters, in_bytes in (("é" * 256, True, True), ("é" * 257, True, False), ("é" * 513, False, False)):
        document = msgspec.json.decode(members_json(write(run=run)))
        assert schema_takes(schemas("engine.event.v2.write"))(document) is characters
        assert decoder_takes("engine.event.v2.write", document) is in_bytes


# --- from the typed side ---------------------------------------------------------------------------------

characters = st.characters(exclude_categories=["Cs"])
text = st.text(characters, min_size=1, max_size=12) | st.just("x" * 256)
key_field = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="|"), min_size=1, max_size=12)


def is_stream(value: str) -> bool:
    try:
        check_stream(value)
    except InvalidStream:
        return False
    return True


run_id = key_field.filter(is_stream) | st.just("é" * 256) | st.sampled_from(["..", "a/b"])
moment = (
    st.datetimes()
    .map(lambda at: f"{at:%H:%M:%S}")
    .flatmap(lambda clock: st.dates().map(lambda day: f"{day.isoformat()}T{clock}"))
)
utc = st.builds(
    lambda at, fraction, zone: at + fraction + zone,
    moment,
    st.sampled_from(["", ".5", ".123456789"]),
    st.sampled_from(["Z", "z", "+00:00", "-00:00"]),
)
zoned = utc | st.builds(lambda at, zone: at + zone, moment, st.sampled_from(["+05:30", "-11:00", "-00:00"]))
uuid4 = st.uuids(version=4).map(str)
counts = st.integers(1, 2**53 - 1)
unset = st.just(msgspec.UNSET)
levels = st.sampled_from(
    [("RunStarted", False), ("StepFailed", True), ("SignalAccepted", False), ("StepCorrected", True)]
)
unknown_members = st.dictionaries(
    st.sampled_from(["extra", "", "zzz", "später"]), st.integers().filter(lambda n: abs(n) < 2**53), max_size=2
)


@st.composite
def events(draw: st.DrawFn, kind: Any, json_values: st.SearchStrategy[Any]) -> Any:
    event_type, of_step = draw(levels)
    step = draw(key_field) if of_step else msgspec.UNSET
    shared: Json = {
        "event_type": event_type,
        "run_id": draw(run_id),
        "idempotency_key": draw(text),
        "step_id": step,
        "extra": draw(unknown_members),
    }
    if kind is CanonicalEngineEvent:
        return kind(
            event_id=str(draw(st.uuids())).upper(),
            event_data=draw(json_values),
            emitted_at=draw(zoned),
            run_seq=draw(unset | st.just(0) | counts),
            persisted_at=draw(unset | zoned),
            engine_attempt_id=draw(unset | st.integers(1, 10**15 - 1).map(str)),
            logical_attempt_id=draw(unset | st.integers(1, 10**15 - 1).map(str)),
            adapter_version=draw(unset | text),
            engine_run_ref=draw(unset | json_values),
            caused_by_signal_id=draw(unset | uuid4),
            parent_event_id=draw(unset | uuid4),
            **shared,
        )
    if kind is RunEventRecord:
        shared |= {"run_seq": draw(counts), "persisted_at": draw(utc)}
    return kind(
        event_id=draw(uuid4),
        emitted_at=draw(utc),
        tenant_id=draw(text),
        project_id=draw(text),
        environment_id=draw(text),
        plan_id=draw(key_field),
        plan_version=draw(key_field),
        engine_attempt_id=draw(st.integers(1, 10**15 - 1)),
        logical_attempt_id=draw(st.integers(1, 10**15 - 1)),
        payload=draw(unset | st.dictionaries(text, json_values, max_size=2)),
        **shared,
    )


@pytest.mark.parametrize("name", kinds)
def test_a_typed_event_is_written_as_its_schema_says(
    name: str, schemas: Schemas, json_values: st.SearchStrategy[Any]
) -> None:
    validator = jsonschema_rs.Draft202012Validator(schemas(name))

    @given(events(kinds[name], json_values))
    @settings(max_examples=50, deadline=None)
    def valid(event: Any) -> None:
        check(event)
        validator.validate(parse(members_json(event)))

    valid()


@pytest.mark.parametrize("name", kinds)
def test_a_typed_event_comes_back_as_it_was_written(
    name: str, schemas: Schemas, json_values: st.SearchStrategy[Any]
) -> None:
    @given(events(kinds[name], json_values))
    @settings(max_examples=40, deadline=None)
    def comes_back(event: Any) -> None:
        assert from_members(kinds[name], parse(members_json(event))) == event

    comes_back()


@pytest.mark.parametrize("field", ["run_id", "tenant_id", "plan_id", "idempotency_key", "step_id", "event_type"])
def test_a_typed_event_with_a_lone_surrogate_is_refused(field: str, write: Callable[..., RunEventWrite]) -> None:
    event = write("StepCorrected", "extract")
    setattr(event, field, "a\ud800")
    with pytest.raises((InvalidEvent, InvalidStream, InvalidJson)):
        ENGINE.draft(event)


@pytest.mark.parametrize(
    ("field", "wire", "value"),
    [
        ("event_id", "eventId", 5),
        ("engine_attempt_id", "engineAttemptId", "1"),
        ("logical_attempt_id", "logicalAttemptId", True),
        ("payload", "payload", []),
        ("run_id", "runId", None),
        ("tenant_id", "tenantId", msgspec.UNSET),
    ],
)
def test_a_struct_filled_with_the_wrong_type_is_refused_by_name(
    field: str, wire: str, value: Any, write: Callable[..., RunEventWrite]
) -> None:
    event = write()
    setattr(event, field, value)
    with pytest.raises(InvalidEvent, match=wire):
        ENGINE.draft(event)


@pytest.mark.parametrize("depth", range(97, 103))
def test_a_typed_payload_is_as_deep_as_a_parsed_one_may_be(depth: int, write: Callable[..., RunEventWrite]) -> None:
    nested: Any = {}
    for _ in range(depth - 2):
        nested = {"a": nested}
    event = write(payload=nested)  # The event itself is one level more.
    try:
        check(event)
    except InvalidJson:
        with pytest.raises(InvalidJson):
            parse(members_json(event))
    else:
        parse(members_json(event))


@pytest.mark.parametrize("clash", ["runId", "eventType", "runSeq", "persistedAt"])
def test_a_member_with_a_field_of_its_own_may_not_stand_in_extra(
    clash: str, write: Callable[..., RunEventWrite]
) -> None:
    with pytest.raises(InvalidEvent, match=clash):
        ENGINE.draft(write(extra={clash: 1}))


def test_an_event_of_v1_with_a_tenant_is_refused_rather_than_stored_unreadable(
    v1: Callable[..., CanonicalEngineEvent],
) -> None:
    with pytest.raises(InvalidEvent, match="tenantId"):
        ENGINE.draft(v1(extra={"tenantId": "acme"}))


# --- snapshots and results -------------------------------------------------------------------------------


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_the_snapshot_of_any_history_is_as_its_schema_says(
    data: st.DataObject, schemas: Schemas, histories: st.SearchStrategy[list[bytes]]
) -> None:
    lines = data.draw(histories)
    snapshot = msgspec.json.decode(ENGINE.dump(ENGINE.fold(ENGINE.initial("r-1"), lines)))
    jsonschema_rs.Draft202012Validator(schemas("engine.snapshot")).validate(snapshot)


def has_no_nul(event: object) -> bool:
    """No store takes a NUL in an event's envelope."""
    return b"\\u0000" not in msgspec.json.encode(event)


@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_every_answer_of_a_store_is_as_its_schema_says(
    data: st.DataObject, schemas: Schemas, json_values: st.SearchStrategy[Any]
) -> None:
    check_v1 = jsonschema_rs.Draft202012Validator(schemas("engine.append-result.v1")).validate
    check_v2 = jsonschema_rs.Draft202012Validator(schemas("engine.append-result.v2")).validate
    check_record = jsonschema_rs.Draft202012Validator(schemas("engine.event.v2.record")).validate
    check_event = jsonschema_rs.Draft202012Validator(schemas("engine.event.v1")).validate
    with runstate.open("memory:") as store:
        old, new = RunStateStoreV1(store), RunStateStoreV2(store)
        drawn = data.draw(st.lists(events(RunEventWrite, json_values).filter(has_no_nul), min_size=1, max_size=2))
        for event in (msgspec.structs.replace(each, tenant_id=drawn[0].tenant_id) for each in drawn):
            for _ in range(2):
                check_v2(msgspec.to_builtins(new.append_event(event)))
            for stored in new.fetch_events(event.run_id):
                check_record(parse(members_json(stored)))
        event = data.draw(events(CanonicalEngineEvent, json_values).filter(has_no_nul))
        for _ in range(2):
            check_v1(msgspec.to_builtins(old.append_event(event)))
        for seen in old.fetch_events(event.run_id):
            check_event(parse(members_json(seen)))


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("engine.append-result.v1", {"runSeq": 1, "idempotent": True, "persisted": True}),
        ("engine.append-result.v1", {"runSeq": 1, "idempotent": False, "persisted": False}),
        ("engine.append-result.v1", {"runSeq": 0, "idempotent": False, "persisted": True}),
        ("engine.append-result.v1", {"runSeq": 1, "idempotent": False}),
        ("engine.append-result.v2", {"runSeq": 1, "idempotent": False, "persisted": True}),
        ("engine.snapshot", {"runId": "r", "status": "PENDING"}),
    ],
)
def test_an_answer_that_breaks_the_contract_is_refused(name: str, document: Json, schemas: Schemas) -> None:
    assert not schema_takes(schemas(name))(document)


@pytest.mark.parametrize(
    "change",
    [{"status": "DONE"}, {"hash": "00"}, {"lastEventSeq": -1}, {"status": "FAILED"}, {"unknown": 1}, {"steps": {}}],
    ids=str,
)
def test_a_snapshot_that_no_fold_gives_is_refused(change: Json, schemas: Schemas) -> None:
    takes = schema_takes(schemas("engine.snapshot"))
    snapshot = msgspec.json.decode(ENGINE.dump(ENGINE.initial("r-1")))
    assert takes(snapshot)
    assert not takes(snapshot | change)
