"""Bundles: a session arrives whole, in its order, without its tokens; or it is refused and nothing is written."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.runtimes.session_desk import Desk, choices, desk_at, failed, three_steps

from runstate.errors import SequenceConflict
from runstate.logs.log import BlobRef
from runstate.logs.segments import SegmentsLog
from runstate.models.canonical import digest
from runstate.models.session.ids import ContentDigest, RunId, SessionId
from runstate.models.session.payloads import GitBranch, RepoRootDigest
from runstate.runtimes.session import Imported, Wanted, linear, unwrap
from runstate.runtimes.session import bundles as bundle_module
from runstate.runtimes.session import keyring as keyring_module
from runstate.runtimes.session.bundles import Bundle
from runstate.runtimes.session.node_snapshots import first
from runstate.runtimes.session.tokens import AckToken, check

Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Desk]:
    with desk_at(tmp_path / "home", "sqlite") as desk:
        place = desk.session()
        kept = unwrap(desk.sessions.keep_artifact("report.txt", b"all is well\n", "text/plain"))
        tip = unwrap(desk.sessions.advance(place.ack_token or "", "read \u2028 it", artifacts=[kept]))
        said = unwrap(desk.sessions.append_output(tip.state_token, "wrong"))
        unwrap(desk.sessions.supersede_output(tip.state_token, said, "right"))
        back = unwrap(desk.sessions.rewind("s-1", place.node_id))
        unwrap(desk.sessions.advance(back.ack_token or "", "read it otherwise"))
        unwrap(desk.sessions.observe("s-1", GitBranch(value="main")))
        unwrap(desk.sessions.start_run("s-1", choices, run_id="r-2"))
        yield desk


@pytest.fixture(params=["sqlite", "segments"])
def away(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    with desk_at(tmp_path / "away", request.param) as desk:
        yield desk


@pytest.fixture
def bundle(home: Desk) -> bytes:
    return unwrap(home.sessions.export("s-1"))


def without_name(desk: Desk, name: str) -> list[dict[str, Any]]:
    """The events of a session in their order, but for what it is called."""
    return [{**json.loads(record.body), "sessionId": None} for record in desk.records(name)]


# --- there and back ----------------------------------------------------------------------------------------------


def test_a_session_arrives_as_it_was(home: Desk, away: Desk, bundle: bytes) -> None:
    imported = unwrap(away.sessions.import_(bundle))
    assert (imported.session_id, imported.imported_from) == ("s-1", "s-1")
    assert away.store.model.dump(away.state()) == home.store.model.dump(home.state())
    assert [r.body for r in away.records()] == [r.body for r in home.records()]
    assert [r.persisted_at for r in away.records()] == [r.persisted_at for r in home.records()]
    (artifact,) = next(o for o in away.state().outputs.values() if o.artifacts).artifacts
    assert away.sessions.log.get_blob(BlobRef(artifact.digest)) == b"all is well\n"


def test_a_session_goes_on_where_it_arrives(away: Desk, bundle: bytes) -> None:
    imported = unwrap(away.sessions.import_(bundle))
    tip = next(place for place in imported.tips if place.run_id == "r-1")
    assert tip.node_id == away.seen().preferred_tip(RunId("r-1"))
    told = unwrap(away.sessions.rehydrate(tip.state_token))
    assert [output.notes for output in told.outputs] == ["read it otherwise"]
    assert unwrap(away.sessions.advance(tip.ack_token or "", "judged it")).step == three_steps.steps[2]
    assert not away.state().inconsistent


def test_there_and_back_the_bundle_is_the_same(away: Desk, bundle: bytes) -> None:
    unwrap(away.sessions.import_(bundle))
    assert unwrap(away.sessions.export("s-1")) == bundle


def test_where_there_is_such_a_session_it_gets_a_name_of_its_own(home: Desk, bundle: bytes) -> None:
    with_home = home.records()
    imported = unwrap(home.sessions.import_(bundle))
    assert imported.session_id != "s-1"
    assert home.records() == with_home
    assert without_name(home, imported.session_id) == without_name(home, "s-1")
    again = unwrap(home.sessions.import_(bundle))
    assert again.session_id not in ("s-1", imported.session_id)


def test_the_order_proves_itself_whatever_the_session_is_called(home: Desk, away: Desk, bundle: bytes) -> None:
    away.session("s-1", linear("other", "Something else"))
    imported = unwrap(away.sessions.import_(bundle))
    again = json.loads(unwrap(away.sessions.export(imported.session_id)))
    assert imported.session_id != "s-1"
    assert again["manifest"] == json.loads(bundle)["manifest"]
    assert again["manifest"][0]["sha256"] == imported.events_digest
    assert again["digest"] != json.loads(bundle)["digest"] == imported.bundle_digest


def test_a_bundle_may_be_indented_and_sorted_by_other_tools(away: Desk, home: Desk, bundle: bytes) -> None:
    pretty = json.dumps(json.loads(bundle), indent=2, sort_keys=True, ensure_ascii=False).encode()
    unwrap(away.sessions.import_(pretty))
    assert [r.body for r in away.records()] == [r.body for r in home.records()]


def test_a_bundle_holds_no_token_and_no_key(home: Desk, bundle: bytes) -> None:
    keys = json.loads(home.sessions._keyring.path.read_bytes())
    assert keys["current"].encode() not in bundle
    assert b"st.v1." not in bundle
    assert b"ack.v1." not in bundle


def test_exporting_writes_nothing(home: Desk) -> None:
    with home.untouched():
        unwrap(home.sessions.export("s-1"))
        assert failed(home.sessions.export("nobody")).code == "stream.not_found"


# --- tokens ------------------------------------------------------------------------------------------------------


def tokens_of(desk: Desk) -> list[str]:
    nodes = [unwrap(desk.sessions.rewind("s-1", node)) for node in desk.state().nodes]
    return [token for place in nodes for token in (place.state_token, place.ack_token or "")]


def refused(desk: Desk, token: str) -> bool:
    use = desk.sessions.rehydrate if token.startswith("st.") else desk.sessions.advance
    return failed(use(token)).code == "token.invalid"


def test_no_token_is_believed_on_another_machine(home: Desk, away: Desk, bundle: bytes) -> None:
    unwrap(away.sessions.import_(bundle))
    with away.untouched():
        assert all(refused(away, token) for token in tokens_of(home))


def test_no_token_survives_import_even_where_the_keyring_was_copied(home: Desk, away: Desk, bundle: bytes) -> None:
    old = tokens_of(home)
    path = away.sessions._keyring.path
    path.parent.mkdir()
    path.write_bytes(home.sessions._keyring.path.read_bytes())
    path.chmod(0o600)
    imported = unwrap(away.sessions.import_(bundle))
    with away.untouched():
        assert all(refused(away, token) for token in old)
        for place in imported.tips:
            unwrap(away.sessions.rehydrate(place.state_token))


def test_no_token_survives_where_a_session_is_deleted_and_imported_again(home: Desk, bundle: bytes) -> None:
    old = tokens_of(home)
    home.store.delete_stream("s-1")
    assert unwrap(home.sessions.import_(bundle)).session_id == "s-1"
    assert all(refused(home, token) for token in old)


def test_tokens_of_the_first_stay_the_first_ones_where_the_second_got_another_name(home: Desk, bundle: bytes) -> None:
    (place, *_) = [unwrap(home.sessions.rewind("s-1", node)) for node in home.state().nodes]
    imported = unwrap(home.sessions.import_(bundle))
    assert check(home.sessions._keyring, place.ack_token or "", AckToken).session_id == "s-1"
    assert {tip.session_id for tip in imported.tips} == {imported.session_id}
    before = home.records(imported.session_id)
    unwrap(home.sessions.advance(place.ack_token or "", "in the first"))
    assert home.records(imported.session_id) == before


# --- bad input ---------------------------------------------------------------------------------------------------


def event(bundle: dict[str, Any], kind: str, nth: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = [e for e in bundle["events"] if e["kind"] == kind][nth]
    return found


def swap(bundle: dict[str, Any]) -> None:
    bundle["events"][3], bundle["events"][4] = bundle["events"][4], bundle["events"][3]


def renumber(bundle: dict[str, Any]) -> None:
    swap(bundle)
    bundle["events"][3]["eventIndex"], bundle["events"][4]["eventIndex"] = 3, 4


def rename_blob(bundle: dict[str, Any]) -> None:
    name, value = bundle["snapshots"].popitem()
    bundle["snapshots"][name[:-1] + ("0" if name[-1] != "0" else "1")] = value


def other_snapshot(bundle: dict[str, Any]) -> None:
    """A node of the first run that stands on the start of the second."""
    event(bundle, "node_created")["data"]["snapshotRef"] = first(choices).ref
    named = {e["data"]["snapshotRef"] for e in bundle["events"] if e["kind"] == "node_created"}
    bundle["snapshots"] = {ref: value for ref, value in bundle["snapshots"].items() if ref in named}


def other_output(bundle: dict[str, Any]) -> None:
    outputs = [event(bundle, "node_output_appended", nth)["data"]["output"] for nth in range(4)]
    outputs[3]["supersedesOutputId"] = outputs[0]["outputId"]


def across_runs(bundle: dict[str, Any]) -> None:
    """The second run's start node is put before the last edge, which then leads out of it."""
    edge = copy.deepcopy(event(bundle, "edge_created"))
    edge["data"]["parentNodeId"] = event(bundle, "run_started", 1)["data"]["startNodeId"]
    edge["data"]["childNodeId"] = event(bundle, "edge_created", 1)["data"]["childNodeId"]
    edge |= {"eventIndex": len(bundle["events"]), "dedupeKey": "edge_created:across", "eventId": "across"}
    bundle["events"].append(edge)


