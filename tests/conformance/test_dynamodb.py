"""The kit on moto's server, and what is DynamoDB's own: limits, throttling, lost answers, other people's items."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import boto3
import pytest
from hypothesis import settings
from tests.dynamodb_proxy import Proxy, proxy, times
from tests.dynamodb_server import region, server_endpoint, url_at, url_on

from runstate.conformance import DurableLogConformance, LogConformance, MultiProcessLogConformance, Opener
from runstate.conformance.claims.tombstones import tombstone_of
from runstate.conformance.history import how_default
from runstate.conformance.notes import as_held, followed, keys, note, notes, numbered, snapshot, stored
from runstate.conformance.threads import race_all
from runstate.errors import (
    AppendOutcomeUnknown,
    EventTooLarge,
    InvalidUrl,
    LogBusy,
    LogDamaged,
    LogFailed,
    LogNotFound,
    LogTooNew,
    NotALog,
    StreamDeleted,
    StreamNotFound,
)
from runstate.logs.blob_collection import BlobCollectingLog
from runstate.logs.dynamodb import deletion, feed, items, repair
from runstate.logs.dynamodb.clock import ServerClock
from runstate.logs.dynamodb.table import Item, decoded, encoded, encoded_key
from runstate.logs.log import EventLog, StoredSnapshot
from runstate.logs.registry import open_log
from runstate.models.canonical import digest


class TestDynamoLog(LogConformance, DurableLogConformance, MultiProcessLogConformance):
    # Moto keeps nothing on disk, and answers slowly: a kill costs a second. More of them: RUNSTATE_KILL_ROUNDS.
    kill_rounds: ClassVar[int] = int(os.environ.get("RUNSTATE_KILL_ROUNDS", "5"))
    share = 1.0 if "RUNSTATE_KILL_ROUNDS" in os.environ else 0.15
    histories = settings(how_default, max_examples=8, stateful_step_count=25)

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return Opener(url_at(tmp_path))


class Console:
    """Somebody else on the same table, as in the AWS console."""

    def __init__(self, url: str) -> None:
        self.table = url.removeprefix("dynamodb://").partition("?")[0]
        self.client = boto3.client("dynamodb", region_name=region, endpoint_url=server_endpoint())

    def items(self, pk: str = "", sk: str = "") -> list[Item]:
        """All items whose `pk` and `sk` begin so."""
        found = self.client.scan(TableName=self.table, ConsistentRead=True)["Items"]
        plain = sorted(map(decoded, found), key=lambda item: (item["pk"], item["sk"]))
        return [item for item in plain if item["pk"].startswith(pk) and item["sk"].startswith(sk)]

    def put(self, item: Item) -> None:
        self.client.put_item(TableName=self.table, Item=encoded(item))

    def delete(self, item: Item) -> None:
        self.client.delete_item(TableName=self.table, Key=encoded_key((item["pk"], item["sk"])))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_at(tmp_path)


@pytest.fixture
def log(url: str) -> Iterator[EventLog]:
    with open_log(url) as opened:
        yield opened


@pytest.fixture
def console(url: str) -> Iterator[Console]:
    made = Console(url)
    yield made
    made.client.close()


@pytest.fixture
def spoiled(log: EventLog) -> Iterator[Proxy]:
    with proxy(server_endpoint()) as made:
        yield made


@pytest.fixture
def far(spoiled: Proxy, tmp_path: Path) -> Iterator[EventLog]:
    """The same log, through the proxy."""
    with open_log(url_on(spoiled.endpoint, tmp_path)) as opened:
        spoiled.seen.clear()
        yield opened


# --- at once -------------------------------------------------------------------------------------------


def test_one_key_from_32_threads_is_one_event_and_32_equal_answers(log: EventLog) -> None:
    answers = race_all([partial(log.append, "s", notes("a"))] * 32)
    assert len({(r.seq, r.event_id, r.persisted_at) for (r,) in answers}) == 1
    assert [r.persisted for (r,) in answers].count(True) == 1
    assert len(stored(log, "s")) == 1
    assert list(log.verify()) == []


def test_followers_at_once_are_shown_one_order(log: EventLog) -> None:
    for number in range(60):
        log.append(f"s{number:02d}", notes("a", "b"))
    pages = race_all([partial(followed, log, page=7)] * 4)
    assert len(pages[0].records) == 120
    assert all(page == pages[0] for page in pages)


def test_readers_that_found_different_marks_give_no_place_twice(log: EventLog, spoiled: Proxy, far: EventLog) -> None:
    log.append("a", notes("a"))
    others = iter([True])

    def another_reader_first(operation: str, request: dict[str, Any]) -> None:
        if operation == "TransactWriteItems" and next(others, False):
            log.append("b", numbered(5))
            table = log._table  # type: ignore[attr-defined]
            (mark,) = [mark for mark in feed._fresh(table) if mark.stream == "b"]
            table.transact(feed._entering(table, 0, [mark], is_first=True))

    spoiled.fault = another_reader_first
    assert sorted(keys(followed(far, page=1).records)) == ["a", "k1", "k2", "k3", "k4", "k5"]
    assert list(log.verify()) == []


def test_a_stream_that_never_rests_is_in_the_feed_all_the_same(log: EventLog, spoiled: Proxy, far: EventLog) -> None:
    # Whenever the reader is about to take the marks away, the stream has moved on.
    log.append("s", notes("a"))
    turns = iter(range(3))

    def append_first(operation: str, request: dict[str, Any]) -> None:
        if operation == "TransactWriteItems" and (turn := next(turns, None)) is not None:
            log.append("s", notes(f"n{turn}"))

    spoiled.fault = append_first
    seen = followed(far)
    spoiled.fault = lambda operation, request: None
    assert keys(seen.records + followed(far, seen.next).records) == ["a", "n0", "n1", "n2"]
    assert list(log.verify()) == []


# --- throttled, and cut off ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", ["ThrottlingException", "ProvisionedThroughputExceededException", "TransactionConflict"]
)
def test_an_append_that_is_throttled_is_tried_again_with_jitter(
    spoiled: Proxy, far: EventLog, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("runstate.logs.dynamodb.table.time.sleep", pauses.append)
    spoiled.fault = times(6, "TransactWriteItems", code)
    assert far.append("s", notes("a"))[0].persisted
    assert spoiled.seen.count("TransactWriteItems") == 7
    assert len(set(pauses)) == 6
    assert all(0 <= pause < 0.01 * 2**attempt for attempt, pause in enumerate(pauses))


def test_reads_that_are_throttled_are_tried_again(log: EventLog, spoiled: Proxy, far: EventLog) -> None:
    log.append("s", notes("a"))
    for operation in ("GetItem", "Query"):
        spoiled.fault = times(2, operation, "ThrottlingException")
        assert keys(far.read("s")) == ["a"]
    spoiled.fault = times(2, "BatchGetItem", "ThrottlingException")
    assert [info.stream for info in far.streams()] == ["s"]


def test_an_append_that_is_throttled_for_too_long_is_busy_and_not_there(
    log: EventLog, spoiled: Proxy, tmp_path: Path
) -> None:
    with open_log(f"{url_on(spoiled.endpoint, tmp_path)}&busy_timeout_s=0.2") as far:
        spoiled.fault = times(1_000_000, "TransactWriteItems", "ThrottlingException")
        with pytest.raises(LogBusy):
            far.append("s", notes("a"))
    assert log.stream("s") is None


def test_an_append_whose_answer_is_lost_is_told_as_its_own(log: EventLog, spoiled: Proxy, far: EventLog) -> None:
    spoiled.fault = times(1, "TransactWriteItems", "drop")
    first, second, again = far.append("s", [*notes("a", "b"), note("a")], expected_seq=0)
    assert [(r.seq, r.persisted, r.idempotent) for r in (first, second)] == [(1, True, False), (2, True, False)]
    assert (again.seq, again.persisted, again.idempotent) == (1, False, True)
    assert keys(stored(log, "s")) == ["a", "b"]
    assert far.append("s", notes("a"))[0].idempotent


def test_an_append_that_gets_no_answer_at_all_leaves_the_outcome_open(
    log: EventLog, spoiled: Proxy, tmp_path: Path
) -> None:
    with open_log(f"{url_on(spoiled.endpoint, tmp_path)}&busy_timeout_s=0.2") as far:
        spoiled.fault = lambda operation, request: "drop" if operation == "TransactWriteItems" else None
        with pytest.raises(AppendOutcomeUnknown):
            far.append("s", notes("a"))
    assert keys(stored(log, "s")) == ["a"]
    assert log.append("s", notes("a"))[0].idempotent


def test_a_lost_answer_of_adopt_and_delete_is_no_second_deed(log: EventLog, spoiled: Proxy, far: EventLog) -> None:
    held = as_held("s", numbered(4))
    spoiled.fault = times(1, "TransactWriteItems", "drop")
    assert far.adopt("s", held) == 4
    spoiled.fault = times(1, "TransactWriteItems", "drop")
    far.delete_stream("s", expected_seq=4)
    assert log.stream("s") is None


def test_a_lost_answer_of_a_deletion_leaves_the_tombstone(log: EventLog, spoiled: Proxy, far: EventLog) -> None:
    log.append("s", notes("a", "b"))
    spoiled.fault = times(1, "TransactWriteItems", "drop")
    far.delete_stream("s", expected_seq=2, tombstone=tombstone_of("s"))
    assert (log.stream("s"), log.tombstone("s")) == (None, tombstone_of("s"))


def test_a_lost_answer_of_forgetting_a_tombstone_is_no_error(log: EventLog, spoiled: Proxy, far: EventLog) -> None:
    log.append("s", notes("a", "b"))
    log.delete_stream("s", tombstone=tombstone_of("s"))
    spoiled.fault = times(1, "TransactWriteItems", "drop")
    far.delete_stream("s")
    assert log.tombstone("s") is None


@pytest.mark.parametrize("adopts", [False, True], ids=["append", "adopt"])
def test_a_stream_that_is_deleted_between_the_look_up_and_the_write_is_not_begun_again_by_an_append(
    log: EventLog, spoiled: Proxy, far: EventLog, adopts: bool
) -> None:
    held = as_held("s", notes("a", "b"))

    def begin_and_delete(operation: str, request: Any) -> None:
        if operation == "TransactWriteItems":
            spoiled.fault = lambda operation, request: None
            log.append("s", notes("a", "b"))
            log.delete_stream("s", tombstone=tombstone_of("s"))

    spoiled.fault = begin_and_delete
    if adopts:
        assert far.adopt("s", held, model="notes") == 2
        assert (stored(log, "s"), log.tombstone("s")) == (held, None)
    else:
        with pytest.raises(StreamDeleted):
            far.append("s", notes("c"))
        assert (log.stream("s"), log.tombstone("s")) == (None, tombstone_of("s"))
    assert list(log.verify()) == []


# --- limits --------------------------------------------------------------------------------------------


def test_an_append_up_to_the_limit_is_one_transaction_and_more_is_refused_whole(
    log: EventLog, spoiled: Proxy, far: EventLog
) -> None:
    size = items.page_bytes_max - 1000
    fits = [note(f"k{n}", "x" * size) for n in range(items.append_bytes_max // items.page_bytes_max)]
    spoiled.fault = lambda operation, request: None
    far.append("s", fits)
    assert spoiled.seen.count("TransactWriteItems") == 1
    with pytest.raises(EventTooLarge, match="in parts"):
        far.append("t", [*fits, note("more", "x" * size)])
    assert len(stored(log, "s")) == len(fits)
    assert log.stream("t") is None
    assert list(log.verify()) == []


def test_an_event_that_fits_no_item_is_refused_and_says_what_to_do(log: EventLog) -> None:
    with pytest.raises(EventTooLarge, match="blob"):
        log.append("s", [note("a"), note("b", "x" * 400_000)])
    assert log.stream("s") is None
    data = b"x" * 1_000_000
    assert log.get_blob(log.put_blob(data)) == data


def test_a_snapshot_that_fits_no_item_is_kept_in_parts(log: EventLog, console: Console) -> None:
    log.append("s", numbered(3))
    large = [
        StoredSnapshot("notes", 1, seq, digest(body), body) for seq, body in ((2, b"x" * 900_000), (3, b"y" * 800_000))
    ]
    for snap in large:
        log.save_snapshot("s", snap)
        assert log.load_snapshot("s", "notes") == snap
    log.save_snapshot("s", large[0])
    assert log.load_snapshot("s", "notes") == large[1]
    assert len(console.items(sk="p")) == 3, "the older one's parts are gone"
    assert list(log.verify()) == []


@pytest.mark.parametrize("name", ["model", "version", "seq", "digest", "body"])
@pytest.mark.parametrize("value", [None, "", "other"])
def test_a_snapshot_that_was_changed_by_hand_is_found_and_replaced(
    log: EventLog, console: Console, name: str, value: str | None
) -> None:
    log.append("s", numbered(3))
    good = snapshot(3)
    log.save_snapshot("s", good)
    [item] = [item for item in console.items(sk="s") if item.get("digest") == good.digest]
    console.put({key: kept for key, kept in item.items() if key != name} | ({} if value is None else {name: value}))
    found = log.load_snapshot("s", good.model)
    assert found is not None
    assert not found.is_intact
    assert [finding.code for finding in log.verify("s")] == ["snapshot.digest_mismatch"]
    log.save_snapshot("s", good)
    assert log.load_snapshot("s", good.model) == good
    assert not list(log.verify("s"))


def test_keys_that_a_killed_writer_left_unwritten_are_known(
    log: EventLog, url: str, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("runstate.logs.dynamodb.appends.write_keys", lambda table, head: None)
        log.append("s", numbered(200))
    assert console.items(sk="k") == []
    found = log.find("s", "k150")
    assert found is not None
    assert found.seq == 150
    assert list(log.verify()) == []
    with open_log(url) as other:
        again = other.append("s", [note("k7", "other"), note("new")])
    assert [(r.seq, r.idempotent, r.mismatch) for r in again] == [(7, True, True), (201, False, False)]
    assert len(console.items(sk="k")) == 201
    assert list(log.verify()) == []


# --- deletion ------------------------------------------------------------------------------------------


def test_a_deletion_that_was_interrupted_is_whole_at_once_and_finished_by_the_next_to_open(
    log: EventLog, url: str, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append("s", numbered(150))
    log.save_snapshot("s", snapshot(3))
    log.append("t", notes("b"))
    with monkeypatch.context() as patched:
        patched.setattr(deletion, "collect", lambda table: None)
        log.delete_stream("s")
    assert console.items(sk="e0"), "its events are still in the table"
    assert (log.stream("s"), log.read("s"), list(log.lines("s"))) == (None, [], [])
    assert (log.find("s", "k1"), log.load_snapshot("s", "notes")) == (None, None)
    assert keys(followed(log).records) == ["b"]
    assert list(log.verify()) == []
    assert log.append("s", notes("k1"))[0].seq == 1
    open_log(url).close()
    assert len(console.items(sk="e0")) == 2
    assert console.items("garbage") == []
    assert keys(followed(log).records) == ["b", "k1"]
    assert list(log.verify()) == []


def test_an_append_that_races_a_deletion_is_in_no_stream_that_was_deleted(log: EventLog) -> None:
    def delete(_: int) -> None:
        try:
            log.delete_stream("s")
        except StreamNotFound:
            return

    with ThreadPoolExecutor(4) as pool:
        writes = [pool.submit(log.append, "s", notes(f"k{number}")) for number in range(20)]
        list(pool.map(delete, range(5)))
    assert all(write.result()[0].persisted for write in writes)
    records = stored(log, "s")
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    assert list(log.verify()) == []


# --- what verify finds ---------------------------------------------------------------------------------


def _edit(sk: str, **values: Any) -> Any:
    def change(console: Console, pk: str = "") -> None:
        item = console.items(pk, sk)[-1]
        console.put(item | values)

    return change


def _remove(sk: str, pk: str = "", place: int = -1) -> Any:
    return lambda console: console.delete(console.items(pk, sk)[place])


changes = {
    "body": (
        lambda c: c.put((p := c.items(sk="e0")[1]) | {"events": p["events"].replace(b"k2", b"k9")}),
        "log.event_changed",
        2,
    ),
    "garbled": (_edit("e0", events=b"\xff"), "log.event_changed", 3),
    "page": (_remove("e0", place=1), "log.events_missing", 2),
    "last page": (_remove("e0"), "log.events_missing", 3),
    "key": (_remove("k", place=0), "dynamodb.key_missing", 0),
    "wrong key": (_edit("k", seq=1, page=7), "dynamodb.key_changed", 0),
    "stray key": (lambda c: c.put(c.items(sk="k")[0] | {"sk": "k" + "0" * 64}), "dynamodb.key_stray", None),
    "head": (_edit("head", last_seq=2), "dynamodb.head_changed", None),
    "no head": (_remove("head"), "dynamodb.head_missing", None),
    "directory": (_remove("s", pk="streams"), "dynamodb.not_listed", None),
    "feed": (_remove("0", pk="feed"), "dynamodb.feed_missing", 3),
    "feed entry": (lambda c: c.put(c.items("feed")[0] | {"through": 2}), "dynamodb.feed_changed", None),
    "snapshot": (
        lambda c: c.put(c.items(sk="s" + digest(b"notes"))[0] | {"body": b"x"}),
        "snapshot.digest_mismatch",
        3,
    ),
    "blob": (lambda c: c.put(c.items("blob:")[0] | {"data": b"x"}), "blob.digest_mismatch", None),
    "blob part": (lambda c: c.delete(c.items("blob:")[0]), "blob.digest_mismatch", None),
}


@pytest.mark.parametrize("name", changes)
def test_what_was_changed_by_hand_is_found(log: EventLog, console: Console, name: str) -> None:
    change, code, seq = changes[name]
    for number in range(1, 4):
        log.append("s", notes(f"k{number}"))
        followed(log)
    log.save_snapshot("s", snapshot(3))
    log.put_blob(b"data")
    assert list(log.verify()) == []
    change(console)
    found = [(finding.code, finding.stream, finding.seq) for finding in log.verify()]
    if seq == 0:  # Which one it is depends on a digest.
        assert [(c, s) for c, s, n in found if n in (1, 2, 3)] == [(code, "s")]
    else:
        assert (code, None if code.startswith("blob") or name == "feed entry" else "s", seq) in found


@pytest.mark.parametrize("name", ["blob", "blob part"])
def test_a_blob_that_was_changed_is_replaced_by_putting_it_again(log: EventLog, console: Console, name: str) -> None:
    ref = log.put_blob(b"data")
    changes[name][0](console)
    assert log.put_blob(b"data") == ref
    assert log.get_blob(ref) == b"data"
    assert list(log.verify()) == []


@pytest.mark.parametrize(
    ("name", "salvage", "left"),
    [
        ("body", False, [1]),
        ("body", True, [1, 3]),
        ("wrong key", False, [1, 2, 3]),
        ("no head", False, [1, 2, 3]),
        ("directory", False, [1, 2, 3]),
        ("mark", False, [1, 2, 3]),
    ],
)
def test_a_stream_that_was_changed_by_hand_is_repaired_as_announced(
    log: EventLog, console: Console, name: str, salvage: bool, left: list[int]
) -> None:
    for number in range(1, 4):
        log.append("s", notes(f"k{number}"))
        if number < 3 or name != "mark":
            followed(log)
    right = stored(log, "s")
    (changes[name][0] if name != "mark" else lambda c: c.put(c.items("mark")[0] | {"stream": "t"}))(console)
    log.append("t", notes("a"))
    before = console.items()
    would = log.repair("s", dry_run=True, salvage=salvage)
    assert console.items() == before
    assert log.repair("s", salvage=salvage) == would != []
    assert stored(log, "s") == [record for record in right if record.seq in left]
    assert {finding.severity for finding in log.verify()} <= {"warning"}
    assert log.repair("s", salvage=salvage) == []
    kept = stored(log, "s")
    assert log.append("s", notes("new"))[0].seq == kept[-1].seq + 1
    assert [record for record in followed(log).records if record.stream == "s"] == stored(log, "s")
    assert log.append("s", notes(kept[0].key))[0].idempotent


def test_no_read_gives_an_event_that_was_changed_by_hand(log: EventLog, console: Console) -> None:
    log.append("s", notes("k1", "k2", "k3"))
    (page,) = console.items(sk="e0")
    console.put(page | {"events": page["events"].replace(b"k2", b"k9")})
    assert keys(log.read("s", limit=1)) == keys(log.feed().records) == ["k1"]
    assert keys(log.read("s", after_seq=2)) == ["k3"]
    asks: list[Callable[[], object]] = [
        lambda: log.read("s"),
        lambda: list(log.lines("s")),
        lambda: log.find("s", "k2"),
        lambda: log.append("s", notes("k2")),
        lambda: log.feed(after=log.feed().next),
    ]
    for ask in asks:
        with pytest.raises(LogDamaged, match="Event 2 of 's'"):
            ask()


def test_a_head_that_lacks_an_attribute_costs_its_own_stream_alone(log: EventLog, console: Console) -> None:
    log.append("s", notes("a"))
    log.append("t", notes("a"))
    (head,) = console.items("head:s")
    console.put({name: value for name, value in head.items() if name != "events"})
    assert [info.stream for info in log.streams()] == ["s", "t"]
    with pytest.raises(LogDamaged, match="head:s"):
        log.read("s")
    assert keys(log.read("t")) == ["a"]


def test_what_a_repair_sets_aside_is_listed_until_it_is_removed(log: EventLog, console: Console, url: str) -> None:
    log.append("s", notes("a", "b", "c"))
    _edit("e0", events=b"\xff")(console)
    log.append("t", notes("a"))
    log.repair("s")
    (warning,) = log.verify()
    assert (warning.code, warning.severity, warning.stream) == ("log.set_aside", "warning", "s")
    (note,) = console.items("set_aside")
    assert [item["events"] for item in console.items(note["sk"], "e")] == [b"\xff"]
    console.delete(note)
    console.put(note | {"pk": "garbage"})
    with open_log(url) as again:
        assert list(again.verify()) == []
    assert console.items(note["sk"]) == []


def test_a_blob_that_a_set_aside_event_refers_to_is_not_collected(log: EventLog, console: Console) -> None:
    assert isinstance(log, BlobCollectingLog)
    ref = log.put_blob(b"evidence")
    log.append("s", notes("first"))
    log.append("s", [note("second", ref)])
    page = console.items(sk="e0")[0]
    console.put(page | {"events": page["events"].replace(b"first", b"other")})
    log.repair("s")
    assert log.stream("s") is None
    assert log.collect_blobs(grace_s=0).removed == []


def test_a_repair_that_is_interrupted_changes_nothing_and_is_listed(
    log: EventLog, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append("s", numbered(3))
    _edit("k", seq=1, page=7)(console)
    damage = [finding.code for finding in log.verify("s")]
    with monkeypatch.context() as patch:
        patch.setattr("runstate.logs.dynamodb.repair._replace", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            log.repair("s")
    assert [finding.code for finding in log.verify("s")] == damage
    assert "log.set_aside" in [finding.code for finding in log.verify()]
    assert log.repair("s")
    assert {finding.severity for finding in log.verify()} == {"warning"}


def test_a_repair_gives_way_to_an_append_that_is_faster(
    log: EventLog, url: str, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append("s", numbered(3))
    _remove("k", place=0)(console)
    replace = repair._replace

    def after_an_append(*arguments: Any) -> Any:
        patch.undo()
        with open_log(url) as other:
            other.append("s", notes("late"))
        return replace(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(repair, "_replace", after_an_append)
        assert log.repair("s")
    assert keys(stored(log, "s")) == ["k1", "k2", "k3", "late"]


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_tombstone_that_was_changed_by_hand_is_not_believed_and_can_be_forgotten(
    log: EventLog, console: Console
) -> None:
    log.append("s", notes("a", "b"))
    log.delete_stream("s", tombstone=tombstone_of("s"))
    (item,) = console.items("head:")
    console.put({**item, "archive": "archive:/elsewhere"})
    for ask in (lambda: log.tombstone("s"), lambda: log.append("s", notes("c"))):
        with pytest.raises(LogDamaged, match="tombstone"):
            ask()
    log.delete_stream("s")
    assert log.append("s", notes("c"))[0].seq == 1


def test_events_that_are_not_marked_for_the_feed_are_found(log: EventLog, console: Console) -> None:
    log.append("s", notes("a"))
    console.delete(console.items("mark")[0])
    assert [(f.code, f.stream, f.seq) for f in log.verify()] == [("dynamodb.feed_missing", "s", 1)]


def test_events_whose_head_and_listing_are_gone_are_found(log: EventLog, console: Console) -> None:
    log.append("s", notes("a"))
    followed(log)
    console.delete(console.items("head:")[0])
    console.delete(console.items("streams")[0])
    assert [(f.code, f.stream) for f in log.verify()] == [("dynamodb.orphan_events", "s")]


def test_an_append_never_writes_over_what_a_changed_head_denies(log: EventLog, console: Console) -> None:
    log.append("s", notes("a", "b"))
    (head,) = console.items("head:")
    before = console.items(sk="e0")
    console.put(items.Head("s", head["id"], head["version"], 1, 1, "", "", "").item())
    with pytest.raises(LogDamaged):
        log.append("s", notes("c"))
    assert console.items(sk="e0") == before


# --- what is refused -----------------------------------------------------------------------------------


def test_a_log_that_is_not_there_is_not_made_unless_asked_for(url: str) -> None:
    with pytest.raises(LogNotFound):
        open_log(url, create=False)
    open_log(url).close()
    open_log(url, create=False).close()


def test_a_table_that_an_operator_has_made_becomes_a_log(url: str, console: Console) -> None:
    _make(console, ("pk", "S"), ("sk", "S"))
    with pytest.raises(LogNotFound):
        open_log(url, create=False)
    with open_log(url) as log:
        assert log.append("s", notes("a"))[0].seq == 1


@pytest.mark.parametrize("attributes", [[("id", "S")], [("pk", "S"), ("sk", "N")], [("pk", "S"), ("sk", "S")]])
def test_a_table_of_somebody_else_is_left_alone(url: str, console: Console, attributes: list[tuple[str, str]]) -> None:
    _make(console, *attributes)
    theirs = {name: "1" if kind == "S" else 1 for name, kind in attributes}
    console.put(theirs)
    with pytest.raises(NotALog):
        open_log(url)
    assert console.client.scan(TableName=console.table)["Items"] == [encoded(theirs)]


def _make(console: Console, *attributes: tuple[str, str]) -> None:
    console.client.create_table(
        TableName=console.table,
        KeySchema=[
            {"AttributeName": name, "KeyType": kind}
            for (name, _), kind in zip(attributes, ("HASH", "RANGE"), strict=False)
        ],
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": kind} for name, kind in attributes],
        BillingMode="PAY_PER_REQUEST",
    )


def test_a_newer_format_is_refused(log: EventLog, url: str, console: Console) -> None:
    (marked,) = console.items("runstate", "format")
    console.put(marked | {"version": 99})
    with pytest.raises(LogTooNew):
        open_log(url)


def test_a_table_of_version_1_is_read_and_its_streams_record_no_model(
    log: EventLog, url: str, console: Console
) -> None:
    log.append("s", notes("a"))
    log.close()
    (marked,), (head,) = console.items("runstate", "format"), console.items("head:")
    console.put(marked | {"version": 1})
    fields = {name: head[name] for name in items.Head.__struct_fields__ if name in head and name != "model"}
    console.put(old := items.Head(**fields).item())
    assert "model" not in old
    with open_log(url) as again:
        assert console.items("runstate", "format")[0]["version"] == 3
        assert [info.model for info in again.streams()] == [found.model for found in again.heads()] == [""]
        assert again.append("s", notes("a"))[0].idempotent
        assert console.items("head:") == [old]
        again.append("s", notes("b"))
        again.append("s", [note("c", model="other")])
        assert [info.model for info in again.streams()] == [found.model for found in again.heads()] == [""]
        assert list(again.verify()) == []


def test_a_table_that_is_gone_is_named(log: EventLog, console: Console) -> None:
    console.client.delete_table(TableName=console.table)
    with pytest.raises(LogNotFound, match=console.table):
        log.append("s", notes("a"))


@pytest.mark.parametrize("code", ["AccessDeniedException", "UnrecognizedClientException", "ExpiredTokenException"])
def test_a_missing_privilege_is_named_at_once(spoiled: Proxy, tmp_path: Path, far: EventLog, code: str) -> None:
    spoiled.fault = lambda operation, request: code
    with pytest.raises(LogFailed, match=code):
        open_log(url_on(spoiled.endpoint, tmp_path))
    with pytest.raises(LogFailed, match="privileges"):
        far.append("s", notes("a"))
    assert len(spoiled.seen) == 2


def test_a_service_that_is_not_there_is_an_error_at_once(tmp_path: Path) -> None:
    server_endpoint()
    began = time.monotonic()
    with pytest.raises(LogFailed, match="cannot be reached"):
        open_log(url_on("http://127.0.0.1:1", tmp_path))
    assert time.monotonic() - began < 5


def test_missing_credentials_are_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(LogFailed, match="credentials"):
        open_log(url)


def test_reads_never_go_through_the_whole_table(log: EventLog, spoiled: Proxy, far: EventLog) -> None:
    log.append("s", numbered(150))
    for call in (
        lambda: far.read("s"),
        lambda: list(far.lines("s")),
        lambda: far.find("s", "k7"),
        lambda: far.feed(),
        lambda: far.streams(),
        lambda: list(far.heads()),
        lambda: list(far.verify()),
    ):
        call()
    assert set(spoiled.seen) <= {"GetItem", "BatchGetItem", "Query", "TransactWriteItems"}


@pytest.mark.parametrize(
    "bad",
    [
        "dynamodb:runs",
        "dynamodb://",
        "dynamodb://ab",
        "dynamodb://runs/more",
        "dynamodb://runs#part",
        "dynamodb://key:secret@runs",
        "dynamodb://runs?unknown=secret",
        "dynamodb://runs?region=a&region=secret",
        "dynamodb://runs?region=EU%20Central",
        "dynamodb://runs?endpoint=localhost:8000",
        "dynamodb://runs?endpoint=ftp://h",
        "dynamodb://runs?endpoint=http://me:secret@h",
        "dynamodb://runs?endpoint=http://h/secret",
        "dynamodb://runs?endpoint=http://h:99999",
        "dynamodb://runs?busy_timeout_s=-1",
        "dynamodb://runs?busy_timeout_s=",
        "dynamodb://runs?region",
        "dynamodb://[runs",
    ],
)
def test_a_url_that_makes_no_sense_is_refused_and_tells_no_secret(bad: str) -> None:
    with pytest.raises(InvalidUrl) as caught:
        open_log(bad)
    assert "secret" not in str(caught.value)


# --- the clock ------------------------------------------------------------------------------------------------------


def test_a_clock_that_differs_from_the_services_refuses_new_events_and_answers_retries(log: Any) -> None:
    log.append("s", notes("a"))
    clock = log._table.clock
    for seconds in (60, -60):
        clock.time = lambda: time.time() + seconds  # noqa: B023
        clock._last_date = ""
        side = "ahead of" if seconds > 0 else "behind"
        with pytest.raises(LogFailed, match=f"s {side} DynamoDB's"):
            log.append("s", notes("b"))
        assert log.append("s", notes("a"))[0].idempotent
    clock.time, clock._last_date = time.time, ""
    assert log.append("s", notes("b"))[0].seq == 2


def test_an_answer_within_the_same_seconds_is_no_skew() -> None:
    clock = ServerClock()
    clock.time = lambda: 1_000_000_000.9
    clock.note("Sun, 09 Sep 2001 01:46:40 GMT", 1_000_000_000.1)  # 1,000,000,000 seconds.
    clock.check()
    clock.note("no time at all", 0.0)
    clock.check()


def test_a_blob_that_is_put_again_counts_as_new(log: EventLog, console: Console) -> None:
    assert isinstance(log, BlobCollectingLog)
    ref = log.put_blob(b"data")
    (entry,) = console.items("blobs")
    console.put(entry | {"put_ms": 0})
    log.put_blob(b"data")
    assert log.collect_blobs().recent == 1
    console.put(entry | {"put_ms": 0})
    assert log.collect_blobs().removed == [ref]
    assert console.items("blob") == []


def test_parts_of_a_removed_blob_are_not_those_of_one_that_was_put_again(log: EventLog, console: Console) -> None:
    assert isinstance(log, BlobCollectingLog)
    ref = log.put_blob(b"data")
    (old,) = console.items("blob:")
    assert log.collect_blobs(grace_s=0).removed == [ref]
    log.put_blob(b"data")
    console.put({"pk": "garbage", "sk": old["pk"], "at": ""})  # As a collection leaves it that was interrupted.
    log.collect_blobs()
    assert log.get_blob(ref) == b"data"


def test_a_blob_of_version_2_is_read_and_collected(log: EventLog, console: Console) -> None:
    assert isinstance(log, BlobCollectingLog)
    ref = log.put_blob(b"data")
    (entry,), (part,) = console.items("blobs"), console.items("blob:")
    console.delete(part)
    console.put(part | {"pk": f"blob:{entry['sk']}"})
    console.put({name: entry[name] for name in ("pk", "sk", "parts", "bytes")})
    assert log.get_blob(ref) == b"data"
    assert log.collect_blobs(grace_s=0).recent == 1
    assert log.collect_blobs(grace_s=0).removed == [ref]
    assert console.items("blob") == []
