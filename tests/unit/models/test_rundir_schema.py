"""The schemas of run directories are the authority: events and snapshots are taken exactly where the schemas take them.

Documents are made from the schema files themselves, every rule of every member kept, met at its edge, and broken.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runstate.errors import InvalidEvent, InvalidJson, InvalidStream
from runstate.models.rundir import RUNDIR, RunEvent
from runstate.models.rundir.events import check, payload_types
from runstate.models.rundir.evolve import terminal_states

Json = dict[str, Any]
Schemas = Callable[[str], Json]
Path_ = tuple[Any, ...]


def takes(schema: Json) -> Callable[[Any], bool]:
    return jsonschema_rs.Draft202012Validator(schema).is_valid


def decoder_takes(document: Any) -> bool:
    """Whether a document is an event as a log stores it. Only a producer may leave `ts` out."""
    try:
        event = RUNDIR.parse(msgspec.json.encode(document))
    except (InvalidEvent, InvalidStream, InvalidJson):
        return False
    return event.ts is not msgspec.UNSET


def loader_takes(document: Any) -> bool:
    try:
        RUNDIR.load(msgspec.json.encode(document))
    except InvalidJson:
        return False
    return True


# --- the files themselves --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["event", "snapshot"])
def test_a_schema_is_valid_and_names_itself(name: str, schemas: Schemas) -> None:
    schema = schemas(name)
    jsonschema_rs.meta.validate(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"https://runstate.dev/schemas/{name}.schema.json"


@pytest.mark.parametrize("name", ["event", "snapshot"])
def test_every_property_and_definition_is_described(name: str, schemas: Schemas) -> None:
    schema = schemas(name)
    described = [schema, *schema["properties"].values(), *schema["$defs"].values()]
    for definition in schema["$defs"].values():
        described += definition.get("properties", {}).values()
    assert schema["title"]
    assert all(node.get("description", "").endswith(".") for node in described)


@pytest.mark.parametrize("name", ["event", "snapshot"])
def test_every_pattern_is_anchored_at_both_ends(name: str, schemas: Schemas) -> None:
    patterns = [node["pattern"] for node in schemas(name)["$defs"].values() if "pattern" in node]
    assert all(pattern.startswith("^") and pattern.endswith("$") for pattern in patterns)


def test_the_schema_types_the_payloads_that_change_the_snapshot_and_no_others(schemas: Schemas) -> None:
    typed = [rule["if"]["properties"]["type"]["const"] for rule in schemas("event")["allOf"]]
    assert typed == list(payload_types)


def test_both_schemas_mean_the_same_by_the_same_word(schemas: Schemas) -> None:
    first, second = schemas("event")["$defs"], schemas("snapshot")["$defs"]
    words = first.keys() & second.keys() - {"issue"}  # On file, nothing of an issue is left out.
    assert {word: first[word] for word in words} == {word: second[word] for word in words}
    assert first["issue"]["properties"] == second["issue"]["properties"]


# --- documents made from the schemas ---------------------------------------------------------------------

wrong_types = [None, True, False, 0, 1, -1, 1.5, 1e300, "", "a", [], ["a"], [1], {}, {"a": 1}]
digest = "0123456789abcdef" * 4
times = ["2026-11-15T09:30:00Z", "2026-11-15T09:30:00.123456789+05:30", "2024-02-29T23:59:59-00:00"]
bad_times = ["2026-02-29T09:30:00Z", "2026-11-31T09:30:00Z", "2026-11-15T24:00:00Z", "2026-11-15T09:30:60Z"]
bad_times += ["2026-11-15T09:30:00", "2026-11-15t09:30:00Z", "2026-11-15T09:30:00.1234567890Z", "2026-11-15"]
bad_times += ["2026-11-15T09:30:00Z\n", "2026-11-15T09:30:00+24:00", "२०२६-11-15T09:30:00Z", "0000-00-00T00:00:00Z"]
spans = [
    digest[:16],
    digest[:32],
    digest,
    digest[:15],
    digest[:17],
    digest[:31],
    digest[:33],
    digest[:63],
    digest + "0",
]
spans += [digest.upper(), "g" + digest[1:], digest + "\n", digest[:16] + "\n", digest[:32] + "\n", digest[:15] + "A"]
texts = [
    "x",
    " ",
    "\n",
    "a\nb",
    "\u2028",
    "\0",
    "a/b",
    "a\\b",
    ".",
    "..",
    "...",
    "\x1f",
    "\x7f",
    "é",
    "\U0001f600",
    "~",
    "!",
]
texts += ["x" * length for length in (64, 65, 128, 129, 199, 200, 201, 4096, 4097)]
texts += ["A" * 64, "A" * 65, "A_1", "1A", "_A", "A-B", "a1", "A\n", "Aé", "\U0001f600" * 50, "é" * 4096 + "é"]
words = [
    "OPEN",
    "RESOLVED",
    "open",
    "blocker",
    "error",
    "warn",
    "info",
    "warning",
    "finished",
    "failed",
    "skipped",
    "queued",
    "running",
]
integers = [0, 1, 2, -1, 1.0, 2.0, 0.5, 2**53 - 1, 2**53, 9007199254740992.0, "1"]


def is_run_id(rules: Json) -> bool:
    return rules.get("maxLength") == 200


def values_for(rules: Json) -> list[Any]:
    """Values that keep, just keep, just break and break the rules of one member."""
    values = [*wrong_types, *(integers if rules.get("type") == "integer" else [])]
    if rules.get("type") == "string":
        # JSON Schema cannot count bytes, so these stay below the limit of a run id or are far beyond it.
        values += [*times, *bad_times, *spans, *texts]
    if "enum" in rules or "const" in rules:
        values += [*words, 2]
    if rules.get("type") == "array":
        values += [["a", "b"], ["a", None], [["a"]], [""]]
    return values


def resolved(schema: Json, node: Json) -> Json:
    """A member's rules, those of the definition that it refers to among them, and of what it is beside null."""
    if "anyOf" in node:
        return resolved(schema, node["anyOf"][0])
    found: Json = schema["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
    return found


samples: Json = {
    "run_id": "r-1",
    "ts": times[0],
    "trace_id": digest[:32],
    "span_id": digest[:16],
    "parent_span_id": digest[:16],
    "prev_hash": digest,
    "event_hash": digest,
    "sha256": digest,
    "attempt": 1,
    "inputs": ["a"],
    "outputs": ["b"],
    "config": {"a": 1},
    "parameters": {},
    "severity": "error",
    "files": ["a.md"],
    "location": {"path": "a.md", "line": 3},
    "error": {"code": "E"},
}


def whole(schema: Json, node: Json) -> Any:
    """An object with every member that it may have."""
    made: Json = {}
    for name, member in resolved(schema, node)["properties"].items():
        rules = resolved(schema, member)
        if name == "status":
            made[name] = rules["enum"][0]
        elif "properties" in rules:
            made[name] = whole(schema, member)
        else:
            made[name] = samples.get(name, "x")
    return made


def whole_event(schema: Json, kind: str) -> Json:
    found = [
        rule["then"]["properties"]["payload"]
        for rule in schema["allOf"]
        if rule["if"]["properties"]["type"]["const"] == kind
    ]
    event: Json = {name: samples.get(name, "x") for name in schema["properties"]}
    return event | {"type": kind, "payload": whole(schema, found[0]) if found else {"any": [1]}}


def changed(document: Json, place: Path_, value: Any) -> Json:
    """The document with another value at a place."""
    if not place:
        return dict(value)
    made = copy.copy(document)
    made[place[0]] = changed(document[place[0]], place[1:], value) if len(place) > 1 else value
    return made


def changes_of(schema: Json, node: Json, document: Json, place: Path_ = ()) -> Iterator[Json]:
    """The document, with each member of the object at a place left out, given each value, and members added."""
    here: Any = document
    for part in place:
        here = here[part]
    for name, member in resolved(schema, node)["properties"].items():
        yield changed(document, place, {n: v for n, v in here.items() if n != name})
        rules = resolved(schema, member)
        for value in values_for(rules):
            yield changed(document, (*place, name), value)
        if "properties" in rules:
            yield from changes_of(schema, member, document, (*place, name))
    for unknown in ("unknown", "seq", "eventId", ""):
        yield changed(document, place, here | {unknown: 1})


opaque = ["GATE_RUN_STARTED", "LLM_CALL_FAILED", "SITE_PUBLISHED", *terminal_states]


def event_changes(schema: Json) -> Iterator[Json]:
    yield from changes_of(schema, schema, whole_event(schema, "SITE_PUBLISHED"))
    for kind in opaque:
        for payload in ({}, {"a": {"b": [None]}}, {"work_item_id": 7}, {"issue": None}, {"error": 1}):
            yield whole_event(schema, kind) | {"payload": payload}
    for rule in schema["allOf"]:
        event = whole_event(schema, rule["if"]["properties"]["type"]["const"])
        yield event
        yield event | {"payload": {}}
        yield from changes_of(schema, rule["then"]["properties"]["payload"], event, ("payload",))


def test_schema_and_decoder_agree_on_every_change_of_one_member(schemas: Schemas) -> None:
    schema = schemas("event")
    valid = takes(schema)
    assert [d for d in event_changes(schema) if valid(d) != decoder_takes(d)] == []


def test_the_events_are_taken_and_refused_in_their_hundreds(schemas: Schemas) -> None:
    schema = schemas("event")
    verdicts = list(map(takes(schema), event_changes(schema)))
    assert min(verdicts.count(True), verdicts.count(False)) > 300


def rules_in(node: Json, path: Path_ = ()) -> Iterator[Path_]:
    """The path of every rule that a schema lays down."""
    for keyword, value in node.items():
        here = (*path, keyword)
        if keyword in ("properties", "$defs"):
            for name, member in value.items():
                yield from rules_in(member, (*here, name))
        elif keyword in ("required", "allOf", "enum"):
            yield from ((*here, place) for place in range(len(value)))
        elif keyword not in ("description", "title", "$schema", "$id", "not"):
            yield here


def without(schema: Json, path: Path_) -> Json:
    looser = copy.deepcopy(schema)
    node: Any = looser
    for part in path[:-1]:
        node = node[part]
    del node[path[-1]]
    return looser


def unnoticed(schema: Json, judged: list[tuple[Any, bool]]) -> list[Path_]:
    """The rules without which the schema would judge each document as before."""
    found = []
    for rule in rules_in(schema):
        valid = takes(without(schema, rule))
        if all(valid(document) == verdict for document, verdict in judged):
            found.append(rule)
    return found


def test_no_rule_can_be_left_out_of_the_event_schema_unnoticed(schemas: Schemas) -> None:
    schema = schemas("event")
    judged = [(document, decoder_takes(document)) for document in (None, *event_changes(schema))]
    # The envelope says already that a payload is an object.
    payloads = {rule["then"]["properties"]["payload"]["$ref"].rpartition("/")[2] for rule in schema["allOf"]}
    assert set(unnoticed(schema, judged)) == {("$defs", name, "type") for name in payloads}


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_schema_and_decoder_agree_on_random_documents(
    data: st.DataObject, schemas: Schemas, json_values: st.SearchStrategy[Any]
) -> None:
    schema = schemas("event")
    event = whole_event(schema, data.draw(st.sampled_from([*payload_types, *opaque])))
    for name in data.draw(st.lists(st.sampled_from(sorted(event["payload"])), max_size=2)):
        event["payload"][name] = data.draw(json_values)
    for name in data.draw(st.lists(st.sampled_from(sorted(event)), max_size=1)):
        event[name] = data.draw(json_values)
    assert takes(schema)(event) == decoder_takes(event)


@pytest.mark.parametrize("document", [None, [], "event", 1, True, {}], ids=repr)
def test_what_is_no_event_object_is_refused_by_both(document: Any, schemas: Schemas) -> None:
    assert (takes(schemas("event"))(document), decoder_takes(document)) == (False, False)


def test_a_producer_may_leave_the_time_to_the_log(schemas: Schemas) -> None:
    event = whole_event(schemas("event"), "RUN_CREATED")
    del event["ts"]
    assert RUNDIR.parse(msgspec.json.encode(event)).ts is msgspec.UNSET


def test_the_decoder_alone_counts_the_bytes_of_a_run_id(schemas: Schemas) -> None:
    """JSON Schema cannot count bytes. The decoder is the stricter one, never the looser."""
    event = whole_event(schemas("event"), "RUN_CREATED")
    runs = ["é" * 100, "é" * 101, "é" * 201]
    assert [takes(schemas("event"))(event | {"run_id": run}) for run in runs] == [True, True, False]
    assert [decoder_takes(event | {"run_id": run}) for run in runs] == [True, False, False]


# --- from the typed side ---------------------------------------------------------------------------------


def event_of(**fields: Any) -> RunEvent:
    members = {"event_id": "e-1", "run_id": "r-1", "type": "SITE_PUBLISHED", "payload": {}}
    return RunEvent(**members | {"trace_id": digest[:32], "span_id": digest[:16]} | fields)


@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_a_typed_event_is_stored_as_its_schema_says(
    data: st.DataObject, schemas: Schemas, json_values: st.SearchStrategy[Any]
) -> None:
    payload = data.draw(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), json_values))
    event = event_of(payload=payload, ts=data.draw(st.sampled_from([msgspec.UNSET, *times])))
    _, draft = RUNDIR.draft(event)
    line = draft.render(1, "2026-11-15T09:30:00.000Z")
    jsonschema_rs.Draft202012Validator(schemas("event")).validate(json.loads(line))