resealed_changes: dict[str, tuple[Change, str, dict[str, Any]]] = {
    "unknown kind": (lambda b: b["events"][5].update(kind="node_deleted"), "event.invalid", {"event_index": 5}),
    "unknown member": (lambda b: b["events"][5]["data"].update(color="red"), "event.invalid", {"event_index": 5}),
    "too long a text": (
        lambda b: event(b, "node_output_appended")["data"]["output"].update(notes="ä" * 9_000),
        "event.invalid",
        {"event_index": 5},
    ),
    "no parent": (
        lambda b: event(b, "edge_created")["data"].update(parentNodeId="nobody"),
        "event.invalid_transition",
        {"reason": "parent_unknown", "event_index": 4},
    ),
    "an edge across runs": (across_runs, "event.invalid_transition", {"reason": "edge_across_runs"}),
    "an output of another node": (other_output, "event.invalid_transition", {"reason": "output_of_another_node"}),
    "a node of another workflow": (
        lambda b: event(b, "node_created")["data"].update(workflowHash=choices.hash),
        "event.invalid_transition",
        {"reason": "workflow_differs"},
    ),
    "a snapshot of another workflow": (other_snapshot, "snapshot.other_workflow", {"run_workflow": three_steps.hash}),
    "events out of order": (swap, "bundle.invalid", {"reason": "order", "index": 3}),
    "events out of order but numbered": (renumber, "event.invalid_transition", {"reason": "child_unknown"}),
    "an event missing": (lambda b: b["events"].pop(4), "bundle.invalid", {"reason": "order", "index": 4}),
    "the first event missing": (lambda b: b["events"].pop(0), "bundle.invalid", {"reason": "order", "index": 0}),
    "an event twice": (lambda b: b["events"].insert(4, b["events"][3]), "bundle.invalid", {"reason": "order"}),
    "an event of another session": (lambda b: b["events"][3].update(sessionId="s-9"), "event.invalid", {}),
    "an event without a time": (lambda b: b["events"][3].pop("persistedAt"), "event.invalid", {"event_index": 3}),
    "a key twice": (
        lambda b: event(b, "observation_recorded").update(dedupeKey=b["events"][4]["dedupeKey"]),
        "event.invalid",
        {},
    ),
    "a key of another event": (
        lambda b: event(b, "node_output_appended").update(dedupeKey="gap_recorded:g-1"),
        "event.key_mismatch",
        {"event_index": 5},
    ),
    "a key of another kind with an attempt": (
        lambda b: event(b, "observation_recorded").update(dedupeKey="gap_recorded:g-1"),
        "event.key_mismatch",
        {},
    ),
    "an end that is none": (
        lambda b: event(b, "node_created", 3)["data"].update(isTerminal=True),
        "snapshot.invalid",
        {},
    ),
    "an artifact missing": (lambda b: b["artifacts"].clear(), "bundle.invalid", {"reason": "reference"}),
    "no events": (lambda b: b["events"].clear(), "bundle.invalid", {"reason": "shape"}),
    "a snapshot missing": (lambda b: b["snapshots"].popitem(), "bundle.invalid", {"reason": "reference"}),
    "a workflow missing": (lambda b: b["workflows"].popitem(), "bundle.invalid", {"reason": "reference"}),
    "a snapshot under another digest": (rename_blob, "bundle.invalid", {"reason": "digest"}),
    "a blob that nobody named": (
        lambda b: b["artifacts"].update({f"sha256:{digest(b'x')}": base64.b64encode(b"x").decode()}),
        "bundle.invalid",
        {"reason": "reference"},
    ),
    "a session id that leaves the directory": (lambda b: b.update(sessionId="../s"), "bundle.invalid", {}),
    "a path in place of a digest": (
        lambda b: b["snapshots"].update({"../../x": {}}),
        "bundle.invalid",
        {"reason": "shape"},
    ),
}
"""What is wrong, though every digest is right."""


