"""The pipeline stores URLs without their passwords, and goes on with tables that earlier versions stored them in.

A task is run here without Spark, by the code that Spark runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fleets import histories
from tests.postgres_server import as_role
from tests.tables import new_table

from runstate.models.registry import find_model
from runstate.pipeline import jobs
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.source.views import Request
from runstate.pipeline.spark.small_jobs import few_rows
from runstate.pipeline.stages import read_inputs, write_inputs
from runstate.pipeline.tables.quarantine import quarantined
from runstate.pipeline.tables.table import Table
from runstate.store import open as open_store

secret = "geheim"
Password = Callable[[str], str]


@pytest.fixture
def with_password(url: str) -> Password:
    """`with_password(p)`: the URL of a log that holds a fleet, with that password."""
    if "RUNSTATE_TEST_POSTGRES_URL" in os.environ:
        pytest.skip("only our own server takes any password")
    append(url, 2)
    return lambda password: as_role(url, "postgres", password)


def append(url: str, runs: int) -> None:
    with open_store(url, on_alert=lambda alert: None) as store:
        for lines in histories("engine", 0, runs).values():
            store.append_events([store.model.parse(line) for line in lines])


@pytest.fixture
def as_before(monkeypatch: pytest.MonkeyPatch) -> Callable[[], pytest.MonkeyPatch]:
    """From now on tables are written as earlier versions did; `undo` ends it."""

    def start() -> pytest.MonkeyPatch:
        for module in ("source.origins", "tables.ingest", "jobs"):
            monkeypatch.setattr(f"runstate.pipeline.{module}.shown_url", lambda url: url)
        return monkeypatch

    return start


def run(view: str, kind: str, urls: list[str], to: Path, **options: str) -> jobs.Written:
    """One job of the pipeline."""
    table = new_table(to, kind)
    with table.writing():
        rows = few_rows(Request(tuple(urls), view, "engine", options={"to": str(to), **options}))
        assert rows is not None
        consumed = {"urls": urls, "version": find_model("engine").version, "position": "heads"}
        return jobs.write_table(table, rows, consumed, replaces=view == "compact")


def ingest(urls: list[str], to: Path) -> dict[str, int]:
    return run("ingest", "events", urls, to).counts


def live_content(table: Path) -> str:
    """All that the files and the last commit of a table hold but for events."""
    opened = Table.open(table)
    found: list[Any] = [msgspec.json.encode(opened.commits()[-1])]
    for kind, columns in {
        "heads": ["stream", "seq", "url"],
        "refusals": ["stream", "seq", "url"],
        "quarantine": ["stream", "seq", "url", "reason"],
    }.items():
        found += [piece.to_pylist() for piece in opened.pieces(opened.files(kind), Shard(), columns)]
    return repr(found)


def test_a_table_holds_no_password(with_password: Password, tmp_path: Path) -> None:
    ingest([with_password(secret), with_password(f"other{secret}")], tmp_path / "t")
    assert "postgresql://postgres@" in live_content(tmp_path / "t")
    assert secret not in live_content(tmp_path / "t")


def test_another_password_is_the_same_log(with_password: Password, tmp_path: Path) -> None:
    ingest([with_password(secret)], tmp_path / "t")
    append(with_password(secret), 3)
    counts = ingest([with_password("new")], tmp_path / "t")
    assert (counts["streams"], counts["unchanged"], counts["quarantined"]) == (1, 2, 0)


def test_a_table_of_an_earlier_version_goes_on_with_any_password(
    with_password: Password, as_before: Callable[[], pytest.MonkeyPatch], tmp_path: Path
) -> None:
    earlier = as_before()
    ingest([with_password(secret)], tmp_path / "t")
    earlier.undo()
    assert secret in live_content(tmp_path / "t")
    append(with_password(secret), 3)
    counts = ingest([with_password("new")], tmp_path / "t")
    assert (counts["streams"], counts["unchanged"], counts["quarantined"]) == (1, 2, 0)


def test_compaction_drops_the_passwords_that_an_earlier_version_stored(
    with_password: Password, as_before: Callable[[], pytest.MonkeyPatch], tmp_path: Path
) -> None:
    earlier = as_before()
    ingest([with_password(secret)], tmp_path / "t")
    ingest([with_password(f"other{secret}")], tmp_path / "t")
    earlier.undo()
    assert live_content(tmp_path / "t").count(secret) > 4
    run("compact", "events", [with_password(secret)], tmp_path / "t")
    assert "stream.in_two_logs" in {row["code"] for row in quarantined(tmp_path / "t")}
    assert secret not in live_content(tmp_path / "t")


def test_what_an_earlier_version_quarantined_is_shown_without_its_password(
    with_password: Password, as_before: Callable[[], pytest.MonkeyPatch], tmp_path: Path
) -> None:
    earlier = as_before()
    ingest([with_password(secret), with_password(f"other{secret}")], tmp_path / "t")
    earlier.undo()
    shown = list(quarantined(tmp_path / "t"))
    assert shown
    assert secret not in repr(shown)


def test_a_replay_of_an_earlier_version_goes_on_with_any_password(
    with_password: Password, as_before: Callable[[], pytest.MonkeyPatch], tmp_path: Path
) -> None:
    earlier = as_before()
    run("replay", "snapshots", [with_password(secret)], tmp_path / "t", since="")
    earlier.undo()
    append(with_password(secret), 3)
    # Spark is asked only where everything is folded anew.
    done = jobs.replay(None, [with_password("new")], tmp_path / "t", model="engine")  # type: ignore[arg-type]
    assert done.counts["streams"] == 1


def test_the_inputs_of_a_pipeline_hold_no_password_and_another_one_changes_nothing(
    with_password: Password, tmp_path: Path
) -> None:
    path = tmp_path / "p" / "inputs" / "engine.json"
    write_inputs(tmp_path / "p", {"engine": [with_password(secret)]}, {})
    before = path.stat().st_mtime_ns, path.read_text()
    write_inputs(tmp_path / "p", {"engine": [with_password("new")]}, {})
    assert secret not in before[1]
    assert (path.stat().st_mtime_ns, path.read_text()) == before


def test_the_inputs_of_an_earlier_version_are_used_with_their_password_and_lose_it(
    with_password: Password, tmp_path: Path
) -> None:
    path = tmp_path / "p" / "inputs" / "engine.json"
    write_inputs(tmp_path / "p", {"engine": [with_password(secret)]}, {})
    path.write_text(path.read_text().replace("postgres@", f"postgres:{secret}@"))
    (inputs,) = read_inputs(tmp_path / "p", None).values()
    assert inputs.urls == [with_password(secret)]
    write_inputs(tmp_path / "p", {"engine": inputs.urls}, {})
    assert secret not in path.read_text()


def test_urls_that_differ_only_in_their_password_are_refused(with_password: Password, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="same without their secrets"):
        write_inputs(tmp_path / "p", {"engine": [with_password("one"), with_password("two")]}, {})
