"""The pipeline as a run: killed in every stage and resumed, brought up to date, and what it refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from tests.fleets import histories
from tests.pipeline.fleet_logs import filled, local_snapshots, table_snapshots

from runstate.store import open as open_store

quick = ["--master", "local[2]", "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"]
quick += ["--conf", "spark.driver.memory=1g", "--conf", "spark.sql.shuffle.partitions=2"]


killed_stages = ("replay", "audit", "report") if "RUNSTATE_KILL_ROUNDS" in os.environ else ("audit",)
"""Beside the first one. Each kill costs a start of Spark: all of them are for `make soak`."""


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "runstate", "pipeline", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def pipeline(*arguments: str) -> tuple[int, str, str]:
    process = start(*arguments)
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def trail(to: Path) -> list[dict[str, object]]:
    path = to / "runs" / "pipeline" / "events.ndjson"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [msgspec.json.decode(line) for line in lines]


def items(to: Path, kind: str) -> list[str]:
    found = [event["payload"] for event in trail(to) if event["type"] == kind]
    return [str(payload["work_item_id"]).partition(":")[2] for payload in found if isinstance(payload, dict)]


def finished(to: Path) -> Counter[str]:
    """How often each stage of each model has come to its end, whatever the attempt."""
    found = [event["payload"] for event in trail(to) if event["type"] == "WORK_ITEM_FINISHED"]
    ended = [p for p in found if isinstance(p, dict) and p["status"] == "finished"]
    return Counter(":".join(str(p["work_item_id"]).split(":")[1::2]) for p in ended)


def killed_in(stage: str, process: subprocess.Popen[str], to: Path) -> None:
    """SIGKILL once the stage has been started; its own process and Spark die with it."""
    deadline = time.monotonic() + 300
    while not any(item.startswith(f"{stage}:") for item in items(to, "WORK_ITEM_STARTED")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1.0)  # Some way into the stage, which takes seconds.
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


class Unbroken(NamedTuple):
    """A run that nobody has interrupted, as it was right after its end."""

    urls: list[str]
    to: Path
    printed: str
    finished: Counter[str]
    report: bytes
    snapshots: dict[str, dict[str, tuple[int, bytes]]]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    directory = tmp_path_factory.mktemp("unbroken")
    urls = [filled("sqlite", "engine", directory, runs=8), filled("ndjson", "rundir", directory, runs=4)]
    to = directory / "out"
    code, out, err = pipeline("run", *urls, "--to", str(to), "--json", *quick)
    assert code == 0, err
    snapshots = {model: table_snapshots(to / "snapshots" / model) for model in ("engine", "rundir")}
    return Unbroken(urls, to, out, finished(to), (to / "report.html").read_bytes(), snapshots)


def test_killed_in_its_stages_it_ends_like_an_unbroken_run_and_no_stage_is_redone(
    unbroken: Unbroken, tmp_path: Path
) -> None:
    urls, broken = unbroken.urls, tmp_path / "broken"
    killed_in("ingest", start("run", *urls, "--to", str(broken), *quick), broken)
    for stage in killed_stages:
        killed_in(stage, start("resume", str(broken), *quick), broken)
    code, _, err = pipeline("resume", str(broken), *quick)
    assert code == 0, err
    assert finished(broken) == unbroken.finished
    assert set(finished(broken).values()) == {1}
    for model, url in zip(("engine", "rundir"), urls, strict=True):
        assert table_snapshots(broken / "snapshots" / model) == unbroken.snapshots[model] == local_snapshots(url, model)
    assert (broken / "report.html").read_bytes() == unbroken.report


def test_a_changed_log_makes_exactly_what_depends_on_it_anew(unbroken: Unbroken) -> None:
    """The last test of the unbroken run, since it changes one of its logs."""
    urls, to, before = unbroken.urls, unbroken.to, unbroken.finished
    assert {row["model"]: row["runs"] for row in msgspec.json.decode(unbroken.printed)} == {"engine": 8, "rundir": 4}
    assert set(before.values()) == {1}
    code, _, err = pipeline("run", *urls, "--to", str(to), *quick)
    assert (code, finished(to)) == (0, before), err
    with open_store(urls[1], "rundir", on_alert=lambda alert: None) as store:
        (lines,) = histories("rundir", seed=9, runs=1).values()
        store.append_events([store.model.parse(line) for line in lines])
    code, _, err = pipeline("resume", str(to), *quick)
    assert code == 0, err
    again = finished(to) - before
    assert again == Counter({"ingest:rundir": 1, "replay:rundir": 1, "audit:rundir": 1, "report:-": 1})
    assert table_snapshots(to / "snapshots" / "rundir") == local_snapshots(urls[1], "rundir")


def test_damage_is_told_by_the_exit_code_and_the_report(tmp_path: Path) -> None:
    url = filled("ndjson", "rundir", tmp_path, runs=3)
    path = tmp_path / "ndjson-rundir" / "rundir-0-0001" / "events.ndjson"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:4], *lines[5:]]))
    to = tmp_path / "out"
    code, out, err = pipeline("run", url, "--to", str(to), *quick)
    assert code == 1, err
    assert "the audit has found damage" in err
    assert b"EVENT_CHAIN_BROKEN" in (to / "report.html").read_bytes()
    assert "rundir" in out


def test_a_stage_that_fails_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    url, to = filled("sqlite", "engine", tmp_path, runs=3), tmp_path / "out"
    killed_in("replay", start("run", url, "--to", str(to), *quick), to)
    events = min((to / "events" / "engine" / "events").glob("*.parquet"))
    data = bytearray(events.read_bytes())
    data[len(data) // 2] ^= 1
    events.write_bytes(data)
    code, _, err = pipeline("resume", str(to), *quick)
    assert code == 1
    assert "replay" in err
    assert events.name in err
    assert "  File " not in err
    assert not (to / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["run", "nonsense:x", "--to", "OUT"], 2, "is not a log URL"),
        (["run", "sqlite:/nowhere/x.db", "--to", "OUT"], 3, "There is no file /nowhere/x.db"),
        (["run", "sqlite:LOG", "--model", "nonsense", "--to", "OUT"], 2, "nonsense"),
        (["run", "sqlite:LOG", "--to", "FILE/out"], 2, "Choose an empty or new directory"),
        (["run", "sqlite:LOG", "--to", "OUT", "--conf", "nonsense"], 2, "write NAME=VALUE"),
        (["run", "memory:", "--to", "OUT"], 2, "memory of one process"),
        (["resume", "OUT"], 3, "There is no pipeline in"),
        (["quarantine", "OUT"], 3, "There is no table in"),
        (["replay", "table:OUT", "--to", "OUT2"], 3, "There is no table in"),
    ],
)
def test_a_bad_request_is_refused_before_anything_is_begun(
    tmp_path: Path, arguments: list[str], code: int, told: str
) -> None:
    filled("sqlite", "engine", tmp_path, runs=1)
    (tmp_path / "FILE").write_text("x")
    places = {"LOG": "sqlite-engine", "OUT2": "out2", "OUT": "out", "FILE": "FILE"}
    given = []
    for argument in arguments:
        for name, place in places.items():
            argument = argument.replace(name, str(tmp_path / place))
        given.append(argument)
    found, _, err = pipeline(*given)
    assert told in err.replace("\n", " ")
    assert found == code
    assert not (tmp_path / "out" / "runs").exists()
