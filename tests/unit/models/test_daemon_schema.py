"""The schemas of a daemon are the authority: events and states are taken exactly where the schemas take them.

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
from tests.unit.models.daemon_histories import histories

from runstate.errors import InvalidEvent, InvalidJson, InvalidStream
from runstate.models.daemon import DAEMON, event_types
from runstate.models.daemon.events import Custom, QueuePushed, StepStarted
from runstate.models.daemon.lines import encode

Json = dict[str, Any]
Schemas = Callable[[str], Json]
names = ["daemon.event", "daemon.snapshot"]


def takes(schema: Json) -> Callable[[Any], bool]:
    return jsonschema_rs.Draft202012Validator(schema).is_valid


def parser_takes(document: Any) -> bool:
    try:
        DAEMON.parse(msgspec.json.encode(document))
    except (InvalidEvent, InvalidStream, InvalidJson):
        return False
    return True


def loader_takes(document: Any) -> bool:
    try:
        DAEMON.load(msgspec.json.encode(document))
    except InvalidJson:
        return False
    return True


# --- the files themselves --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", names)
def test_a_schema_is_valid_and_names_itself(name: str, schemas: Schemas) -> None:
    schema = schemas(name)
    jsonschema_rs.meta.validate(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"https://runstate.dev/schemas/{name}.schema.json"


@pytest.mark.parametrize("name", names)
def test_every_property_and_definition_is_described(name: str, schemas: Schemas) -> None:
    schema = schemas(name)
    described = [schema, *schema.get("properties", {}).values(), *schema["$defs"].values()]
    for definition in schema["$defs"].values():
        described += definition.get("properties", {}).values()
    assert all(node.get("description", "").endswith(".") for node in described)


def test_every_tag_has_one_schema(schemas: Schemas) -> None:
    defs = schemas("daemon.event")["$defs"]
    tags = [defs[each["$ref"].rpartition("/")[2]]["properties"]["type"]["const"] for each in variants(schemas)]
    assert tags == [kind.__struct_config__.tag for kind in event_types]


def test_the_tags_of_the_tables_are_all_there() -> None:
    of_the_tables = [
        "pipeline:created",
        "pipeline:advanced",
        "pipeline:deleted",
        "pipeline:updated",
        "step:started",
        "step:waiting",
        "step:completed",
        "step:failed",
        "runbook:loaded",
        "session:created",
        "session:deleted",
        "workspace:created",
        "workspace:ready",
        "workspace:failed",
        "workspace:deleted",
        "agent:working",
        "agent:waiting",
        "agent:exited",
        "agent:failed",
        "agent:gone",
        "agent:signal",
        "shell:exited",
        "worker:started",
        "worker:item_dispatched",
        "worker:stopped",
        "queue:pushed",
        "queue:taken",
        "queue:completed",
        "queue:failed",
        "queue:item_retry",
        "queue:item_dead",
    ]
    signals = [
        "command:run",
        "timer:start",
        "session:input",
        "pipeline:resume",
        "pipeline:cancel",
        "workspace:drop",
        "shutdown",
        "custom",
        "worker:wake",
        "worker:poll_complete",
    ]
    assert sorted(str(kind.__struct_config__.tag) for kind in event_types) == sorted(of_the_tables + signals)


# --- documents made from the schemas ---------------------------------------------------------------------

values: list[Any] = [None, True, 0, 1, -1, 1.0, 1.5, 2**53 - 1, -(2**53) + 1, "", "a", "a/b", "é\u2028", "\n", "~"]
values += ["x" * length for length in (128, 129, 199, 200, 201, 4096, 4097)]
values += [".", "..", "a\\b", "\x1f", [], ["a"], [1], {}, {"a": 1}, {"": "a"}, {"a": "b"}, "pending", "ready", "dead"]
values += ["running", "waiting", "completed", "failed", "creating", "taken", [""], 9007199254740992.0]


def variants(schemas: Schemas) -> list[Json]:
    found: list[Json] = schemas("daemon.event")["oneOf"]
    return found


def resolved(schema: Json, node: Json) -> Json:
    if "anyOf" in node:
        return resolved(schema, node["anyOf"][0])
    found: Json = schema["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
    return found


def whole(schema: Json, node: Json) -> Any:
    """A value with every member that it may have."""
    rules = resolved(schema, node)
    if "const" in rules:
        return rules["const"]
    if "enum" in rules:
        return rules["enum"][0]
    kind = rules.get("type")
    if kind == "object" and "properties" in rules:
        return {name: whole(schema, member) for name, member in rules["properties"].items()}
    if kind == "object" and isinstance(rules.get("additionalProperties"), dict):
        return {"a": whole(schema, rules["additionalProperties"])}
    if kind == "array":
        return [whole(schema, rules["items"])] if "items" in rules else []
    return {"integer": 1, "object": {"a": 1}, None: {"any": [1]}}.get(kind if isinstance(kind, str) else "", "x")


def changes_of(schema: Json, node: Json, document: Any) -> Iterator[Any]:
    """The document, with each member at any depth left out, given each value, and members added."""
    rules = resolved(schema, node)
    if isinstance(document, dict):
        for name, member in rules.get("properties", {}).items():
            yield {n: v for n, v in document.items() if n != name}
            yield from (document | {name: value} for value in values)
            if resolved(schema, member).get("type") == "integer":
                yield from (document | {name: value} for value in (2**53, -(2**53)))
            yield from (document | {name: inner} for inner in changes_of(schema, member, document[name]))
        if isinstance(rules.get("additionalProperties"), dict):
            yield from ({name: document["a"]} for name in ("", "x" * 4096, "x" * 4097))
            yield from ({"a": value} for value in values)
            yield from ({"a": inner} for inner in changes_of(schema, rules["additionalProperties"], document["a"]))
        if "properties" in rules:
            yield document | {"unknown": 1}
    if isinstance(document, list) and "items" in rules:
        yield []
        yield from ([value] for value in values)
        yield from ([inner] for inner in changes_of(schema, rules["items"], document[0]))


def event_changes(schema: Json, variant: Json) -> Iterator[Any]:
    document = whole(schema, variant)
    yield document
    yield from changes_of(schema, variant, document)


@pytest.mark.parametrize("number", range(len(event_types)))
def test_schema_and_parser_agree_on_every_change_of_one_member(number: int, schemas: Schemas) -> None:
    schema = schemas("daemon.event")
    valid, variant = takes(schema), schema["oneOf"][number]
    assert valid(whole(schema, variant))
    assert [d for d in event_changes(schema, variant) if valid(d) != parser_takes(d)] == []


def rules_in(node: Json, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every rule that a schema lays down."""
    for keyword, value in node.items():
        here = (*path, keyword)
        if keyword == "properties":
            for name, member in value.items():
                yield from rules_in(member, (*here, name))
        elif keyword in ("required", "enum"):
            yield from ((*here, place) for place in range(len(value)))
        elif keyword not in ("description", "title"):
            yield here