@pytest.mark.parametrize("field", ["event_id", "run_id", "type", "payload", "trace_id", "span_id"])
@pytest.mark.parametrize("value", [msgspec.UNSET, None, 5, "a\ud800"], ids=repr)
def test_a_struct_filled_wrongly_is_refused_by_name(field: str, value: Any) -> None:
    event = event_of()
    setattr(event, field, value)
    with pytest.raises(
        (InvalidEvent, InvalidStream), match="stream" if field == "run_id" and value == "a\ud800" else field
    ):
        RUNDIR.draft(event)


@pytest.mark.parametrize("field", ["ts", "parent_span_id", "prev_hash", "event_hash"])
def test_what_is_optional_must_still_be_right(field: str) -> None:
    event = event_of()
    setattr(event, field, "wrong")
    with pytest.raises(InvalidEvent, match=field):
        RUNDIR.draft(event)


@pytest.mark.parametrize("value", [2**53, float("nan"), "\ud800", b"bytes", {1: 2}], ids=repr)
def test_a_payload_that_json_cannot_carry_is_refused(value: Any) -> None:
    with pytest.raises(InvalidJson):
        RUNDIR.draft(event_of(payload={"a": value}))


@pytest.mark.parametrize("depth", range(97, 103))
def test_a_typed_payload_is_as_deep_as_a_parsed_one_may_be(depth: int) -> None:
    payload: Any = {}
    for _ in range(depth - 2):
        payload = {"a": payload}
    event = event_of(payload=payload)  # The event itself is one level more.
    try:
        check(event)
    except InvalidJson:
        with pytest.raises(InvalidJson):
            RUNDIR.parse(msgspec.json.encode(event))
    else:
        RUNDIR.parse(msgspec.json.encode(event))


