"""`repair --quarantine`: one intact event that the model cannot use leaves its stream, on every log, and is kept."""

from __future__ import annotations

import re
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from tests.commands import Cli
from tests.log_urls import durable_schemes, url_at
from tests.unit.cli.test_impossible_events import append, completed, malformed, started, stopped, store

import runstate
from runstate.errors import InvalidEvent
from runstate.logs.registry import open_log
from runstate.models.registry import find_model
from runstate.projector import Projector

numbered = ["ndjson", "segments"]
"""Logs that number their lines: the events behind a quarantined one leave with it."""
daemon = find_model("daemon")
second = started.replace(b'"w"', b'"v"')


@pytest.fixture(params=durable_schemes())
def url(request: pytest.FixtureRequest, tmp_path: Path, cli: Cli) -> str:
    return url_at(request.param, tmp_path / "log")


def has_gaps(url: str) -> bool:
    return url.partition(":")[0] not in numbered


def bodies(url: str) -> list[bytes]:
    with open_log(url) as log:
        return [record.body for record in log.read("daemon")]


def folded(*lines: bytes) -> bytes:
    return daemon.dump(daemon.fold(daemon.initial("daemon"), lines))


def stored_state(url: str) -> bytes:
    with open_log(url) as log:
        found = log.load_snapshot("daemon", "daemon")
        assert found is not None
        return found.body


def advice(message: str, url: str) -> list[str]:
    """The command that takes the event out, as the message gives it."""
    (command,) = [part for part in message.split("'") if "--quarantine" in part]
    return shlex.split(command.replace("URL", url))[1:]


def test_the_advice_for_a_malformed_event_takes_it_out(cli: Cli, url: str) -> None:
    store(url, started, second, malformed, stopped)
    before = bodies(url)
    (found,) = cli("verify", url, "--json").rows
    done = cli(*advice(found["message"], url), "--json")
    assert (done.code, [(row["code"], row["seq"]) for row in done.rows]) == (0, [("log.quarantined", 3)])
    left = [*before[:2], before[3]] if has_gaps(url) else before[:2]
    assert bodies(url) == left
    assert stored_state(url) == folded(*left)
    verified = cli("verify", url, "--json")
    assert (verified.code, {row["code"] for row in verified.rows}) == (0, {"log.set_aside"})
    assert cli("replay", url, "--check").code == 0


def test_the_advice_for_an_impossible_event_takes_it_out(cli: Cli, url: str) -> None:
    store(url, started, completed, second)
    before = bodies(url)
    assert cli("replay", url).code == 0  # The snapshot knows the event.
    (found,) = cli("verify", url, "--json").rows
    assert cli(*advice(found["message"], url)).code == 0
    left = [before[0], before[2]] if has_gaps(url) else before[:1]
    assert (bodies(url), stored_state(url)) == (left, folded(*left))
    assert cli("replay", url, "--check").code == 0


def test_the_dry_run_says_what_is_done_and_writes_nothing(cli: Cli, url: str, tmp_path: Path) -> None:
    store(url, started, malformed, stopped)
    before = bodies(url)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    would = cli("repair", url, "daemon", "--quarantine", "2", "--dry-run", "--json")
    assert (would.code, bodies(url)) == (0, before)
    if not url.startswith("sqlite"):  # SQLite makes files for its readers.
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
    assert cli("verify", url).code == 1
    assert cli("repair", url, "daemon", "--quarantine", "2", "--json").rows == would.rows


def test_the_first_and_the_last_event_can_be_quarantined(cli: Cli, url: str) -> None:
    store(url, malformed, started, malformed)
    before = bodies(url)
    assert cli("repair", url, "daemon", "--quarantine", "3").code == 0
    assert bodies(url) == before[:2]
    assert cli("repair", url, "daemon", "--quarantine", "1").code == 0
    assert bodies(url) == ([before[1]] if has_gaps(url) else [])
    assert cli("verify", url).code == 0


def test_an_event_that_nothing_is_wrong_with_is_refused(cli: Cli, url: str) -> None:
    store(url, started, second)
    before = bodies(url)
    refused = cli("repair", url, "daemon", "--quarantine", "1")
    assert (refused.code, bodies(url)) == (2, before)
    assert "Append the event that corrects it" in refused.err


def test_what_is_not_there_is_refused(cli: Cli, url: str) -> None:
    store(url, started, malformed)
    assert cli("repair", url, "daemon", "--quarantine", "3").code == 3
    assert cli("repair", url, "none", "--quarantine", "1").code == 3