@pytest.mark.parametrize("name", resealed_changes)
def test_what_is_wrong_is_refused_though_all_digests_are_right(away: Desk, bundle: bytes, name: str) -> None:
    change, code, details = resealed_changes[name]
    members = json.loads(bundle)
    change(members)
    with away.untouched():
        answer = failed(away.sessions.import_(resealed(members)))
    assert answer.code == code, answer
    assert answer.details.items() >= details.items()
    assert not answer.retryable


def resealed(members: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(msgspec.convert(members, Bundle).with_digests())
    except msgspec.ValidationError:  # No such bundle could be sealed.
        return json.dumps(members).encode()


def tamper_digest(bundle: dict[str, Any]) -> None:
    bundle["digest"] = "sha256:" + "0" * 64


broken_changes: dict[str, tuple[Change, str, dict[str, Any]]] = {
    "the digest of the whole": (tamper_digest, "bundle.invalid", {"reason": "digest", "path": ""}),
    "the digest of one part": (
        lambda b: b["manifest"][2].update(sha256="sha256:" + "0" * 64),
        "bundle.invalid",
        {"reason": "digest"},
    ),
    "the size of one part": (lambda b: b["manifest"][1].update(bytes=1), "bundle.invalid", {"reason": "digest"}),
    "one letter of an event": (
        lambda b: event(b, "node_output_appended")["data"]["output"].update(notes="reed"),
        "bundle.invalid",
        {"reason": "digest"},
    ),
    "one letter of a workflow": (
        lambda b: next(iter(b["workflows"].values())).update(workflowId="other"),
        "bundle.invalid",
        {"reason": "digest"},
    ),
    "a path that leaves": (
        lambda b: b["manifest"][1].update(path="snapshots/../../../etc/passwd"),
        "bundle.invalid",
        {"reason": "path", "path": "snapshots/../../../etc/passwd"},
    ),
    "an absolute path": (lambda b: b["manifest"][0].update(path="/etc/passwd"), "bundle.invalid", {"reason": "path"}),
    "a part that is not listed": (lambda b: b["manifest"].pop(), "bundle.invalid", {"reason": "manifest"}),
    "a part that is listed twice": (
        lambda b: b["manifest"].append(b["manifest"][-1]),
        "bundle.invalid",
        {"reason": "manifest"},
    ),
    "a newer version": (lambda b: b.update(version=2, surprise=True), "bundle.too_new", {"version": 2}),
    "no version there ever was": (lambda b: b.update(version=0), "bundle.invalid", {"reason": "shape"}),
    "a member nobody knows": (lambda b: b.update(surprise=True), "bundle.invalid", {"reason": "shape"}),
    "an artifact that is no base64": (
        lambda b: b["artifacts"].update(dict.fromkeys(b["artifacts"], "%%%")),
        "bundle.invalid",
        {"reason": "artifact"},
    ),
    "another format": (lambda b: b.update(format="zip"), "bundle.invalid", {"reason": "format"}),
}


@pytest.mark.parametrize("name", broken_changes)
def test_what_was_changed_on_the_way_is_refused(away: Desk, bundle: bytes, name: str) -> None:
    change, code, details = broken_changes[name]
    members = json.loads(bundle)
    change(members)
    with away.untouched():
        answer = failed(away.sessions.import_(json.dumps(members).encode()))
    assert answer.code == code, answer
    assert answer.details.items() >= details.items()


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"\xff\xfe", b"{" * 5000, b'{"format":"runstate.session"}', b"null"]
)
def test_what_is_no_bundle_is_refused(away: Desk, data: bytes) -> None:
    with away.untouched():
        assert failed(away.sessions.import_(data)).code in ("bundle.invalid", "json.invalid")