# --- snapshots -------------------------------------------------------------------------------------------


@pytest.fixture
def snapshot(golden: Path) -> Json:
    found: Json = json.loads((golden / "rundir_snapshot.json").read_bytes())
    return found


def snapshot_changes(schema: Json, document: Json) -> Iterator[Json]:
    def here(place: Path_, node: Json) -> Iterator[Json]:
        return changes_of(schema, node, document, place)

    yield document
    yield from here((), schema)
    yield from here(("artifacts_index", "index.html"), {"$ref": "#/$defs/artifact"})
    yield from here(("work_items", 0), {"$ref": "#/$defs/workItem"})
    yield from here(("issues", 0), {"$ref": "#/$defs/issue"})
    for name in ("", "x" * 4096, "x" * 4097):
        yield document | {"section_states": {name: "DONE"}}
        yield document | {"section_states": {"render": name}}
        yield document | {"artifacts_index": {name: document["artifacts_index"]["index.html"]}}


def written_alike(document: Any) -> bool:
    """Whether no integer is written as 1.0: a schema takes that for 1, and no snapshot is ever written so."""
    if isinstance(document, dict):
        return all(written_alike(v) for n, v in document.items() if n not in ("error", "location"))
    if isinstance(document, list):
        return all(written_alike(item) for item in document)
    return not (isinstance(document, float) and document.is_integer())


def test_schema_and_loader_agree_on_every_change_of_one_member(schemas: Schemas, snapshot: Json) -> None:
    schema = schemas("snapshot")
    valid = takes(schema)
    # A newer version is refused by an error of its own.
    documents = [d for d in snapshot_changes(schema, snapshot) if written_alike(d) and d.get("schema_version") != 2]
    assert [d for d in documents if valid(d) != loader_takes(d)] == []


def test_no_rule_can_be_left_out_of_the_snapshot_schema_unnoticed(schemas: Schemas, snapshot: Json) -> None:
    schema = schemas("snapshot")
    documents = [None, *(d for d in snapshot_changes(schema, snapshot) if d.get("schema_version") != 2)]
    judged = [(document, loader_takes(document)) for document in documents if written_alike(document)]
    assert unnoticed(schema, judged) == []


def test_a_snapshot_before_the_first_event_is_as_its_schema_says(schemas: Schemas) -> None:
    assert takes(schemas("snapshot"))(json.loads(RUNDIR.dump(RUNDIR.initial("r-1"))))