@pytest.mark.parametrize("scheme", ["sqlite", "ndjson", "segments"])
def test_a_damaged_stream_is_repaired_first(cli: Cli, scheme: str) -> None:
    url = f"{scheme}:log"
    store(url, started, malformed, stopped)
    if scheme == "sqlite":
        with closing(sqlite3.connect("log")) as connection, connection:
            connection.execute("DROP TRIGGER events_are_never_updated")
            connection.execute("UPDATE events SET type = 'x' WHERE seq = 3")
    else:
        for path in [*Path("log").rglob("events.ndjson"), *Path("log").rglob("0*.jsonl")]:
            path.write_bytes(path.read_bytes().replace(b"worker:stopped", b"worker:stoppee"))
    refused = cli("repair", url, "daemon", "--quarantine", "2")
    assert refused.code == 1
    assert "repair it before" in refused.err
    assert cli("repair", url).code == 0
    assert cli("repair", url, "daemon", "--quarantine", "2").code == 0
    assert cli("verify", url).code == 0


@pytest.mark.parametrize("scheme", ["ndjson", "wal"])
def test_a_stream_that_a_writer_holds_is_left_alone(cli: Cli, scheme: str) -> None:
    url = f"{scheme}:log"
    store(url, started, malformed)
    with open_log(url) as log:
        append(log, "late", second)  # The writer holds the stream until the log is closed.
        assert cli("repair", url, "daemon", "--quarantine", "2").code == 4
    assert len(bodies(url)) == 3


def test_usage_is_checked(cli: Cli) -> None:
    store("sqlite:log", started, malformed)
    assert cli("repair", "sqlite:log", "--quarantine", "2").code == 2
    assert cli("repair", "sqlite:log", "daemon", "--quarantine", "2", "--salvage").code == 2
    assert cli("repair", "sqlite:log", "daemon", "--quarantine", "0").code == 2
    assert len(bodies("sqlite:log")) == 2


def page_query() -> str:
    """The query for records that the format page of SQLite gives."""
    page = (Path(__file__).parents[3] / "docs/formats/sqlite.md").read_text()
    (query,) = re.findall(r"```sql\n([^`]*FROM quarantined_events[^`]*)```", page)
    return str(query)


def aside_file() -> Path:
    (file,) = Path("log").rglob("*.quarantined*")
    return file


@pytest.mark.parametrize("scheme", numbered)
def test_the_events_behind_it_can_be_appended_again(cli: Cli, scheme: str) -> None:
    url = f"{scheme}:log"
    store(url, started, malformed, second, stopped)
    assert cli("repair", url, "daemon", "--quarantine", "2").code == 0
    first, *behind = aside_file().read_bytes().splitlines(keepends=True)
    assert msgspec.json.decode(first)["type"] == "worker:started"
    appended = cli("append", url, "--model", "daemon", stdin=b"".join(behind))
    assert [row["seq"] for row in appended.rows] == [2, 3]
    assert [row["type"] for row in cli("fetch", url, "daemon").rows] == ["worker:started"] * 2 + ["worker:stopped"]
    assert cli("verify", url).code == 0
    assert cli("append", url, "--model", "daemon", stdin=first).code == 2  # Until a version knows it.


def test_a_quarantined_entry_of_a_wal_can_be_appended_again(cli: Cli) -> None:
    store("wal:log", started, completed, stopped)
    assert cli("repair", "wal:log", "daemon", "--quarantine", "2").code == 0
    assert [row["seq"] for row in cli("append", "wal:log", str(aside_file()), "--model", "daemon").rows] == [4]


def test_a_quarantined_row_can_be_appended_again(cli: Cli) -> None:
    store("sqlite:log", started, completed, stopped)
    assert cli("repair", "sqlite:log", "daemon", "--quarantine", "2").code == 0
    with closing(sqlite3.connect("log")) as connection:
        lines = [row[0] for row in connection.execute(page_query())]
    appended = cli("append", "sqlite:log", "--model", "daemon", stdin="\n".join(lines).encode())
    assert [row["seq"] for row in appended.rows] == [4]


def test_the_query_of_the_format_page_gives_what_a_plain_repair_has_set_aside(cli: Cli) -> None:
    store("sqlite:log", started, second, stopped)
    with closing(sqlite3.connect("log")) as connection, connection:
        connection.execute("DROP TRIGGER events_are_never_updated")
        connection.execute("UPDATE events SET type = 'x' WHERE seq = 2")
    assert cli("repair", "sqlite:log").code == 0
    with closing(sqlite3.connect("log")) as connection:
        query = page_query().replace("quarantined_events", "set_aside_events WHERE seq = 3")
        lines = [row[0] for row in connection.execute(query)]
    appended = cli("append", "sqlite:log", "--model", "daemon", stdin="\n".join(lines).encode())
    assert [row["seq"] for row in appended.rows] == [2]
    assert stored_state("sqlite:log") == folded(started, stopped)