def test_every_part_that_is_cut_off_is_missed(away: Desk, bundle: bytes) -> None:
    with away.untouched():
        for length in range(0, len(bundle) - 2, 97):
            assert failed(away.sessions.import_(bundle[:length])).code in ("bundle.invalid", "json.invalid")


def test_a_name_that_stands_twice_is_refused(away: Desk, bundle: bytes) -> None:
    twice = bundle.replace(b'{"format"', b'{"version":1,"format"', 1)
    with away.untouched():
        assert failed(away.sessions.import_(twice)).code == "json.invalid"


def test_a_file_that_is_too_large_is_not_looked_into(
    away: Desk, bundle: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_module, "bundle_bytes_max", len(bundle) - 1)
    monkeypatch.setattr(bundle_module, "parse", lambda _: pytest.fail("it was parsed"))
    with away.untouched():
        assert failed(away.sessions.import_(bundle)).details == {"reason": "size"}


def test_what_nobody_could_import_is_not_exported(home: Desk, bundle: bytes) -> None:
    """A session whose log was written by something else, and holds what is impossible."""
    from tests.unit.runtimes.test_session_lineage import plant

    plant(home, first(choices))
    with home.untouched():
        assert failed(home.sessions.export("s-1")).code == "snapshot.other_workflow"


