"""Plain files into an event table: every line becomes an event or is quarantined with its place, exactly once."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.fleets import histories
from tests.pipeline.fleet_logs import event_lines, filled, local_snapshots
from tests.tables import new_table

from runstate.errors import LogNotFound
from runstate.models.registry import find_model
from runstate.pipeline.jobs import Written, ingest, read_view, write_table
from runstate.pipeline.source.file_lines import FileChanged, content_bytes_max
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.source.plain_files import Plan
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.spark.failures import PipelineFailed, readable
from runstate.pipeline.spark.shared_storage import marked
from runstate.pipeline.tables.event_table import open_event_table
from runstate.pipeline.tables.file_events import assembled
from runstate.pipeline.tables.file_progress import keep_plan, new_parts
from runstate.pipeline.tables.quarantine import quarantined as all_quarantined
from runstate.pipeline.tables.quarantine import reasons
from runstate.pipeline.tables.table import Table
from runstate.store import open as open_store

at = "2026-11-15T09:30:00.500Z"


def quarantined(table: Path) -> list[dict[str, Any]]:
    rows = list(all_quarantined(table))
    assert reasons(table) == Counter(row["code"] for row in rows)
    assert all(row["reason"] and row["url"] == f"files:{row['file']}" for row in rows)
    return rows


def by_place(rows: list[dict[str, Any]]) -> dict[tuple[str, int], str]:
    found = {(Path(row["file"]).name, row["line"]): row["code"] for row in rows}
    assert len(found) == len(rows)
    return found


def events(table: Path) -> list[tuple[str, int, bytes]]:
    origin = open_event_table(table)
    pieces = origin.pieces(origin.files("events"), Shard(), ["stream", "seq", "body"])
    return [(row["stream"], row["seq"], row["body"].encode()) for piece in pieces for row in piece.to_pylist()]


def snapshots(spark: SparkSession, table: Path) -> dict[str, tuple[int, bytes]]:
    rows = read_view(spark, f"table:{table}", "snapshots").collect()
    assert all(row["finding"] is None for row in rows)
    return {row["stream"]: (row["seq"], row["body"].encode()) for row in rows}


def stored_locally(model: str, lines: Iterable[bytes]) -> dict[str, tuple[int, bytes]]:
    with open_store("memory:", model, snapshot_every=0, on_alert=lambda alert: None) as store:
        for line in lines:
            store.append_event(store.model.parse(line))
        found = {head.stream: store.fresh_snapshot(head.stream) for head in store.log.heads()}
    return {stream: (snapshot.seq, snapshot.body) for stream, snapshot in found.items()}


def flat(by_stream: dict[str, list[bytes]]) -> list[bytes]:
    """All lines, their streams taking turns, as in a file that many runs have written to."""
    luck = random.Random(7)
    waiting = [list(lines) for lines in by_stream.values()]
    found = []
    while waiting:
        lines = luck.choice(waiting)
        found.append(lines.pop(0))
        waiting = [left for left in waiting if left]
    return found


def write(path: Path, lines: Iterable[bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def stored(model: str, line: bytes, seq: int) -> bytes:
    found = find_model(model)
    return found.draft(found.parse(line))[1].render(seq, at)


# --- every kind of damage -------------------------------------------------------------------------------------


def with_payload(line: bytes, payload: bytes) -> bytes:
    """The same event for another step, so that it is another event, with a payload as it stands."""
    members = msgspec.json.decode(line)
    members.pop("payload", None)
    return msgspec.json.encode(members)[:-1] + b',"payload":' + payload + b"}"


def damaged(whole: bytes, fresh: bytes) -> list[tuple[bytes, str | None]]:
    """Lines, each with the code that it must be quarantined with; None for those that only look damaged."""
    cases: list[tuple[bytes, str | None]] = [(whole[:size], "json.invalid") for size in range(1, len(whole))]
    cases += [
        (b"", "line.empty"),
        (b" \t", "line.empty"),
        (b"\r", "line.empty"),
        (b"\0" * 4096, "json.invalid"),
        (whole[:60] + b"\0" * 80 + whole[140:], "json.invalid"),
        (whole[:100] + whole, "json.invalid"),
        (whole + whole, "json.invalid"),
        (whole + b"\0", "json.invalid"),
        (with_payload(whole, b'{"x":"\xff\xfe"}'), "json.invalid"),
        (with_payload(whole, b'{"x":"\xc3"}'), "json.invalid"),
        (with_payload(whole, b'{"x":"a\0b"}'), "json.invalid"),
        (with_payload(whole, b'{"x":"\\ud800"}'), "json.invalid"),
        (with_payload(whole, b'{"x":' + b"[" * 1000 + b"]" * 1000 + b"}"), "json.invalid"),
        (with_payload(whole, b'{"x":1,"x":2}'), "json.invalid"),
        (with_payload(whole, b'{"x":NaN}'), "json.invalid"),
        (with_payload(whole, b'{"x":%d}' % 2**63), "json.invalid"),
        (b"\xef\xbb\xbf" + whole, "json.invalid"),
        (with_payload(whole, b'"no object"'), "event.invalid"),
        (b"null", "event.invalid"),
        (b"[]", "event.invalid"),
        (whole.replace(b'"planVersion":"1"', b'"planVersion":"3"'), "event.key_mismatch"),
        (with_payload(whole, b'{"x":"' + b"y" * 10_000_000 + b'"}'), "event.too_large"),
        (with_payload(fresh, '{"x":"\u2028\u2029\x85"}'.encode()), None),
    ]
    return cases


def flips(line: bytes) -> list[bytes]:
    """The line with one bit flipped, at each of its bytes."""
    luck = random.Random(11)
    return [line[:n] + bytes([line[n] ^ (1 << luck.randrange(8))]) + line[n + 1 :] for n in range(len(line))]


def test_every_line_is_an_event_or_is_quarantined_with_its_place_and_a_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    good = flat(histories("engine", seed=1, runs=4))
    extra = flat(histories("engine", seed=2, runs=1))
    cases = damaged(extra[0], extra[1])
    luck = random.Random(3)
    luck.shuffle(cases)
    lines: list[tuple[bytes, str | None]] = list(cases)
    for number, place in enumerate(sorted(luck.choices(range(len(cases)), k=len(good)), reverse=True)):
        # Good lines among the bad ones, in their own order, some with the line endings of another system.
        lines.insert(place, (good[len(good) - 1 - number] + b"\r" * (number % 2), None))
    first = write(tmp_path / "in/a.ndjson", [line for line, _ in lines])
    # The same run once more, with every single bit error: none of them may become another event.
    flipped = b"\n".join(flips(good[0]))
    second = tmp_path / "in/deep/b.jsonl"
    second.parent.mkdir()
    second.write_bytes(b"\xef\xbb\xbf" + extra[2] + b"\n" + flipped + b"\n" + good[3][:-9])
    write(tmp_path / "in/c.txt", [b"not to be read"])

    result = ingest(spark, f"files:{tmp_path}/in", tmp_path / "table", shards=8)

    count = sum(file.read_bytes().count(b"\n") for file in (first, second)) + 1
    rows = quarantined(tmp_path / "table")
    found = events(tmp_path / "table")
    assert len(found) + len(rows) == count == result.counts["lines"]
    assert (result.counts["events"], result.counts["quarantined"]) == (len(found), len(rows))
    places = by_place(rows)
    expected = {("a.ndjson", number): code for number, (_, code) in enumerate(lines, 1) if code is not None}
    assert {place: code for place, code in places.items() if place[0] == "a.ndjson"} == expected
    in_second = [code for place, code in places.items() if place[0] == "b.jsonl"]
    assert places[("b.jsonl", flipped.count(b"\n") + 3)] == "line.unfinished"
    assert set(in_second) == {
        "line.unfinished",
        "json.invalid",
        "event.invalid",
        "event.key_mismatch",
        "event.duplicate",
        "IDEMPOTENCY_CONTENT_MISMATCH",
    }
    by_number = dict(enumerate(first.read_bytes().split(b"\n"), 1))
    for row in rows:
        if row["file"].endswith("a.ndjson"):
            assert row["content"] == by_number[row["line"]][:content_bytes_max]

    kept = [line.removesuffix(b"\r") for line, code in lines if code is None] + [extra[2]]
    assert len(found) == len(kept)
    assert snapshots(spark, tmp_path / "table") == stored_locally("engine", kept)


def test_reasons_say_what_is_wrong(spark: SparkSession, tmp_path: Path) -> None:
    whole = flat(histories("engine", seed=2, runs=1))[0]
    cases = {
        whole[:30]: "Not JSON",
        b"\0" * 10: "10 NUL bytes",
        whole + whole: "Extra data",
        with_payload(whole, b'{"x":"\xff"}'): "Not UTF-8",
        with_payload(whole, b'{"x":"\\ud800"}'): "lone surrogate",
        with_payload(whole, b'{"x":' + b"[" * 1000 + b"]" * 1000 + b"}"): "nested deeper",
        with_payload(whole, b'{"x":1,"x":2}'): "stands twice",
        with_payload(whole, b'{"x":NaN}'): "NaN",
        with_payload(whole, b'{"x":%d}' % 2**63): "beyond 2^53",
        whole.replace(b'"planVersion":"1"', b'"planVersion":"3"'): "idempotency key",
        b"": "blank",
        whole + b" " * 4000: "the limit is 4000",
    }
    file = write(tmp_path / "a.ndjson", cases)
    result = ingest(spark, f"files:{file}", tmp_path / "table", event_bytes_max=4000)
    assert result.counts["quarantined"] == len(cases)
    reasons = {row["line"]: row["reason"] for row in quarantined(tmp_path / "table")}
    for number, words in enumerate(cases.values(), 1):
        assert words in reasons[number]


def test_a_changed_bit_in_a_run_directory_is_found_by_its_hash(spark: SparkSession, tmp_path: Path) -> None:
    url = filled("ndjson", "rundir", tmp_path, runs=2)
    files = sorted((tmp_path / "ndjson-rundir").glob("**/events.ndjson"))
    lines = files[0].read_bytes().split(b"\n")
    assert b'"tokens_in":12' in lines[4]
    lines[4] = lines[4].replace(b'"tokens_in":12', b'"tokens_in":13')
    changed = write(tmp_path / "in/a.ndjson", lines[:-1])
    result = ingest(spark, [f"files:{changed}", f"files:{files[1]}"], tmp_path / "table", model="rundir")
    (row,) = quarantined(tmp_path / "table")
    assert (row["line"], row["code"], row["content"]) == (5, "event.invalid", lines[4])
    assert "event_hash" in row["reason"]
    assert result.counts["events"] == len(list(event_lines(url))) - 1


# --- both shapes ----------------------------------------------------------------------------------------------


def test_run_directories_read_as_plain_files_give_what_their_log_gives(spark: SparkSession, tmp_path: Path) -> None:
    url = filled("ndjson", "rundir", tmp_path, runs=6)
    files = f"files:{tmp_path}/ndjson-rundir/**/events.ndjson"
    result = ingest(spark, files, tmp_path / "table", model="rundir")
    assert result.counts["quarantined"] == result.counts["missing"] == 0
    assert [(stream, body) for stream, _, body in events(tmp_path / "table")] == list(event_lines(url))
    assert snapshots(spark, tmp_path / "table") == local_snapshots(url, "rundir")


def test_lines_of_producers_are_chained_where_their_model_chains_them(spark: SparkSession, tmp_path: Path) -> None:
    (lines,) = (
        [line[:-1] + b',"ts":"2026-11-15T09:30:00.000Z"}' for line in lines]
        for lines in histories("rundir", seed=5, runs=1).values()
    )
    write(tmp_path / "in/a.ndjson", lines[:6])
    ingest(spark, f"files:{tmp_path}/in", tmp_path / "table", model="rundir")
    write(tmp_path / "in/b.ndjson", lines[6:])
    ingest(spark, f"files:{tmp_path}/in", tmp_path / "table", model="rundir")
    with open_store(f"ndjson:{tmp_path}/log") as store:
        for line in lines:
            store.append_event(store.model.parse(line))
    expected = list(event_lines(f"ndjson:{tmp_path}/log"))
    assert [(stream, body) for stream, _, body in events(tmp_path / "table")] == expected


def test_stored_lines_keep_their_bytes_and_places_and_producers_lines_come_behind(
    spark: SparkSession, tmp_path: Path
) -> None:
    ((stream, lines),) = histories("engine", seed=1, runs=1).items()
    # Backwards, without number 3, and in a file whose name comes later: the seq decides.
    exported = [stored("engine", line, seq) for seq, line in enumerate(lines[:5], 1) if seq != 3]
    write(tmp_path / "in/z.ndjson", reversed(exported))
    write(tmp_path / "in/a.ndjson", lines[5:7])
    result = ingest(spark, f"files:{tmp_path}/in", tmp_path / "table")
    found = events(tmp_path / "table")
    assert [seq for _, seq, _ in found] == [1, 2, 4, 5, 6, 7]
    assert [body for _, _, body in found[:4]] == exported
    assert [msgspec.json.decode(body)["eventId"] for _, _, body in found[4:]] == [
        msgspec.json.decode(line)["eventId"] for line in lines[5:7]
    ]
    assert {stream for stream, _, _ in found} == {stream}
    assert result.counts["missing"] == 1


def test_the_order_is_that_of_the_files_whatever_order_their_lines_arrive_in(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = flat(histories("engine", seed=1, runs=3))
    half = len(lines) // 2
    urls = [f"files:{write(tmp_path / 'in/b.ndjson', lines[half:])}", f"files:{tmp_path}/in"]
    write(tmp_path / "in/a.ndjson", lines[:half])
    table = new_table(tmp_path / "table")
    parts, _ = new_parts(urls, {}, find_model("engine"), 1 << 20)
    assert len(parts) == 2

    def backwards(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in reversed(list(batches)):
            yield batch.take(pa.array(range(batch.num_rows - 1, -1, -1)))

    with table.writing(), marked(table.directory / "table.json") as marker:
        plan = keep_plan(table, Plan(parts, ["engine-1-0001"]))
        frame = read_view(spark, urls, "lines", plan=str(plan))
        turned = frame.mapInArrow(backwards, frame.schema)
        write_table(table, assembled(turned, table, "engine", 2, marker).collect(), {})
    assert snapshots(spark, tmp_path / "table") == stored_locally("engine", lines)


def test_what_is_there_twice_is_quarantined_with_where_the_first_one_is(spark: SparkSession, tmp_path: Path) -> None:
    (lines,) = histories("engine", seed=1, runs=1).values()
    once = [stored("engine", line, seq) for seq, line in enumerate(lines[:3], 1)]
    other_content = with_payload(lines[3], b'{"other":true}')
    retried = lines[4].replace(b'"engineAttemptId":1', b'"engineAttemptId":9')
    write(
        tmp_path / "in/a.ndjson",
        [
            *once,
            once[1],  # 4: the same stored line
            lines[2],  # 5: the line that a producer wrote, before it was stored
            stored("engine", lines[5], 3),  # 6: another event in the same place
            once[0].replace(b"acme", b"xxxx").replace(b"globex", b"yyyyyy"),  # 7: stored with other content
            lines[3],
            lines[4],
            other_content,  # 10
            retried,  # 11: the same event, sent by another machine
        ],
    )
    result = ingest(spark, f"files:{tmp_path}/in/a.ndjson", tmp_path / "table")
    rows = {row["line"]: row for row in quarantined(tmp_path / "table")}
    assert {number: row["code"] for number, row in rows.items()} == {
        4: "event.duplicate",
        5: "event.duplicate",
        6: "seq.duplicate",
        7: "IDEMPOTENCY_CONTENT_MISMATCH",
        10: "IDEMPOTENCY_CONTENT_MISMATCH",
        11: "event.duplicate",
    }
    assert "in line 2 of" in rows[4]["reason"]
    assert "in line 9 of" in rows[11]["reason"]
    assert rows[10]["content"] == other_content
    assert (result.counts["events"], result.counts["lines"]) == (5, 11)


# --- exactly once ---------------------------------------------------------------------------------------------


def test_a_rerun_adds_nothing_and_a_grown_file_adds_only_its_tail(spark: SparkSession, tmp_path: Path) -> None:
    lines = flat(histories("engine", seed=1, runs=3))
    table = tmp_path / "table"
    (tmp_path / "in").mkdir()
    file = tmp_path / "in/a.ndjson"

    def grow(data: bytes) -> Written:
        with file.open("ab") as opened:
            opened.write(data)
        done = ingest(spark, f"files:{tmp_path}/in", table)
        # Whatever was torn in between: every line that is in the file now is an event or quarantined, and once.
        in_file = file.read_bytes().rstrip(b" \t\r").removesuffix(b"\n").count(b"\n") + 1
        assert len(events(table)) + len(quarantined(table)) == in_file
        return done

    first = grow(b"\n".join(lines[:10]) + b"\n")
    assert (first.commit, first.counts["events"]) == (1, 10)
    again = ingest(spark, f"files:{tmp_path}/in", table)
    assert (again.commit, again.counts["lines"]) == (1, 0)
    torn = grow(lines[10] + b"\nno event\n" + lines[11][:50])
    assert (torn.counts["events"], torn.counts["quarantined"]) == (1, 2)
    assert by_place(quarantined(table)) == {("a.ndjson", 12): "json.invalid", ("a.ndjson", 13): "line.unfinished"}
    assert ingest(spark, f"files:{tmp_path}/in", table).commit == torn.commit
    # More of it, and still no event: it is told as it is now, once.
    longer = grow(lines[11][50:60])
    assert (longer.counts["events"], longer.counts["quarantined"]) == (0, 1)
    assert [row["content"] for row in quarantined(table)] == [b"no event", lines[11][:60]]
    # The torn line is written to its end: it is an event now, and no longer quarantined.
    mended = grow(lines[11][60:])
    assert (mended.counts["events"], mended.counts["quarantined"]) == (1, 0)
    assert by_place(quarantined(table)) == {("a.ndjson", 12): "json.invalid"}
    # It was taken without its newline; that this follows, after blanks or not, changes nothing.
    assert grow(b" \t").counts["lines"] == 0
    assert grow(b"\r\n").counts["lines"] == 0
    rest = grow(b"\n".join(lines[12:]))
    assert (rest.counts["events"], rest.counts["quarantined"]) == (len(lines) - 12, 0)
    assert snapshots(spark, table) == stored_locally("engine", lines)


def test_a_known_key_is_not_added_again_whatever_file_it_comes_in(spark: SparkSession, tmp_path: Path) -> None:
    lines = flat(histories("engine", seed=1, runs=3))
    table = tmp_path / "table"
    write(tmp_path / "in/a.ndjson", lines[:20])
    ingest(spark, f"files:{tmp_path}/in", table)
    ((_, seq, body), *_) = events(table)
    changed = with_payload(lines[1], b'{"other":1}')
    write(tmp_path / "in/b.ndjson", [lines[0], changed, body, *lines[20:]])
    result = ingest(spark, f"files:{tmp_path}/in", table)
    assert by_place(quarantined(table)) == {
        ("b.ndjson", 1): "event.duplicate",
        ("b.ndjson", 2): "IDEMPOTENCY_CONTENT_MISMATCH",
        ("b.ndjson", 3): "event.duplicate",
    }
    assert any(f"with the seq {seq}" in row["reason"] for row in quarantined(table))
    assert result.counts["events"] == len(lines) - 20
    assert snapshots(spark, table) == stored_locally("engine", lines)


def test_a_stored_line_is_never_added_before_what_the_table_has(spark: SparkSession, tmp_path: Path) -> None:
    (lines,) = histories("engine", seed=1, runs=1).values()
    places = [stored("engine", line, seq) for seq, line in enumerate(lines, 1)]
    table = tmp_path / "table"
    write(tmp_path / "in/a.ndjson", [places[0], places[1], places[4]])
    ingest(spark, f"files:{tmp_path}/in", table)
    write(tmp_path / "in/b.ndjson", [places[2], stored("engine", lines[6], 2), places[5]])
    result = ingest(spark, f"files:{tmp_path}/in", table)
    assert by_place(quarantined(table)) == {("b.ndjson", 1): "seq.late", ("b.ndjson", 2): "seq.duplicate"}
    assert [seq for _, seq, _ in events(table)] == [1, 2, 5, 6]
    assert result.counts["events"] == 1


@pytest.mark.parametrize("change", ["shrunk", "changed", "replaced"])
def test_a_file_that_is_not_what_was_read_is_told_and_nothing_is_ingested(
    spark: SparkSession, tmp_path: Path, change: str
) -> None:
    lines = flat(histories("engine", seed=1, runs=1))
    file = write(tmp_path / "in/b.ndjson", lines[:5])
    table = tmp_path / "table"
    ingest(spark, f"files:{tmp_path}/in", table)
    before = events(table)
    write(tmp_path / "in/a.ndjson", lines[5:])
    data = file.read_bytes()
    new = {"shrunk": data[:-1], "changed": b"\n" + data[1:], "replaced": b"x" * len(data) + b"\n" + data}[change]
    file.write_bytes(new)
    with pytest.raises(FileChanged, match=rf"{re.escape(str(file))}.*(new table|Put the old file back)"):
        ingest(spark, f"files:{tmp_path}/in", table)
    assert events(table) == before
    file.write_bytes(data)
    assert ingest(spark, f"files:{tmp_path}/in", table).counts["events"] == len(lines) - 5


def test_a_job_that_is_killed_before_its_commit_leaves_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = flat(histories("engine", seed=1, runs=2))
    write(tmp_path / "in/a.ndjson", [*lines, b"no event"])
    table = tmp_path / "table"

    class Killed(BaseException):
        pass

    def kill(*args: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", kill)
        with pytest.raises(Killed):
            ingest(spark, f"files:{tmp_path}/in", table)
    written = set(table.glob("*/*.parquet"))
    assert len(written) == 3
    assert (events(table), quarantined(table)) == ([], [])
    assert ingest(spark, f"files:{tmp_path}/in", table).counts["events"] == len(lines)
    assert not written & set(table.glob("*/*.parquet"))
    assert len(quarantined(table)) == 1
    assert snapshots(spark, table) == stored_locally("engine", lines)


# --- beside other things --------------------------------------------------------------------------------------


def test_a_stream_of_a_log_takes_nothing_from_files_and_the_other_way_round(
    spark: SparkSession, tmp_path: Path
) -> None:
    url = filled("sqlite", "engine", tmp_path, seed=1, runs=1)
    table = tmp_path / "table"
    ingest(spark, url, table)
    before = events(table)
    (theirs,) = histories("engine", seed=1, runs=1).values()
    ((ours, lines),) = histories("engine", seed=2, runs=1).items()
    file = write(tmp_path / "a.ndjson", [theirs[0], *lines])
    ingest(spark, f"files:{file}", table)
    assert by_place(quarantined(table)) == {("a.ndjson", 1): "stream.in_two_logs"}
    assert [event for event in events(table) if event[0] != ours] == before
    with open_store(url) as store:
        store.append_event(store.model.parse(lines[0]))
    assert ingest(spark, url, table).counts["events"] == 0
    opened = open_event_table(table)
    codes = Counter(
        code
        for piece in opened.pieces(opened.files("quarantine"), Shard(), ["stream", "seq", "code"])
        for code in piece["code"].to_pylist()
    )
    assert codes == {"stream.in_two_logs": 2}


def test_files_and_logs_are_not_ingested_in_one_job(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="one after the other"):
        ingest(spark, [f"files:{tmp_path}", f"sqlite:{tmp_path}/log"], tmp_path / "table")
    with pytest.raises(LogNotFound):
        ingest(spark, f"files:{tmp_path}/nothing", tmp_path / "table")


def test_the_view_of_lines_is_a_table_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    lines = flat(histories("engine", seed=1, runs=2))
    file = write(tmp_path / "a.ndjson", [*lines, b"no event"])
    frame = read_view(spark, f"files:{file}", "lines")
    assert frame.where("code is null").count() == len(lines)
    (bad,) = frame.where("code is not null").collect()
    assert (bad["line"], bad["code"], bytes(bad["content"])) == (len(lines) + 1, "json.invalid", b"no event")
    bodies = {(row["offset"], row["body"].encode()) for row in frame.where("code is null").collect()}
    assert sorted(body for _, body in bodies) == sorted(lines)
    with pytest.raises(PipelineFailed, match="files:PATH"), readable("lines"):
        read_view(spark, f"sqlite:{tmp_path}/log", "lines").collect()
