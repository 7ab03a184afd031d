"""The benchmarks run, and print what they promise. Nothing here is about how fast anything is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.postgres_server import server_url

root = Path(__file__).parents[2]


def bench(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run in `directory`, so that the stores that are measured are made, and removed, there."""
    return run(directory, "benchmarks", "--quick", "--seconds", "0.05", *arguments)


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    path = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=directory, env=path, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_a_case_prints_its_ratio_and_its_aim(tmp_path: Path) -> None:
    done = bench(tmp_path, "--only", "fold-progress", "--json", "figures.json", "--plot", "bars.png")
    assert done.returncode == 0, done.stderr
    assert "decode alone" in done.stdout
    assert "x (" in done.stdout
    assert "PASS" in done.stdout or "MISS" in done.stdout
    (case,) = json.loads((tmp_path / "figures.json").read_bytes())["cases"]
    assert case["limits"][0]["ratio"]["median"] > 0
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_an_append_is_measured_beside_its_limits_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = bench(tmp_path, "--only", "append-1")
    assert done.returncode == 0, done.stderr
    assert "raw executemany" in done.stdout
    assert "write + fdatasync" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_unknown_case_is_refused_with_the_names_there_are(tmp_path: Path) -> None:
    done = bench(tmp_path, "--only", "no-such-case")
    assert done.returncode == 2
    assert "append-100" in done.stderr


@pytest.mark.slow
def test_an_append_to_postgres_is_measured_beside_a_peer_and_the_server(tmp_path: Path) -> None:
    asked = ("--only", "append-100", "--rounds", "1", "--json", "figures.json", "--plot", "bars.png")
    done = run(tmp_path, "benchmarks.postgres", "--quick", *asked)
    assert done.returncode == 0, done.stderr
    assert "≥ 2.00x" in done.stdout
    (case,) = json.loads((tmp_path / "figures.json").read_bytes())["cases"]
    assert [limit["name"] for limit in case["limits"]] == [
        "eventsourcing",
        "eventsourcing, functions",
        "eventsourcing, no feed",
        "INSERT",
        "COPY",
    ]
    assert all(limit["ratio"]["median"] > 0 for limit in case["limits"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bars.png", "figures.json"]


@pytest.mark.slow
def test_a_head_row_leaves_no_gap_and_hides_no_event_where_counters_do(tmp_path: Path) -> None:
    done = run(tmp_path, "benchmarks.postgres", "--quick", "--only", "faults", "--json", "figures.json")
    assert done.returncode == 0, done.stderr
    faults = json.loads((tmp_path / "figures.json").read_bytes())["faults"]
    gaps, missed, _, relations, _, crashed, refused = [list(fault["answers"].values()) for fault in faults]
    assert gaps == ["0", "10", "10"]
    assert missed == ["0", "4", "4"]
    assert relations == ["0", "1", "0"]
    assert crashed[0] == "0" < crashed[1]
    assert refused == ["-", "-", "25"]


@pytest.mark.slow
def test_postgres_is_not_measured_under_a_name_that_no_case_has(tmp_path: Path) -> None:
    done = run(tmp_path, "benchmarks.postgres", "--only", "no-such-case")
    assert done.returncode == 2
    assert "append-1-8-writers" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("contender", "column"),
    [
        ("log_appends", "body FROM events"),
        ("peer_appends", "state FROM stored_events"),
        ("insert_appends", "body FROM bare"),
        ("copy_appends", "body FROM bare"),
    ],
)
def test_all_sides_store_the_same_lines(contender: str, column: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(root)
    from benchmarks.postgres import contenders
    from benchmarks.postgres.server import Server

    source = contenders.batches(10, 20)
    ready = [next(source) for _ in range(4)]
    with Server(server_url(), None).place() as place, getattr(contenders, contender)(place) as prepare:
        for batch in ready:
            prepare(batch)()
        with place.connect() as session:
            stored = [len(line) for (line,) in session.execute(f"SELECT {column}".encode())]
    bodies = [body for batch in ready for *_, body in batch.rows if isinstance(body, bytes)]
    assert sorted(stored) == sorted(map(len, bodies))


@pytest.mark.slow
def test_a_live_projector_is_measured_while_it_catches_up_and_under_load(tmp_path: Path) -> None:
    asked = ("--sides", "in_process", "--backlog", "2000", "--seconds", "2", "--warm-up", "0.5")
    caught_up, steady = (run(tmp_path, "benchmarks.live", measure, *asked) for measure in ("catch-up", "steady"))
    assert (caught_up.returncode, steady.returncode) == (0, 0), caught_up.stderr + steady.stderr
    assert json.loads(caught_up.stdout)["events"] == 2000
    found = json.loads(steady.stdout)
    assert len(found["samples"]) == 11
    assert found["samples"][-1]["driverBytes"] > 0
    assert {"driverBytes", "checkpointFiles", "heldStreams"} <= found["perMinute"].keys()
    assert list(tmp_path.iterdir()) == []
