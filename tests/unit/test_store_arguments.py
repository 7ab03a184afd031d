"""Arguments of the wrong type or out of range: each gets an error of our own, with a code, on every log and model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import runstate
from runstate.contracts import RunStateStoreV1, RunStateStoreV2
from runstate.errors import InvalidArgument, InvalidEvent, InvalidStream, TenantMismatch
from runstate.models.engine import RunEventWrite
from runstate.models.registry import find_model
from runstate.models.tagged import Fact, TaggedModel

Write = Callable[..., RunEventWrite]


@pytest.mark.parametrize("after_seq", [None, -1, 1.5, "1", True, [1]], ids=repr)
def test_an_after_seq_that_is_not_a_whole_number_from_0_is_refused(log_url: str, after_seq: Any) -> None:
    with runstate.open(log_url, "engine") as store:
        for fetch in (store.fetch_events, RunStateStoreV1(store).fetch_events, RunStateStoreV2(store).fetch_events):
            with pytest.raises(InvalidArgument, match="after_seq"):
                fetch("r-1", after_seq=after_seq)


@pytest.mark.parametrize("limit", [None, 0, -1, 1.5, "1", True], ids=repr)
def test_a_limit_that_is_not_a_whole_number_from_1_is_refused(log_url: str, limit: Any) -> None:
    with runstate.open(log_url, "engine") as store:
        for fetch in (store.fetch_events, RunStateStoreV1(store).fetch_events, RunStateStoreV2(store).fetch_events):
            with pytest.raises(InvalidArgument, match="limit") as refused:
                fetch("r-1", limit=limit)
        assert (refused.value.code, refused.value.retryable) == ("argument.invalid", False)


def test_a_huge_limit_or_after_seq_is_no_error(log_url: str, write: Write) -> None:
    with runstate.open(log_url, "engine") as store:
        store.append_event(write())
        assert len(store.fetch_events("r-1", limit=2**70)) == 1
        assert store.fetch_events("r-1", after_seq=2**70) == []


class _Rung(msgspec.Struct, tag="rung", frozen=True):
    by: str = ""


class _Bell(msgspec.Struct, frozen=True):
    rings: int = 0


class _Bells(TaggedModel[_Rung, _Bell]):
    name, version, events, state = "bells", 1, _Rung, _Bell

    def evolve(self, state: _Bell, fact: Fact[_Rung]) -> _Bell:
        return _Bell(state.rings + 1)


def wrong_events(golden: Path, of: str) -> list[Any]:
    """What is not an event of a model: other types, and one event of each other model."""
    files = {"engine": "engine_history.ndjson", "rundir": "rundir_events.ndjson", "session": "session_events.jsonl"}
    files["daemon"] = "daemon_events.ndjson"
    others: list[Any] = [Fact("s", _Rung(), "k")] if of != "bells" else []
    for name, file in files.items():
        if name != of:
            others.append(find_model(name).decode((golden / file).read_bytes().split(b"\n")[0]))
    return [{}, {"runId": "r-1"}, None, "RunStarted", b"{}", 5, object(), [], *others]


@pytest.mark.parametrize("name", ["engine", "rundir", "session", "daemon", "bells"])
def test_what_is_not_an_event_of_the_model_is_refused(name: str, golden: Path) -> None:
    with runstate.open("memory:", _Bells() if name == "bells" else name) as store:
        for wrong in wrong_events(golden, name):
            with pytest.raises(InvalidEvent):
                store.append_event(wrong)
            with pytest.raises(InvalidEvent) as refused:
                store.append_events([wrong])
            assert refused.value.details["index"] == 0
        assert store.log.streams() == []


def test_the_refusal_of_a_dict_says_how_json_is_appended() -> None:
    with runstate.open("memory:") as store, pytest.raises(InvalidEvent, match=r"dict.*'engine'.*model\.parse"):
        store.append_event({"runId": "r-1"})  # type: ignore[arg-type]


@pytest.mark.parametrize("stream", [None, 5, b"r-1"], ids=repr)
def test_a_stream_id_that_is_not_text_is_refused(log_url: str, stream: Any) -> None:
    with runstate.open(log_url, "engine") as store:
        for call in (store.fetch_events, store.get_snapshot, store.project_snapshot, store.delete_stream):
            with pytest.raises(InvalidStream):
                call(stream)


def test_an_event_of_another_tenant_is_refused(log_url: str, write: Write) -> None:
    other = msgspec.structs.replace(write("RunCompleted"), tenant_id="somebody-else")
    with runstate.open(log_url, "engine") as store:
        store.append_event(write("RunStarted"))
        for events in ([other], [write("Note"), other], [write("RunStarted", run="r-2"), other]):
            with pytest.raises(TenantMismatch, match=r"'somebody-else'.*Use another stream id"):
                store.append_events(events)
        assert [info.stream for info in store.log.streams()] == ["r-1"]
        assert [event.run_seq for event in store.fetch_events("r-1")] == [1]
        # A store that has not used the stream before finds out as well.
        with pytest.raises(TenantMismatch):
            runstate.Store(store.log, store.model).append_event(other)


def test_one_append_of_two_tenants_is_refused(log_url: str, write: Write) -> None:
    other = msgspec.structs.replace(write("RunCompleted"), tenant_id="somebody-else")
    with runstate.open(log_url, "engine") as store:
        with pytest.raises(TenantMismatch):
            store.append_events([write("RunStarted"), other])
        assert store.log.stream("r-1") is None


def test_a_run_that_another_tenant_has_begun_again_takes_its_events(log_url: str, write: Write) -> None:
    other = msgspec.structs.replace(write("RunStarted"), tenant_id="somebody-else")
    with runstate.open(log_url, "engine") as store:
        store.append_event(write("RunStarted"))
        store.log.delete_stream("r-1")
        assert store.append_event(other).seq == 1