def without(schema: Json, path: tuple[Any, ...]) -> Json:
    looser = copy.deepcopy(schema)
    node: Any = looser
    for part in path[:-1]:
        node = node[part]
    del node[path[-1]]
    return looser


def unnoticed(schema: Json, rules: list[tuple[Any, ...]], judged: list[tuple[Any, bool]]) -> list[tuple[Any, ...]]:
    """The rules without which the schema would judge each document as before."""
    found = []
    for rule in rules:
        valid = takes(without(schema, rule))
        if all(valid(document) == verdict for document, verdict in judged):
            found.append(rule)
    return found


def test_no_rule_can_be_left_out_of_the_event_schema_unnoticed(schemas: Schemas) -> None:
    schema = schemas("daemon.event")
    found = []
    shared = {name for name, node in schema["$defs"].items() if "properties" not in node}
    everything: list[tuple[Any, bool]] = [(None, False)]
    for variant in schema["oneOf"]:
        name = variant["$ref"].rpartition("/")[2]
        alone = {"$ref": variant["$ref"], "$defs": {n: schema["$defs"][n] for n in (*shared, name)}}
        judged = [(document, parser_takes(document)) for document in (None, *event_changes(schema, variant))]
        rules = [("$defs", name, *rule) for rule in rules_in(schema["$defs"][name])]
        found += unnoticed(alone, rules, judged)
        if name in ("pipelineCreated", "queueTaken", "workerStarted", "shellExited"):
            everything += judged
    assert found == []
    rules = [("$defs", name, *rule) for name in shared for rule in rules_in(schema["$defs"][name])]
    assert unnoticed(schema, rules, everything) == []


def test_schema_and_loader_agree_on_every_change_of_one_member(schemas: Schemas) -> None:
    schema = schemas("daemon.snapshot")
    valid, document = takes(schema), whole(schema, schema)
    assert valid(document)
    documents = [d for d in changes_of(schema, schema, document) if written_alike(d)]
    assert [d for d in documents if valid(d) != loader_takes(d)] == []
    verdicts = list(map(valid, documents))
    assert min(verdicts.count(True), verdicts.count(False)) > 300


