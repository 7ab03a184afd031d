"""The keyed chain: it is what docs/formats/seals.md says, fits every log, and follows nothing but the events."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.log_urls import take_no_events, url_at

from runstate.conformance.notes import as_held, note, notes, numbered, snapshot
from runstate.copying import copy_stream
from runstate.errors import InvalidSealKey, InvalidSeals, Truncated
from runstate.logs.keyed_seals import Seal, SealKey, check_seal, check_seals, decode_seals, encode_seals, seal_stream
from runstate.logs.log import EventLog, Record
from runstate.logs.memory import MemoryLog
from runstate.logs.registry import installed_schemes, open_log
from runstate.logs.wal import WalLog
from runstate.logs.wal.options import WalOptions

golden = json.loads((Path(__file__).parents[2] / "golden/seals.json").read_text())
key = SealKey(b"k" * 32)
schemes = [scheme for scheme in installed_schemes() if scheme not in take_no_events]
records = as_held("s", [note("a", "ü\u2028"), note("b"), note("c", "3")])


def held(*streams: list[Record]) -> MemoryLog:
    log = MemoryLog()
    for stream in streams:
        log.adopt(stream[0].stream, stream)
    return log


def sealed(log: EventLog, stream: str = "s", previous: Seal | None = None) -> Seal:
    seal = seal_stream(log, stream, key, previous)
    assert seal is not None
    return seal


def code_of(log: EventLog, seal: Seal) -> str | None:
    finding = check_seal(log, seal, key)
    return None if finding is None else finding.code


# --- the format ------------------------------------------------------------------------------------------------------


def prefixed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def test_the_seals_are_the_golden_ones() -> None:
    log = MemoryLog()
    for stream, members in golden["streams"].items():
        log.adopt(stream, [Record(stream=stream, **m | {"body": m["body"].encode()}) for m in members])
    golden_key = SealKey(golden["key"].encode())
    seals = [seal_stream(log, stream, golden_key) for stream in sorted(golden["streams"])]
    at = golden["sealed_at"]
    lines = encode_seals([msgspec.structs.replace(seal, sealed_at=at) for seal in seals if seal], golden_key)
    assert [line.decode() for line in lines] == golden["lines"]


def test_the_golden_seals_are_what_the_format_page_says() -> None:
    """The same steps again, with nothing but the standard library."""

    def mac(*parts: bytes) -> bytes:
        return hmac.new(secret, prefixed(*parts), hashlib.sha256).digest()

    secret = hmac.new(golden["key"].encode(), b"runstate seals 1 mac", hashlib.sha256).digest()
    names = ("event_id", "type", "key", "tenant", "emitted_at", "persisted_at", "body")
    for line, (stream, members) in zip(golden["lines"], sorted(golden["streams"].items()), strict=False):
        link = mac(b"stream", stream.encode())
        for m in members:
            link = mac(b"event", link, str(m["seq"]).encode(), *(m[name].encode() for name in names))
        assert json.loads(line)["mac"] == link.hex()
    *body, end = golden["lines"]
    assert json.loads(end)["mac"] == mac(b"file", *(line.encode() for line in body)).hex()
    key_id = hmac.new(golden["key"].encode(), b"runstate seals 1 id", hashlib.sha256).hexdigest()[:16]
    assert {json.loads(line)["keyId"] for line in golden["lines"]} == {key_id}


def test_a_short_key_is_refused() -> None:
    with pytest.raises(InvalidSealKey, match="at least 32 bytes"):
        SealKey(b"k" * 31)


# --- every log -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", schemes)
def test_sealed_events_of_every_log_are_found_unchanged(scheme: str, tmp_path: Path) -> None:
    with open_log(url_at(scheme, tmp_path / "log")) as log:
        log.append("s", numbered(5))
        first = sealed(log)
        assert (first.seq, first.events) == (5, 5)
        log.append("s", [note("later")])
        assert check_seal(log, first, key) is None


@pytest.mark.parametrize("scheme", schemes)
def test_a_seal_fits_a_verbatim_copy_in_every_log(scheme: str, tmp_path: Path) -> None:
    source = MemoryLog()
    source.append("s", numbered(5))
    with open_log(url_at(scheme, tmp_path / "log")) as target:
        copy_stream(source, target, "s")
        assert check_seal(target, sealed(source), key) is None


def test_a_continued_seal_is_the_one_of_the_whole_stream() -> None:
    log = held(records)
    first = sealed(log)
    log.append("s", numbered(2500))
    whole, continued = sealed(log), sealed(log, previous=first)
    assert msgspec.structs.replace(continued, sealed_at=whole.sealed_at) == whole
    assert whole.events == 2503


def test_a_continued_seal_does_not_cover_up_a_change_of_earlier_events() -> None:
    first = sealed(held(records))
    forged = held([msgspec.structs.replace(records[0], body=b"{}"), *records[1:]])
    forged.append("s", numbered(1))
    assert code_of(forged, sealed(forged, previous=first)) == "seal.changed"


def test_a_stream_without_events_gets_no_seal() -> None:
    assert seal_stream(MemoryLog(), "s", key) is None


# --- tampering -------------------------------------------------------------------------------------------------------

changed_members: list[tuple[str, Any]] = [
    ("event_id", "x"),
    ("type", "x"),
    ("key", "x"),
    ("tenant", "x"),
    ("emitted_at", "2026-11-15T09:30:00.001Z"),
    ("persisted_at", "2026-11-15T09:30:00.001Z"),
    ("body", b"{}"),
]


@pytest.mark.parametrize(("member", "value"), changed_members)
def test_a_change_of_any_member_of_an_event_is_found(member: str, value: Any) -> None:
    forged = [records[0], msgspec.structs.replace(records[1], **{member: value}), records[2]]
    assert code_of(held(forged), sealed(held(records))) == "seal.changed"


tampered: dict[str, tuple[Callable[[], list[list[Record]]], str]] = {
    "a text moved between two members": (
        lambda: [[msgspec.structs.replace(records[0], key="anoted", type=""), *records[1:]]],
        "seal.changed",
    ),
    "an event inserted": (lambda: [as_held("s", notes("a", "x", "b", "c"))], "seal.changed"),
    "an event removed from the middle": (lambda: [[records[0], records[2]]], "seal.changed"),
    "two events swapped": (lambda: [as_held("s", [note("b"), note("a", "ü\u2028"), note("c", "3")])], "seal.changed"),
    "the tail removed": (lambda: [records[:2]], "seal.truncated"),
    "the stream deleted": (lambda: [as_held("other", notes("a"))], "seal.deleted"),
    "the events of another stream": (lambda: [as_held("s", notes("p", "q", "r"))], "seal.changed"),
}


@pytest.mark.parametrize("how", tampered)
def test_tampering_is_found_and_named(how: str) -> None:
    streams, code = tampered[how]
    assert code_of(held(*streams()), sealed(held(records))) == code


def test_the_events_of_one_stream_do_not_pass_for_another() -> None:
    seal = sealed(held(records))
    renamed = [msgspec.structs.replace(record, stream="t") for record in records]
    assert code_of(held(renamed), msgspec.structs.replace(seal, stream="t")) == "seal.changed"


def test_streams_without_a_seal_are_counted() -> None:
    log = held(records, as_held("t", notes("a")), as_held("u", notes("a")))
    (finding,) = check_seals(log, [sealed(log)], key)
    assert (finding.code, finding.severity, finding.details) == (
        "seal.missing",
        "warning",
        {"streams": 2, "first": "t"},
    )


# --- compacted logs --------------------------------------------------------------------------------------------------


def compacted(directory: Path, stream: str = "s") -> WalLog:
    log = WalLog(directory)
    kept = snapshot(len(log.read(stream)), model="daemon")
    for _ in range(2):  # A checkpoint removes the entries before the previous one.
        log.checkpoint(stream, kept)
    return log


def test_a_compacted_stream_is_refused(tmp_path: Path) -> None:
    with WalLog(tmp_path / "wal") as log:
        log.append("s", numbered(3000))
    with compacted(tmp_path / "wal") as log, pytest.raises(Truncated):
        seal_stream(log, "s", key)


def test_a_seal_made_before_compaction_can_be_continued_but_not_checked(tmp_path: Path) -> None:
    with WalLog(tmp_path / "wal") as log:
        log.append("s", numbered(1000))
        first = sealed(log)
    with compacted(tmp_path / "wal") as log:
        log.append("s", [note("later")])
        second = sealed(log, previous=first)
        assert (second.seq, second.events) == (1001, 1001)
        assert code_of(log, second) == "seal.unchecked"


def test_a_log_that_archives_its_history_can_be_sealed_and_checked_after_compaction(tmp_path: Path) -> None:
    with WalLog(tmp_path / "wal", options=WalOptions(history="archive")) as log:
        log.append("s", numbered(1000))
        first = sealed(log)
        for _ in range(2):
            log.checkpoint("s", snapshot(1000, model="daemon"))
        assert check_seal(log, first, key) is None
        assert sealed(log).mac == first.mac


# --- the file --------------------------------------------------------------------------------------------------------

lines = [*encode_seals([sealed(held(records)), sealed(held(as_held("t", notes("a"))), "t")], key)]


def test_a_file_of_seals_is_read_back() -> None:
    assert [seal.stream for seal in decode_seals(lines, key)] == ["s", "t"]


def test_a_file_of_another_key_is_refused() -> None:
    with pytest.raises(InvalidSeals, match=f"with the key {key.id}, not with"):
        decode_seals(lines, SealKey(b"K" * 32))


def test_a_file_of_a_later_version_is_refused() -> None:
    with pytest.raises(InvalidSeals, match="version 2"):
        decode_seals([*lines[:-1], lines[-1].replace(b'"version":1', b'"version":2')], key)


changed_files = {
    "a seal removed": [lines[0], lines[2]],
    "a seal twice": [lines[0], *lines],
    "seals swapped": [lines[1], lines[0], lines[2]],
    "a time changed": [lines[0].replace(b'"sealedAt":"2', b'"sealedAt":"3'), *lines[1:]],
    "a seq lowered": [lines[0].replace(b'"seq":3', b'"seq":2'), *lines[1:]],
    "the count changed": [*lines[:2], lines[2].replace(b'"seals":2', b'"seals":1')],
    "a mac that is not ASCII": [*lines[:2], lines[2].replace(b'"mac":"', '"mac":"ü'.encode())],
    "the end cut off": lines[:2],
    "another file": [b'{"hello":1}'],
    "half a line": [*lines[:2], lines[2][:40]],
    "nothing": [],
}


@pytest.mark.parametrize("how", changed_files)
def test_a_changed_file_of_seals_is_refused(how: str) -> None:
    assert changed_files[how] != lines
    with pytest.raises(InvalidSeals):
        decode_seals(changed_files[how], key)
