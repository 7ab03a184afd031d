"""Copies between logs: every record as it was, whatever the two logs are; and what keeps one from being made."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.commands import Cli
from tests.fleets import histories, models, put_blobs
from tests.log_urls import servers, take_no_events, url_at

from runstate.conformance.notes import as_held, note, notes, numbered, stored
from runstate.copying import check_apart, copy_stream, page_events
from runstate.errors import (
    BlobNotFound,
    InvalidUrl,
    LogDamaged,
    SequenceConflict,
    StreamNotFound,
    Truncated,
    Unsupported,
)
from runstate.logs.log import BlobRef, Capability, EventLog, Record, StreamInfo
from runstate.logs.memory import MemoryLog
from runstate.logs.registry import installed_schemes, open_log
from runstate.models.registry import find_model
from runstate.store import Store
from runstate.store import open as open_store

schemes = [scheme for scheme in installed_schemes() if scheme not in take_no_events]
on_files = [scheme for scheme in schemes if scheme not in servers]
pairs = [(one, other) for one in on_files for other in on_files]
pairs += [pair for server in schemes if server in servers for pair in (("sqlite", server), (server, "sqlite"))]


def everything(log: EventLog) -> dict[str, tuple[StreamInfo, list[Record]]]:
    return {info.stream: (info, stored(log, info.stream)) for info in log.streams()}


def copy_all(source: EventLog, target: EventLog) -> int:
    return sum(copy_stream(source, target, info.stream).adopted for info in source.streams())


# --- what comes over -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", models())
@pytest.mark.parametrize(("from_scheme", "to_scheme"), pairs)
def test_a_copy_is_every_record_of_its_source(tmp_path: Path, from_scheme: str, to_scheme: str, model: str) -> None:
    with ExitStack() as stack:
        source = stack.enter_context(open_log(url_at(from_scheme, tmp_path / "source")))
        target = stack.enter_context(open_log(url_at(to_scheme, tmp_path / "target")))
        store: Store[Any, Any, Any] = Store(source, find_model(model), snapshot_every=0, on_alert=lambda alert: None)
        for lines in histories(model, runs=5).values():
            put_blobs(source, lines)
            store.append_events([store.model.parse(line) for line in lines])
        source.append("notes", [note("ü€🜁\u2028", "\ufeff\x7f", tenant="", emitted_at=""), *numbered(page_events + 3)])
        before = everything(source)
        assert copy_all(source, target) == sum(len(records) for _, records in before.values())
        assert everything(target) == before == everything(source)
        assert list(target.verify()) == []
        assert copy_all(source, target) == 0
        assert everything(target) == before


def test_lines_of_a_run_directory_are_the_same_after_a_round_trip(tmp_path: Path) -> None:
    with open_store(f"ndjson:{tmp_path}/runs", "rundir", on_alert=lambda alert: None) as store:
        for lines in histories("rundir", runs=3).values():
            store.append_events([store.model.parse(line) for line in lines])
        with open_log(f"sqlite:{tmp_path}/log.db") as between, open_log(f"ndjson:{tmp_path}/back") as back:
            copy_all(store.log, between)
            copy_all(between, back)
    files = sorted(path.relative_to(tmp_path / "runs") for path in (tmp_path / "runs").glob("*/events.ndjson"))
    assert len(files) == 3
    for file in files:
        assert (tmp_path / "back" / file).read_bytes() == (tmp_path / "runs" / file).read_bytes()


def test_a_copied_run_goes_on_with_its_hash_chain(tmp_path: Path) -> None:
    (stream, lines), *_ = histories("rundir", runs=1).items()
    with (
        open_store(f"sqlite:{tmp_path}/log.db", "rundir", on_alert=lambda alert: None) as store,
        open_store(f"ndjson:{tmp_path}/runs", "rundir", on_alert=lambda alert: None) as copy,
    ):
        store.append_events([store.model.parse(line) for line in lines[:-1]])
        copy_stream(store.log, copy.log, stream)
        copy.append_event(copy.model.parse(lines[-1]))
        *_, before, last = (msgspec.json.decode(line) for line in copy.log.lines(stream))
        assert last["prev_hash"] == before["event_hash"]
        assert list(copy.log.verify()) == []


def test_a_copy_tells_how_far_it_came_and_its_digest() -> None:
    source, target = MemoryLog(), MemoryLog()
    source.append("s", numbered(page_events * 2 + 1))
    pages: list[int] = []
    copied = copy_stream(source, target, "s", pages.append)
    assert (copied.last_seq, copied.events, copied.adopted) == (page_events * 2 + 1,) * 3
    assert pages == [page_events, page_events, 1]
    assert copy_stream(source, MemoryLog(), "s").digest == copied.digest
    other = MemoryLog()
    other.adopt("s", [msgspec.structs.replace(r, tenant="x") if r.seq == 7 else r for r in stored(source, "s")])
    assert copy_stream(other, MemoryLog(), "s").digest != copied.digest


def test_a_source_that_grows_meanwhile_is_copied_as_far_as_it_went() -> None:
    source, target = MemoryLog(), MemoryLog()
    source.append("s", numbered(page_events + 1))
    copied = copy_stream(source, target, "s", lambda events: grow(source, events))
    assert copied.last_seq == page_events + 1 == len(stored(target, "s"))
    again = copy_stream(source, target, "s")
    assert (again.adopted, again.last_seq) == (page_events + 1, 2 * page_events + 2)
    assert everything(target) == everything(source)


def grow(log: EventLog, events: int) -> None:
    last = stored(log, "s")[-1].seq
    log.append("s", numbered(events, prefix=f"{last}/"))


def test_a_target_that_went_on_keeps_what_it_has() -> None:
    source, target = MemoryLog(), MemoryLog()
    source.append("s", notes("a", "b"))
    copy_stream(source, target, "s")
    target.append("s", notes("c"))
    assert copy_stream(source, target, "s").adopted == 0
    assert len(stored(target, "s")) == 3


def test_blobs_that_lines_refer_to_come_along_and_others_do_not() -> None:
    source, target = MemoryLog(), MemoryLog()
    wanted, other = source.put_blob(b"wanted"), source.put_blob(b"other")
    unknown = BlobRef(f"sha256:{'0' * 64}")
    source.append("s", [note("a", wanted), note("b", unknown), note("c", f"x{other}")])
    assert copy_stream(source, target, "s").blobs == 1
    assert target.get_blob(wanted) == b"wanted"
    with pytest.raises(BlobNotFound):
        target.get_blob(other)


# --- what does not ---------------------------------------------------------------------------------------------------


class Damaging(MemoryLog):
    """Gives back something else than it was given."""

    def read(self, stream: str, *, after_seq: int = 0, limit: int = 1000) -> list[Record]:
        page = super().read(stream, after_seq=after_seq, limit=limit)
        return [msgspec.structs.replace(r, emitted_at="") if r.seq == 7 else r for r in page]


class Losing(MemoryLog):
    def adopt(self, stream: str, records: Sequence[Record], *, model: str = "") -> int:
        super().adopt(stream, [record for record in records if record.seq != 3], model=model)
        return len(records)


class Compacted(MemoryLog):
    def read(self, stream: str, *, after_seq: int = 0, limit: int = 1000) -> list[Record]:
        raise Truncated(first_seq=5)


class WithoutBlobs(MemoryLog):
    capabilities = MemoryLog.capabilities - {Capability.BLOBS}


class WithoutAdopt(MemoryLog):
    capabilities = MemoryLog.capabilities - {Capability.ADOPT}


@pytest.mark.parametrize(("target", "seq"), [(Damaging(), 7), (Losing(), 3)])
def test_a_copy_that_reads_back_otherwise_is_named_with_its_seq(target: EventLog, seq: int) -> None:
    source = MemoryLog()
    source.append("s", numbered(20))
    with pytest.raises(LogDamaged, match=f"'s' .* from seq {seq} on") as caught:
        copy_stream(source, target, "s")
    assert caught.value.details == {"stream": "s", "seq": seq}


def test_a_log_that_adopts_nothing_is_refused_as_a_target() -> None:
    source = MemoryLog()
    source.append("s", notes("a"))
    with pytest.raises(Unsupported, match="adopt"):
        copy_stream(source, WithoutAdopt(), "s")


def test_lines_that_refer_to_blobs_are_not_copied_to_a_log_without() -> None:
    source, target = MemoryLog(), WithoutBlobs()
    source.append("s", [note("a", source.put_blob(b"data"))])
    with pytest.raises(Unsupported, match="blobs"):
        copy_stream(source, target, "s")
    assert target.stream("s") is None


def test_what_a_source_no_longer_holds_is_said() -> None:
    source = Compacted()
    source.append("s", notes("a"))
    with pytest.raises(Truncated):
        copy_stream(source, MemoryLog(), "s")
    with pytest.raises(StreamNotFound):
        copy_stream(source, MemoryLog(), "nowhere")


def test_damage_in_the_source_ends_the_copy_even_right_behind_what_is_intact(tmp_path: Path) -> None:
    with open_log(f"ndjson:{tmp_path}/runs") as source:
        source.append("s", numbered(page_events + 2))
    file = tmp_path / "runs/s/events.ndjson"
    lines = file.read_bytes().split(b"\n")
    lines[page_events] = lines[page_events].replace(b"noted", b"nooed")
    file.write_bytes(b"\n".join(lines))
    file.with_name("index.json").unlink()  # It knows of more events: without it, the stream seems to end at the damage.
    with open_log(f"ndjson:{tmp_path}/runs") as source, pytest.raises(LogDamaged):
        copy_stream(source, MemoryLog(), "s")


def test_a_target_that_holds_something_else_is_left_as_it_is() -> None:
    source, target = MemoryLog(), MemoryLog()
    source.append("s", numbered(page_events + 5))
    other = [msgspec.structs.replace(r, tenant="x") if r.seq == 3 else r for r in stored(source, "s")[:5]]
    target.adopt("s", other)
    with pytest.raises(SequenceConflict) as caught:
        copy_stream(source, target, "s")
    assert (caught.value.details["stream"], caught.value.details["seq"]) == ("s", 3)
    assert stored(target, "s") == other


@pytest.mark.parametrize("target", ["sqlite:a.db", "sqlite:./a.db", "sqlite:b.db", "sqlite:a.db?busy_timeout_s=5"])
def test_a_log_is_not_copied_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.chdir(tmp_path)
    open_log("sqlite:a.db").close()
    Path("b.db").symlink_to("a.db")
    with pytest.raises(InvalidUrl, match="source itself"):
        check_apart("sqlite:a.db", target)
    check_apart("sqlite:a.db", "sqlite:c.db")
    check_apart("sqlite:a.db", "ndjson:a.db")


# --- the command -----------------------------------------------------------------------------------------------------


def filled(url: str, *streams: str) -> None:
    with open_log(url) as log:
        for stream in streams:
            log.append(stream, numbered(3))


def test_copy_tells_one_line_a_stream_and_sums_up(cli: Cli) -> None:
    filled("sqlite:log.db", "a", "b")
    done = cli("copy", "sqlite:log.db", "ndjson:runs", "--json")
    assert (done.code, [row["stream"] for row in done.rows], done.rows[0]["lastSeq"]) == (0, ["a", "b"], 3)
    assert done.err == "2 streams: 6 events copied, 0 there already, 0 blobs, all read back\n"
    again = cli("copy", "sqlite:log.db", "ndjson:runs")
    assert (again.code, again.out) == (0, "")
    assert again.err == "2 streams: 0 events copied, 6 there already, 0 blobs, all read back\n"


def test_copy_of_a_log_without_streams_does_not_say_that_it_read_anything_back(cli: Cli) -> None:
    open_log("sqlite:empty.db").close()
    assert cli("copy", "sqlite:empty.db", "sqlite:other.db").err == "nothing to copy: the source has no streams\n"


def test_copy_takes_the_streams_that_it_is_told(cli: Cli) -> None:
    filled("sqlite:log.db", "a", "b", "c")
    assert cli("copy", "sqlite:log.db", "sqlite:to.db", "-s", "c", "--stream", "a", "-s", "c").code == 0
    with open_log("sqlite:to.db") as log:
        assert [info.stream for info in log.streams()] == ["a", "c"]


def test_copy_names_a_stream_that_is_something_else_and_copies_the_others(cli: Cli) -> None:
    filled("sqlite:log.db", "a", "b", "c")
    with open_log("sqlite:to.db") as log:
        log.append("b", notes("other"))
    done = cli("copy", "sqlite:log.db", "sqlite:to.db")
    assert done.code == 1
    assert done.out.startswith("b: log.sequence_conflict: ")
    assert done.err == (
        "2 streams: 6 events copied, 0 there already, 0 blobs, all read back; 1 stream could not be copied\n"
    )
    rows = cli("copy", "sqlite:log.db", "sqlite:to.db", "--json").rows
    assert [(row["stream"], row.get("code"), row.get("adopted")) for row in rows] == [
        ("a", None, 0),
        ("b", "log.sequence_conflict", None),
        ("c", None, 0),
    ]


def test_copy_names_a_gap_that_numbered_lines_cannot_keep(cli: Cli) -> None:
    with open_log("sqlite:log.db") as log:
        log.adopt("a", [*as_held("a", notes("x")), *as_held("a", notes("y"), after_seq=4)])
    assert cli("copy", "sqlite:log.db", "sqlite:to.db").code == 0
    done = cli("copy", "sqlite:log.db", "ndjson:runs")
    assert (done.code, "lacks 2 to 4" in done.out) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("sqlite:nowhere.db", "sqlite:to.db"), 3),
        (("sqlite:log.db", "sqlite:to.db", "--stream", "nowhere"), 3),
        (("sqlite:log.db", "sqlite:log.db"), 2),
        (("sqlite:log.db", "nonsense:to"), 2),
        (("sqlite:log.db",), 2),
    ],
)
def test_copy_refuses_what_it_cannot_begin_and_makes_nothing(cli: Cli, arguments: Sequence[str], code: int) -> None:
    filled("sqlite:log.db", "a")
    assert partial(cli, "copy")(*arguments).code == code
    assert not Path("to.db").exists()