def test_no_rule_can_be_left_out_of_the_snapshot_schema_unnoticed(schemas: Schemas) -> None:
    schema = schemas("daemon.snapshot")
    documents = [None, *changes_of(schema, schema, whole(schema, schema))]
    judged = [(document, loader_takes(document)) for document in documents if written_alike(document)]
    rules = [*rules_in({k: v for k, v in schema.items() if k not in ("$defs", "$schema", "$id")})]
    rules += [("$defs", name, *rule) for name, node in schema["$defs"].items() for rule in rules_in(node)]
    assert unnoticed(schema, rules, judged) == []


def written_alike(document: Any) -> bool:
    """Whether no integer is written as 1.0: a schema takes that for 1, and no state is ever written so."""
    if isinstance(document, dict):
        return all(written_alike(v) for n, v in document.items() if n not in ("data", "runbook", "vars"))
    if isinstance(document, list):
        return all(written_alike(item) for item in document)
    return not (isinstance(document, float) and document.is_integer())


@pytest.mark.parametrize("document", [None, [], "event", 1, True, {}, {"type": 1}, {"type": "no:such"}], ids=repr)
def test_what_is_no_event_is_refused_by_both(document: Any, schemas: Schemas) -> None:
    assert (takes(schemas("daemon.event"))(document), parser_takes(document)) == (False, False)


def test_an_unknown_tag_is_named_beside_those_that_there_are() -> None:
    with pytest.raises(InvalidEvent, match=r"'queue:gone'.*queue:pushed") as refused:
        DAEMON.parse(b'{"type":"queue:gone"}')
    assert refused.value.details == {"type": "queue:gone"}


@given(history=histories(events_max=8))
@settings(max_examples=50)
def test_what_is_stored_is_as_the_schemas_say(history: list[Any], schemas: Schemas) -> None:
    of_event, of_state = (jsonschema_rs.Draft202012Validator(schemas(name)) for name in names)
    for event in history:
        line = DAEMON.draft(event)[1].render(1, "2026-11-15T09:30:00.000Z")
        of_event.validate(json.loads(line))
        assert DAEMON.parse(line) == DAEMON.decode(line) == event
    of_state.validate(json.loads(DAEMON.dump(DAEMON.fold(DAEMON.initial("daemon"), map(encode, history)))))


# --- from the typed side ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 5, "", "a\ud800", "x" * 4097], ids=lambda value: repr(value)[:20])
def test_a_struct_filled_wrongly_is_refused(value: Any) -> None:
    with pytest.raises((InvalidEvent, InvalidJson)):
        DAEMON.draft(StepStarted(value, "build"))


@pytest.mark.parametrize("daemon", ["", "..", "a/b", "a\0", "é" * 101])
def test_a_daemon_that_can_be_no_stream_is_refused(daemon: str) -> None:
    with pytest.raises((InvalidStream, InvalidEvent)):
        DAEMON.draft(Custom("n", daemon=daemon))


@pytest.mark.parametrize("event_id", ["é", "a b", "\n", "x" * 129])
def test_an_event_id_that_is_not_printable_is_refused(event_id: str) -> None:
    with pytest.raises(InvalidEvent):
        DAEMON.draft(Custom("n", event_id=event_id))


@pytest.mark.parametrize("value", [2**53, float("nan"), "\ud800", b"bytes", {1: 2}], ids=repr)
def test_data_that_json_cannot_carry_is_refused(value: Any) -> None:
    with pytest.raises(InvalidJson):
        DAEMON.draft(QueuePushed("q", "1", value, 0))


@given(line=st.binary(max_size=40))
def test_noise_is_refused_as_an_event(line: bytes) -> None:
    for read in (DAEMON.parse, DAEMON.decode):
        with pytest.raises((InvalidEvent, InvalidJson)):
            read(line)


def test_a_whole_number_may_be_written_like_any_number() -> None:
    odd = b'{"type":"queue:pushed","queue_name":"q","item_id":"1","data":null,"pushed_at_epoch_ms":7.0}'
    assert DAEMON.decode(odd) == DAEMON.parse(odd) == QueuePushed("q", "1", None, 7)


def test_golden_events_and_state_are_read_and_written_byte_for_byte(golden: Path) -> None:
    lines = (golden / "daemon_events.ndjson").read_bytes().split(b"\n")[:-1]
    assert [encode(DAEMON.parse(line)) for line in lines] == lines
    body = (golden / "daemon_snapshot.json").read_bytes()
    assert DAEMON.dump(DAEMON.fold(DAEMON.initial("daemon"), lines)) == body
    assert DAEMON.dump(DAEMON.load(body)) == body