# --- a crash in the middle ---------------------------------------------------------------------------------------


class Died(BaseException):
    """Where a process would be killed."""


@pytest.mark.parametrize("scheme", ["sqlite", "segments"])
def test_a_crash_in_the_middle_leaves_nothing_or_everything(
    tmp_path: Path, bundle: bytes, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in ("put_blob", "renew", "adopt", "after"):
        with desk_at(tmp_path / step, scheme) as desk:

            def die(*_: Any, **__: Any) -> Any:
                raise Died

            with monkeypatch.context() as patched:
                if step == "renew":
                    patched.setattr(desk.sessions._keyring, "renew", die)
                elif step == "after":
                    patched.setattr(desk.sessions, "_place", die)
                else:
                    patched.setattr(desk.sessions.log, step, die)
                with pytest.raises(Died):
                    desk.sessions.import_(bundle)
        with desk_at(tmp_path / step, scheme) as later:
            assert [info.events for info in later.store.log.streams()] == ([14] if step == "after" else [])
            imported = unwrap(later.sessions.import_(bundle))
            assert (imported.session_id == "s-1") == (step != "after")


def test_a_log_that_takes_it_under_no_name_is_told_as_data(
    away: Desk, bundle: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def conflicting(*_: Any, **__: Any) -> Any:
        raise SequenceConflict("not here")

    monkeypatch.setattr(away.sessions.log, "adopt", conflicting)
    assert failed(away.sessions.import_(bundle)).code == "log.sequence_conflict"
    assert away.store.log.streams() == []


def test_who_comes_second_gets_another_name_and_the_first_keeps_its_tokens(
    tmp_path: Path, bundle: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else on this machine imports the same bundle while we have only read ours."""
    with desk_at(tmp_path / "both", "sqlite") as ours, desk_at(tmp_path / "both", "sqlite") as theirs:
        really, first_ = ours.sessions._begun_anew, list[Imported]()

        def interfering(session_id: SessionId, begin: Callable[[], bool]) -> bool:
            if not first_:
                first_.append(unwrap(theirs.sessions.import_(bundle)))
            return really(session_id, begin)

        monkeypatch.setattr(ours.sessions, "_begun_anew", interfering)
        second = unwrap(ours.sessions.import_(bundle))
        assert first_[0].session_id == "s-1"
        assert second.session_id not in ("s-1", "")
        for tip in (*first_[0].tips, *second.tips):
            assert unwrap(theirs.sessions.rehydrate(tip.state_token)).place == tip


def test_while_a_session_is_begun_no_other_process_changes_the_keyring(
    tmp_path: Path, bundle: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyring_module, "_patience_seconds", 0.05)
    with desk_at(tmp_path / "both", "sqlite") as ours, desk_at(tmp_path / "both", "sqlite") as theirs:
        really, told = ours.sessions.log.adopt, list[str]()

        def interfering(*args: Any, **named: Any) -> int:
            told.append(failed(theirs.sessions.import_(bundle)).code)
            return really(*args, **named)

        monkeypatch.setattr(ours.sessions.log, "adopt", interfering)
        unwrap(ours.sessions.import_(bundle))
        assert told == ["log.busy"]
        assert unwrap(theirs.sessions.import_(bundle)).session_id != "s-1"


def test_one_with_another_keyring_comes_in_between(
    tmp_path: Path, bundle: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with desk_at(tmp_path, "sqlite") as ours, desk_at(tmp_path, "sqlite", keys="theirs") as theirs:
        really, first_ = ours.sessions.log.adopt, list[Imported]()

        def interfering(*args: Any, **named: Any) -> int:
            if not first_:
                first_.append(unwrap(theirs.sessions.import_(bundle)))
            return really(*args, **named)

        monkeypatch.setattr(ours.sessions.log, "adopt", interfering)
        second = unwrap(ours.sessions.import_(bundle))
        assert (first_[0].session_id, second.session_id == "s-1") == ("s-1", False)


def test_an_import_that_the_keyring_refuses_leaves_no_blob(tmp_path: Path, bundle: bytes) -> None:
    with desk_at(tmp_path / "exposed", "segments") as desk:
        keyring = desk.sessions._keyring
        keyring.rotate()
        keyring.path.chmod(0o644)
        with desk.untouched():
            assert failed(desk.sessions.import_(bundle)).code == "keyring.exposed"
        with SegmentsLog(tmp_path / "exposed/log/sessions") as collecting:
            assert collecting.collect_blobs().removed == []


def test_where_a_damaged_session_stands_the_import_gets_another_name(tmp_path: Path) -> None:
    with desk_at(tmp_path, "segments") as desk:
        place = desk.session()
        bundle = unwrap(desk.sessions.export("s-1"))
        before = desk.sessions._keyring.path.read_bytes()
    manifest = tmp_path / "log/sessions/sessions/s-1/manifest.jsonl"
    whole = manifest.read_bytes()
    manifest.write_bytes(b"")
    with desk_at(tmp_path, "segments") as desk:
        imported = unwrap(desk.sessions.import_(bundle))
        assert imported.session_id != "s-1"
        assert failed(desk.sessions.rewind("s-1", place.node_id)).code == "log.damaged"
        assert set(unwrap(desk.sessions.find(Wanted())).unreadable) == {"s-1"}
        assert failed(desk.sessions.create(session_id="s-1")).code == "log.damaged"
        assert manifest.read_bytes() == b""
    # The tokens of the damaged one are good again as soon as it is.
    assert json.loads(before)["salts"]["s-1"] == json.loads(desk.sessions._keyring.path.read_bytes())["salts"]["s-1"]
    manifest.write_bytes(whole)
    with desk_at(tmp_path, "segments") as desk:
        assert unwrap(desk.sessions.rehydrate(place.state_token)).place == place


def test_under_its_new_name_a_run_is_found_where_it_began(home: Desk, bundle: bytes) -> None:
    imported = unwrap(home.sessions.import_(bundle)).session_id
    with home.untouched():
        again = unwrap(home.sessions.start_run(imported, three_steps, run_id="r-1"))
    assert again.replayed
    assert again.node_id == home.state(imported).runs[RunId("r-1")].start_node_id


def test_an_artifact_that_is_gone_is_not_left_out(tmp_path: Path) -> None:
    with desk_at(tmp_path, "segments") as desk:
        place = desk.session()
        kept = unwrap(desk.sessions.keep_artifact("report.txt", b"precious"))
        unwrap(desk.sessions.append_output(place.state_token, "see the report", artifacts=[kept]))
        (tmp_path / "log/sessions/snapshots/sha256" / kept.digest.removeprefix("sha256:")).unlink()
        assert failed(desk.sessions.export("s-1")).code == "blob.not_found"


def test_the_digest_of_what_was_never_kept_is_exported_as_it_is(home: Desk, away: Desk) -> None:
    """An observation may name anything; only what an output names as its artifact must be there."""
    unwrap(home.sessions.observe("s-1", RepoRootDigest(value=ContentDigest(f"sha256:{digest(b'elsewhere')}"))))
    assert unwrap(away.sessions.import_(unwrap(home.sessions.export("s-1")))).session_id == "s-1"
