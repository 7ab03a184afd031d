"""The schemas of sessions are the authority: events and snapshots are taken exactly where the schemas take them.

Documents are whole events of every kind, each member of them left out, given other values, and strangers added.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fleets.session import histories

from runstate.errors import InvalidEvent, InvalidJson, SnapshotTooNew
from runstate.models.session import SESSION

Json = dict[str, Any]
Schemas = Callable[[str], Json]
Place = tuple[Any, ...]
names = ["session.event.write", "session.event.record", "session.snapshot"]

sha = "sha256:" + "0123456789abcdef" * 4
stamped: Json = {"eventIndex": 3, "persistedAt": "2026-11-15T09:30:00.000Z"}
at_node: Json = {"runId": "r-1", "nodeId": "n-1"}
artifact: Json = {"name": "a.png", "digest": sha, "contentType": "image/png", "byteLength": 7}
whole: dict[str, tuple[Json, Json]] = {
    "session_created": ({}, {"title": "t", "sessionKey": "k"}),
    "run_started": ({}, {"runId": "r-1", "workflowId": "Fix.Bug", "workflowHash": sha, "startNodeId": "n-1"}),
    "node_created": (
        {"runId": "r-1"},
        {"nodeId": "n-1", "nodeKind": "step", "snapshotRef": sha, "workflowHash": sha, "isTerminal": True},
    ),
    "edge_created": ({"runId": "r-1"}, {"parentNodeId": "n-1", "childNodeId": "n-2", "edgeKind": "acked_step"}),
    "node_output_appended": (
        at_node,
        {"output": {"outputId": "o-1", "notes": "n", "artifacts": [artifact], "supersedesOutputId": "o-0"}},
    ),
    "preferences_changed": (
        at_node,
        {
            "preferenceDelta": {"autonomy": "guided", "riskPolicy": "balanced"},
            "effectivePreferencesSnapshot": {"autonomy": "guided", "riskPolicy": "balanced"},
        },
    ),
    "capability_observed": (
        at_node,
        {"capability": "delegation", "status": "available", "provenance": "probe_step"},
    ),
    "gap_recorded": (
        at_node,
        {
            "gapId": "g-1",
            "reason": "user_choice_needed",
            "severity": "critical",
            "summary": "s",
            "howToResolve": "h",
            "relatedStepId": "step.2",
            "resolvesGapId": "g-0",
        },
    ),
    "divergence_recorded": (at_node, {"reason": "step_skipped", "summary": "s", "relatedStepId": "Step:2"}),
    "decision_trace_appended": (
        at_node,
        {"items": [{"kind": "entered_loop", "summary": "s", "stepId": "step.2"}]},
    ),
}
observations = [("git_branch", "main"), ("git_head_sha", "ab" * 20), ("repo_root_digest", sha)]


def whole_events() -> Iterator[Json]:
    envelope = {"eventId": "e-1", "sessionId": "s-1", "dedupeKey": "a:b>c_1"}
    for kind, (scope, data) in whole.items():
        yield {**envelope, "kind": kind, **scope, "data": data}
    for kind, value in observations:
        data = {"observationKind": kind, "value": value}
        yield {**envelope, "kind": "observation_recorded", **at_node, "data": data}


wrong: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    1.0,
    1.5,
    2**53 - 2,
    2**53 - 1,
    2**53,
    1e300,
    "",
    [],
    {},
    [1],
    {"a": 1},
]
texts = [
    "x",
    "X",
    "-a",
    "_a",
    "a\n",
    "a/b",
    "a.b",
    "a:b",
    "a>b",
    "..",
    "é",
    "\U0001f600",
    "\0",
    "\u2028",
    "a" * 64,
    "a" * 65,
]
texts += ["a" * length for length in (128, 129, 200, 201, 256, 257, 512, 513, 1024, 1025, 2048, 2049, 16384, 16385)]
texts += [
    sha,
    sha[:-1],
    sha + "0",
    sha.upper(),
    sha + "\n",
    "ab" * 32,
    "ab" * 20,
    "ab" * 19,
    "AB" * 20,
    "image/png",
    "a/b/c",
    "/a",
]
texts += ["2026-11-15T09:30:00Z", "2026-11-15T09:30:00.1+00:00", "2026-11-15T09:30:00", "2026-11-15T09:30:00+01:00"]
texts += ["2026-11-15T09:30:00.1234567890Z", "a" * 64 + "/" + "b" * 64, "a" * 65 + "/b", "b/" + "a" * 65, "a/b\n"]
autonomies = ["guided", "full_auto_stop_on_user_deps", "full_auto_never_stop"]
risks = ["conservative", "balanced", "aggressive"]
stricter = {"autonomy": "guided", "riskPolicy": "conservative"}
words = ["step", "checkpoint", "acked_step", "forked_from_non_tip", "guided", "full_auto_stop_on_user_deps"]
words += ["full_auto_never_stop", "conservative", "balanced", "aggressive", "delegation", "web_browsing", "unknown"]
words += [
    "available",
    "unavailable",
    "probe_step",
    "attempted_use",
    "manual_claim",
    "warning",
    "critical",
    "git_branch",
]
words += ["selected_next_step", "evaluated_condition", "exited_loop", "detected_non_tip_advance", "entered_loop"]
words += ["user_choice_needed", "user_approval_needed", "user_secret_needed", "user_artifact_needed"]
words += ["user_action_needed", "required_output_missing", "required_output_invalid", "capability_unavailable"]
words += ["capability_unknown", "unexpected_failure", "user_instruction", "step_skipped", "step_reordered"]
words += [
    "missing_user_context",
    "safety_stop",
    "git_head_sha",
    "repo_root_digest",
    *whole,
    "observation_recorded",
    "node_deleted",
]
lists = [[artifact] * length for length in (64, 65)] + [
    [{"kind": "entered_loop", "summary": "s"}] * n for n in (32, 33)
]
values = [*wrong, *texts, *words, *lists]


def places_in(document: Any, place: Place = ()) -> Iterator[Place]:
    inside = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for name, member in inside:
        yield (*place, name)
        yield from places_in(member, (*place, name))


def changed(document: Any, place: Place, change: Callable[[Any, Any], None]) -> Any:
    made = copy.deepcopy(document)
    here = made
    for part in place[:-1]:
        here = here[part]
    change(here, place[-1])
    return made


def at(document: Any, place: Place) -> Any:
    for part in place:
        document = document[part]
    return document


def setting(value: Any) -> Callable[[Any, Any], None]:
    return lambda here, name: here.__setitem__(name, value)


def changes_of(document: Json) -> Iterator[Json]:
    yield document
    yield document | {"unknown": 1}
    for place in places_in(document):
        yield changed(document, place, lambda here, name: here.__delitem__(name))
        for value in values:
            yield changed(document, place, setting(value))
        if isinstance(at(document, place), dict):
            yield changed(document, (*place, "unknown"), setting(1))


def event_changes(schema: str) -> Iterator[Any]:
    yield None
    yield []
    for event in whole_events():
        yield from changes_of((stamped if schema == "session.event.record" else {}) | event)
        if "nodeId" in event:
            yield {name: value for name, value in event.items() if name not in at_node}
        if schema == "session.event.write":
            yield from (event | {name: value} for name, value in stamped.items())
        if "runId" not in event:
            yield from (event | {"runId": "r-1"}, event | {"nodeId": "n-1"})
    (event,) = (event for event in whole_events() if event["kind"] == "preferences_changed")
    event = (stamped if schema == "session.event.record" else {}) | event
    for autonomy, risk, other in product(autonomies, risks, ["guided", "aggressive"]):
        for delta in ({"autonomy": autonomy}, {"riskPolicy": risk}, {"autonomy": other, "riskPolicy": risk}):
            effective = {"autonomy": autonomy, "riskPolicy": risk}
            yield event | {"data": {"preferenceDelta": delta, "effectivePreferencesSnapshot": effective}}
            yield event | {"data": {"preferenceDelta": delta, "effectivePreferencesSnapshot": stricter}}
    for name, value in stricter.items():
        for wrong_one in (stricter | {other: "x"} for other in stricter if other != name):
            yield event | {"data": {"preferenceDelta": {name: value}, "effectivePreferencesSnapshot": wrong_one}}


def takes(schema: Json) -> Callable[[Any], bool]:
    return jsonschema_rs.Draft202012Validator(schema).is_valid


def decoder_takes(schema: str, document: Any) -> bool:
    line = msgspec.json.encode(document)
    try:
        if schema == "session.snapshot":
            SESSION.load(line)
        elif schema == "session.event.write":
            SESSION.parse(line)
        else:
            SESSION.check_line(line)
            SESSION.decode(line)
    except (InvalidEvent, InvalidJson, SnapshotTooNew):
        return False
    return True


def written_alike(document: Any) -> bool:
    """Whether no integer is written as 1.0: a schema takes that for 1, and nothing of ours is ever stored so."""
    if isinstance(document, dict | list):
        return all(map(written_alike, document.values() if isinstance(document, dict) else document))
    return not (isinstance(document, float) and document.is_integer())


def stored_snapshot() -> Json:
    """A snapshot with something in every place of it."""
    lines = [
        SESSION.draft(SESSION.parse(line))[1].render(seq, stamped["persistedAt"])
        for number in range(40)
        for seq, line in enumerate(histories(3, 40)[f"session-3-{number:04d}"], 1)
        if number == 8
    ]
    state: Json = msgspec.json.decode(SESSION.dump(SESSION.fold(SESSION.initial("session-3-0008"), lines)))
    node, output = {**next(iter(state["nodes"].values()))}, {**next(iter(state["outputs"].values()))}
    report: Json = {"status": "available", "provenance": "probe_step", "eventIndex": 4}
    preferences = {"autonomy": "guided", "riskPolicy": "balanced"}
    node |= {"parentNodeId": "n-0", "edgeKind": "acked_step", "children": ["n-2"], "preferences": preferences}
    node |= {"capabilities": {"delegation": {"latest": report, "latestStrong": report}}, "currentOutputId": "o-1"}
    node |= {"observations": state["observations"]}
    output |= {"artifacts": [artifact], "supersedesOutputId": "o-1", "supersededByOutputId": "o-2"}
    gap: Json = {
        "nodeId": "n-1",
        "eventIndex": 4,
        "reason": "user_choice_needed",
        "severity": "warning",
        "summary": "s",
    }
    gap |= {"howToResolve": "h", "relatedStepId": "s", "resolvesGapId": "g", "resolvedByGapId": "g"}
    divergence: Json = {
        "nodeId": "n-1",
        "eventIndex": 4,
        "reason": "step_skipped",
        "summary": "s",
        "relatedStepId": "s",
    }
    state |= {"runs": {"r-1": next(iter(state["runs"].values()))}, "nodes": {"n-1": node}, "outputs": {"o-1": output}}
    return state | {"gaps": {"g-1": gap}, "divergences": [divergence], "sessionKey": "k", "preferences": preferences}


def snapshot_changes() -> Iterator[Any]:
    yield None
    document = stored_snapshot()
    yield from changes_of(document)
    for name in ("runs", "nodes", "outputs", "gaps"):
        (value,) = document[name].values()
        yield from (document | {name: {key: value}} for key in ("A", "a" * 65, "", "b"))
    yield document | {"lastEventIndex": -2}
    strange: list[Json] = [{"git_tag": {"value": "v", "eventIndex": 1}}, {"git_branch": 1}, {"git_branch": {}}]
    for observations in strange:
        yield document | {"observations": observations}
        yield changed(document, ("nodes", "n-1", "observations"), setting(observations))
    capability = document["nodes"]["n-1"]["capabilities"]["delegation"]
    for name in ("flying", "web_browsing"):
        yield changed(document, ("nodes", "n-1", "capabilities", name), setting(capability))


def documents(schema: str) -> list[Any]:
    made = snapshot_changes() if schema == "session.snapshot" else event_changes(schema)
    return [document for document in made if schema == "session.event.write" or written_alike(document)]


# --- the files themselves --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", names)
def test_a_schema_is_valid_names_itself_and_describes_its_members(name: str, schemas: Schemas) -> None:
    schema = schemas(name)
    jsonschema_rs.meta.validate(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"https://runstate.dev/schemas/{name}.schema.json"
    described = [schema, *schema["properties"].values(), *schema["$defs"].values()]
    for definition in schema["$defs"].values():
        described += definition.get("properties", {}).values()
    assert all(node.get("description", "").endswith(".") for node in described)


@pytest.mark.parametrize("name", names)
def test_every_pattern_is_anchored_at_both_ends(name: str, schemas: Schemas) -> None:
    patterns = [node["pattern"] for node in schemas(name)["$defs"].values() if "pattern" in node]
    assert patterns
    assert all(pattern.startswith("^") and pattern.endswith("$") for pattern in patterns)


@pytest.mark.parametrize("name", names)
def test_schemas_mean_the_same_by_the_same_word(name: str, schemas: Schemas) -> None:
    first, second = schemas("session.event.record")["$defs"], schemas(name)["$defs"]
    cut = {"title", "summary", "howToResolve", "traceItem"} if name == "session.event.write" else set()
    shared = first.keys() & second.keys() - cut - {"output"}
    assert {word: first[word] for word in shared} == {word: second[word] for word in shared}


# --- schema and decoder ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", names)
def test_schema_and_decoder_agree_on_every_change_of_one_member(name: str, schemas: Schemas) -> None:
    valid = takes(schemas(name))
    assert [document for document in documents(name) if valid(document) != decoder_takes(name, document)] == []


@pytest.mark.parametrize("name", names)
def test_the_documents_are_taken_and_refused_in_their_hundreds(name: str, schemas: Schemas) -> None:
    verdicts = list(map(takes(schemas(name)), documents(name)))
    assert min(verdicts.count(True), verdicts.count(False)) > 300


def rules_in(node: Any, path: Place = ()) -> Iterator[Place]:
    """The path of every rule that a schema lays down."""
    for keyword, value in node.items():
        here = (*path, keyword)
        if keyword in ("properties", "$defs"):
            for name, member in value.items():
                yield from rules_in(member, (*here, name)) if isinstance(member, dict) else [(*here, name)]
        elif keyword in ("required", "enum", "allOf"):
            yield from ((*here, place) for place in range(len(value)))
        elif keyword == "dependentRequired":
            yield from ((*here, name) for name in value)
        elif keyword not in ("description", "title", "$schema", "$id", "anyOf"):
            yield here


@pytest.mark.slow
@pytest.mark.parametrize("name", names)
def test_no_rule_can_be_left_out_of_a_schema_unnoticed(name: str, schemas: Schemas) -> None:
    schema = schemas(name)
    judged = [(document, decoder_takes(name, document)) for document in documents(name)]
    unnoticed = []
    for rule in rules_in(schema):
        looser = takes(changed(schema, rule, lambda here, part: here.__delitem__(part)))
        if all(looser(document) == verdict for document, verdict in judged):
            unnoticed.append(rule)
    assert unnoticed == []


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_schema_and_decoder_agree_on_random_documents(
    data: st.DataObject, schemas: Schemas, json_values: st.SearchStrategy[Any]
) -> None:
    event = data.draw(st.sampled_from(list(whole_events())))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(list(places_in(event))))
        event = changed(event, place, setting(data.draw(json_values | st.sampled_from(values))))
    try:
        taken = takes(schemas("session.event.write"))(event)
    except ValueError:
        return  # A number that only Python can hold: no JSON reaches the decoder with it.
    assert taken == decoder_takes("session.event.write", event)


def test_a_snapshot_before_the_first_event_is_as_its_schema_says(schemas: Schemas) -> None:
    assert takes(schemas("session.snapshot"))(msgspec.json.decode(SESSION.dump(SESSION.initial("s-1"))))


@pytest.mark.parametrize("name", names[:2])
def test_the_fleet_is_as_the_schemas_say(name: str, schemas: Schemas) -> None:
    valid = takes(schemas(name))
    for lines in histories(5, 12).values():
        for seq, line in enumerate(lines, 1):
            if name == "session.event.record":
                line = SESSION.draft(SESSION.parse(line))[1].render(seq, stamped["persistedAt"])
            assert valid(msgspec.json.decode(line))
