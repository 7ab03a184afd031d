"""Stream ids: database logs keep any id of up to 512 bytes, file logs only what can be the name of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Cli
from tests.log_urls import url_at

import runstate
from runstate.errors import InvalidStream
from runstate.models.engine import RunEventWrite
from runstate.models.model import check_file_stream, check_stream

databases = ["memory", "sqlite", "postgresql", "dynamodb", "snowflake"]
files = ["ndjson", "segments", "wal"]
path_like = ["..", ".", "a/b", "../../x", "/etc/passwd", "a\\b", "team/é/nightly", "x" * 512, "é" * 256]
never = ["", "a\0b", "a\nb", "a\x7fb", "\ud800", "x" * 513, "é" * 257]


def whole_run(url: str, run_id: str) -> str:
    with runstate.open(url, "engine") as store:
        run = store.run(run_id, tenant="acme", plan="nightly")
        run.started()
        run.completed()
        assert [event.run_id for event in store.fetch_events(run_id)] == [run_id, run_id]
        assert [info.stream for info in store.log.streams()] == [run_id]
        snapshot = store.get_snapshot(run_id)
        assert snapshot is not None
        return snapshot.status


@pytest.mark.parametrize("run_id", path_like, ids=lambda text: ascii(text[:20]))
@pytest.mark.parametrize("scheme", databases)
def test_a_database_keeps_a_run_id_like_a_path(scheme: str, run_id: str, tmp_path: Path) -> None:
    assert whole_run(url_at(scheme, tmp_path / "log"), run_id) == "COMPLETED"


@pytest.mark.parametrize("run_id", path_like, ids=lambda text: ascii(text[:20]))
@pytest.mark.parametrize("scheme", files)
def test_a_file_log_refuses_what_cannot_be_a_file_name(scheme: str, run_id: str, tmp_path: Path) -> None:
    place = tmp_path / "deep" / "log"
    place.parent.mkdir()
    with runstate.open(url_at(scheme, place), "engine") as store:
        calls: list[Any] = [
            lambda: store.run(run_id, tenant="acme", plan="nightly").started(),
            lambda: store.fetch_events(run_id),
            lambda: store.project_snapshot(run_id),
            lambda: store.delete_stream(run_id),
        ]
        for call in calls:
            with pytest.raises(InvalidStream, match="file name"):
                call()
    outside = [path for path in tmp_path.rglob("*") if place not in (path, *path.parents) and path != place.parent]
    assert outside == []


@pytest.mark.parametrize("scheme", files)
def test_a_file_log_writes_nothing_of_a_batch_with_an_id_that_it_cannot_hold(
    scheme: str, tmp_path: Path, write: Callable[..., RunEventWrite]
) -> None:
    with runstate.open(url_at(scheme, tmp_path / "log"), "engine") as store:
        with pytest.raises(InvalidStream) as refused:
            store.append_events([write(run="a"), write(run="b"), write(run="a/b")])
        assert (refused.value.details["index"], store.log.streams()) == (2, [])


def test_the_refusal_of_a_file_log_names_the_logs_that_take_the_id(tmp_path: Path) -> None:
    with (
        runstate.open(f"ndjson:{tmp_path}/log", "engine") as store,
        pytest.raises(InvalidStream, match=r"'a/b' cannot be a file name.*sqlite"),
    ):
        store.fetch_events("a/b")


@pytest.mark.parametrize("stream", never, ids=lambda text: ascii(text[:20]))
def test_no_log_takes_an_id_that_is_empty_too_long_or_not_printable(stream: str) -> None:
    for check in (check_stream, check_file_stream):
        with pytest.raises(InvalidStream):
            check(stream)


# --- between logs ------------------------------------------------------------------------------------------


@pytest.fixture
def mixed(cli: Cli) -> list[str]:
    """`mixed.db`: one run whose id can be a file name, and some whose ids cannot."""
    ids = ["plain", "team/nightly/1", "..", "x" * 300]
    for run_id in ids:
        with runstate.open("sqlite:mixed.db") as store:
            run = store.run(run_id, tenant="acme", plan="nightly")
            run.started()
            run.completed()
    return ids


def test_a_copy_to_a_file_log_names_each_stream_that_it_cannot_hold(cli: Cli, mixed: list[str]) -> None:
    copied = cli("copy", "sqlite:mixed.db", "ndjson:runs")
    refused = [line for line in copied.out.splitlines() if "cannot be a file name" in line]
    assert (copied.code, len(refused), sorted(path.name for path in Path("runs").glob("[!.]*"))) == (1, 3, ["plain"])


def test_an_archive_holds_runs_with_any_id_and_gives_them_back(cli: Cli, mixed: list[str]) -> None:
    assert cli("archive", "sqlite:mixed.db", "--to", "archive", "--older-than", "0s").code == 0
    assert cli("verify", "archive:archive").code == 0
    assert cli("restore", "archive", "sqlite:mixed.db").code == 0
    with runstate.open("sqlite:mixed.db") as store:
        assert [info.stream for info in store.log.streams()] == sorted(mixed)
        assert {store.project_snapshot(run_id).status for run_id in mixed} == {"COMPLETED"}


def test_a_restore_to_a_file_log_names_each_run_that_it_cannot_hold(cli: Cli, mixed: list[str]) -> None:
    cli("archive", "sqlite:mixed.db", "--to", "archive", "--older-than", "0s")
    restored = cli("restore", "archive", "ndjson:runs", "--json")
    outcomes = {row["stream"]: row["outcome"] for row in restored.rows}
    assert (restored.code, outcomes) == (1, dict.fromkeys(mixed, "refused") | {"plain": "restored"})
    assert sorted(path.name for path in Path("runs").glob("[!.]*")) == ["plain"]
