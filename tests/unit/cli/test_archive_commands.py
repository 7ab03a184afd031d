"""`archive` and `restore` as a user meets them: what they print where, and with which exit code."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
import typer
from tests.commands import Cli
from tests.fleets import histories

from runstate.cli.options import parse_age


@pytest.fixture
def filled(cli: Cli) -> Cli:
    lines = [line for lines in histories("engine", 0, 4).values() for line in lines]
    assert cli("append", "sqlite:log.db", stdin=b"\n".join(lines)).code == 0
    return cli


def test_finished_runs_are_archived_read_and_restored(filled: Cli) -> None:
    before = filled("fetch", "sqlite:log.db", "engine-0-0001").out
    snapshot = filled("snapshot", "sqlite:log.db", "engine-0-0001", "--json").out
    done = filled("archive", "sqlite:log.db", "--to", "old", "--older-than", "0s")
    assert (done.code, done.out.split("\n")[0].split()) == (0, ["stream", "outcome", "events", "bytes"])
    assert "3 archived" in done.err
    assert "1 left: not over" in done.err
    assert filled("fetch", "sqlite:log.db", "engine-0-0001").out == ""
    assert filled("fetch", "archive:old", "engine-0-0001").out == before
    assert filled("snapshot", "archive:old", "engine-0-0001", "--project", "--json").out == snapshot
    assert len(filled("streams", "archive:old", "--json").rows) == 3
    assert filled("verify", "archive:old").code == 0
    assert filled("replay", "archive:old", "--check").code == 2
    again = filled("archive", "sqlite:log.db", "--to", "old", "--older-than", "0s", "--json")
    assert (again.code, again.out) == (0, "")
    back = filled("restore", "old", "sqlite:log.db", "--json")
    assert (back.code, {row["outcome"] for row in back.rows}) == (0, {"restored"})
    assert filled("fetch", "sqlite:log.db", "engine-0-0001").out == before
    assert filled("snapshot", "sqlite:log.db", "engine-0-0001", "--json").out == snapshot
    assert filled("restore", "old", "sqlite:other.db").code == 0
    assert filled("fetch", "sqlite:other.db", "engine-0-0001").out == before


def test_one_run_alone_is_archived_and_restored(filled: Cli) -> None:
    everything = ("--older-than", "0s", "--json")
    one = filled("archive", "sqlite:log.db", "--to", "old", "--stream", "engine-0-0001", *everything)
    assert [(row["stream"], row["outcome"]) for row in one.rows] == [("engine-0-0001", "archived")]
    # A second time it is gone from the log, and that is as it should be.
    again = filled("archive", "sqlite:log.db", "--to", "old", "--stream", "engine-0-0001", *everything)
    assert (again.code, again.out) == (0, "")
    assert filled("archive", "sqlite:log.db", "--to", "old", "--stream", "nobody", *everything).code == 3
    assert filled("restore", "old", "sqlite:log.db", "--stream", "nobody").code == 3
    back = filled("restore", "old", "sqlite:log.db", "--stream", "engine-0-0001", "--dry-run", "--json")
    assert [row["outcome"] for row in back.rows] == ["restored"]
    assert filled("fetch", "sqlite:log.db", "engine-0-0001").out == ""


def test_young_runs_stay_and_a_dry_run_makes_no_directory(filled: Cli, tmp_path: Path) -> None:
    done = filled("archive", "sqlite:log.db", "--to", "old", "--dry-run")
    assert (done.code, done.out) == (0, "")
    assert "4 left: not old enough" in done.err
    told = filled("archive", "sqlite:log.db", "--to", "old", "--older-than", "0s", "--dry-run")
    assert "would be: 3 archived" in told.err
    assert not (tmp_path / "old").exists()
    assert filled("restore", "old", "sqlite:log.db").code == 3


def test_what_is_no_archive_or_cannot_be_written_is_told_before_anything_is_deleted(
    filled: Cli, tmp_path: Path
) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter.txt").write_text("mine")
    (tmp_path / "closed").mkdir(mode=0o500)
    before = filled("streams", "sqlite:log.db", "--json").out
    places = {"foreign": "'letter.txt'", "log.db": "is a file", "none/below": "No such file"}
    if os.getuid():
        places["closed"] = "cannot be written"
    for place, why in places.items():
        done = filled("archive", "sqlite:log.db", "--to", place, "--older-than", "0s")
        assert (done.code, done.out) == (2, ""), place
        assert why in done.err
    done = filled("archive", "archive:foreign", "--to", "old", "--model", "engine")
    assert done.code == 2
    assert filled("streams", "sqlite:log.db", "--json").out == before
    assert [path.name for path in (tmp_path / "foreign").iterdir()] == ["letter.txt"]


def test_a_refused_run_is_named_and_gives_exit_code_1(filled: Cli) -> None:
    everything = ("--to", "old", "--older-than", "0s", "--json")
    assert filled("archive", "sqlite:log.db", *everything).code == 0
    lines = histories("engine", 0, 1)["engine-0-0000"]
    filled("append", "sqlite:other.db", stdin=b"\n".join(lines))  # The same run, at another time.
    done = filled("archive", "sqlite:other.db", *everything)
    assert done.code == 1
    assert [(row["stream"], row["outcome"], row["code"]) for row in done.rows] == [
        ("engine-0-0000", "refused", "archive.conflict")
    ]
    back = filled("restore", "old", "sqlite:other.db", "--json")
    assert (back.code, {row["outcome"] for row in back.rows}) == (1, {"refused", "restored"})


def test_a_late_retry_of_an_archived_run_changes_nothing_and_new_events_are_refused(filled: Cli) -> None:
    everything = ("--to", "old", "--older-than", "0s", "--json")
    assert filled("archive", "sqlite:log.db", *everything).code == 0
    lines = histories("engine", 0, 1)["engine-0-0000"]
    again = filled("append", "sqlite:log.db", stdin=b"\n".join(lines))
    assert (again.code, {row["persisted"] for row in again.rows}) == (0, {False})
    new = msgspec.json.encode(msgspec.json.decode(lines[0]) | {"idempotencyKey": "new", "eventId": str(uuid4())})
    refused = filled("append", "sqlite:log.db", stdin=new)
    assert (refused.code, "stream.deleted" in refused.err, "old" in refused.err) == (2, True, True)
    assert "was moved to archive:" in filled("snapshot", "sqlite:log.db", "engine-0-0000").err.replace("\n", " ")
    back = filled("restore", "old", "sqlite:log.db", "--json")
    assert (back.code, {row["outcome"] for row in back.rows}) == (0, {"restored"})
    assert filled("append", "sqlite:log.db", stdin=new).code == 0


@pytest.mark.parametrize(
    ("text", "back"),
    [
        ("30d", timedelta(days=30)),
        ("12h", timedelta(hours=12)),
        ("45m", timedelta(minutes=45)),
        ("2w", timedelta(weeks=2)),
        ("0s", timedelta()),
    ],
)
def test_durations_are_written_as_people_write_them(text: str, back: timedelta) -> None:
    assert abs(parse_age(text) - (datetime.now(UTC) - back)) < timedelta(seconds=60)


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1.5d", "30 days", "1y", "99999999w", "999999999999d", "٣d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_age(text)


def test_a_restore_whose_arguments_are_swapped_says_so(filled: Cli) -> None:
    assert filled("archive", "sqlite:log.db", "--to", "old", "--older-than", "0s").code == 0
    done = filled("restore", "sqlite:log.db", "old")
    assert done.code == 2
    assert "name the archive's directory first" in done.err.replace("\n", " ")


def test_a_stream_of_another_model_is_archived_with_the_model_that_it_records(filled: Cli) -> None:
    lines = [line for lines in histories("rundir", 0, 2).values() for line in lines]
    assert filled("append", "sqlite:log.db", "--model", "rundir", stdin=b"\n".join(lines)).code == 0
    everything = ("--to", "old", "--older-than", "0s", "--json")
    (info,) = filled("streams", "sqlite:log.db", "--model", "rundir", "--json").rows[:1]
    mixed = filled("archive", "sqlite:log.db", "--stream", info["stream"], "--stream", "engine-0-0001", *everything)
    assert (mixed.code, "'engine'" in mixed.err, "'rundir'" in mixed.err) == (2, True, True)
    assert not os.path.exists("old")
    done = filled("archive", "sqlite:log.db", "--stream", info["stream"], *everything)
    assert (done.code, [row["stream"] for row in done.rows]) == (0, [info["stream"]])
    assert filled("streams", "archive:old", "--json").rows[0]["model"] == "rundir"