def test_a_salvage_leaves_a_quarantined_event_where_it_is(cli: Cli, url: str) -> None:
    store(url, started, second, malformed)
    assert cli("repair", url, "daemon", "--quarantine", "3").code == 0
    left = bodies(url)
    assert cli("repair", url, "--salvage").code == 0
    assert bodies(url) == left


def test_the_blobs_of_a_quarantined_event_stay_until_it_is_removed(cli: Cli) -> None:
    for scheme in ("sqlite", "ndjson"):
        url = f"{scheme}:{scheme}"
        with open_log(url) as log:
            ref = log.put_blob(b"a picture")
            append(log, "e1", started)
            append(log, "e2", malformed[:-1] + b',"picture":"%b"}' % ref.encode())
        assert cli("repair", url, "daemon", "--quarantine", "2").code == 0
        assert cli("gc", url, "--older-than", "0s", "--json").rows[-1]["removed"] == []
        if scheme == "sqlite":
            with closing(sqlite3.connect("sqlite")) as connection, connection:
                connection.execute("DELETE FROM quarantined_events")
        else:
            next(Path("ndjson").rglob("*.quarantined-1")).unlink()
        assert cli("gc", url, "--older-than", "0s", "--json").rows[-1]["removed"] == [ref]
        assert "set_aside" not in cli("verify", url).out


def test_several_events_that_cannot_be_folded_are_taken_out_one_by_one(cli: Cli) -> None:
    store("sqlite:log", started, malformed, malformed, stopped)
    for seq in ("2", "3"):
        assert cli("verify", "sqlite:log").code == 1
        assert cli("repair", "sqlite:log", "daemon", "--quarantine", seq).code == 0
    assert cli("verify", "sqlite:log").code == 0


def test_an_event_behind_one_that_cannot_be_folded_is_not_judged(cli: Cli) -> None:
    store("sqlite:log", started, malformed, completed)
    refused = cli("repair", "sqlite:log", "daemon", "--quarantine", "3")
    assert refused.code == 2
    assert "--quarantine 2" in refused.err


@pytest.mark.parametrize("name", ["a:b", "two words", "it's"])
def test_the_advice_works_for_any_stream_id(cli: Cli, name: str) -> None:
    with runstate.open("sqlite:log", "engine") as engine:
        run = engine.run(name, tenant="t", plan="p")
        run.started()
        first = engine.log.read(name)[0]
        other = msgspec.structs.replace(first, seq=2, event_id="x", key="k", type="RunCloned", body=b'{"a":1}')
        engine.log.adopt(name, [other], model="engine")
    (found,) = cli("verify", "sqlite:log", "--json").rows
    command = found["message"].partition("'runstate repair ")[2].partition("' takes it")[0]
    assert cli("repair", *shlex.split(command.replace("URL", "sqlite:log"))).code == 0
    assert cli("verify", "sqlite:log").code == 0


@pytest.mark.parametrize("seq", [2, 3])
@pytest.mark.parametrize("scheme", ["sqlite", "postgresql"])
def test_a_projector_that_has_passed_the_event_goes_on(cli: Cli, scheme: str, seq: int, tmp_path: Path) -> None:
    url = url_at(scheme, tmp_path / "log")
    lines = [started, second, second.replace(b'"v"', b'"u"')]
    lines[seq - 1] = completed
    store(url, *lines)
    with runstate.open(url, "daemon", snapshot_every=0, on_alert=lambda alert: None) as projected:
        projector = Projector(projected)
        projector.poll()
        assert cli("repair", url, "daemon", "--quarantine", str(seq)).code == 0
        with open_log(url) as log:
            append(log, "late", stopped)
        while projector.poll():
            pass
        assert projector.stale() == []
    assert stored_state(url) == folded(*bodies(url))


@pytest.mark.parametrize("seq", [2, 3])
def test_a_projector_that_stopped_at_the_event_goes_on(cli: Cli, seq: int) -> None:
    lines = [started, second, second.replace(b'"v"', b'"u"')]
    lines[seq - 1] = malformed
    store("sqlite:log", *lines)
    with runstate.open("sqlite:log", "daemon", snapshot_every=0, on_alert=lambda alert: None) as projected:
        projector = Projector(projected)
        with pytest.raises(InvalidEvent):
            projector.poll()
        assert cli("repair", "sqlite:log", "daemon", "--quarantine", str(seq)).code == 0
        while projector.poll():
            pass
        assert projector.stale() == []
    assert stored_state("sqlite:log") == folded(*bodies("sqlite:log"))
