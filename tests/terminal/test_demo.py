"""The demo as a person sees it: from `make demo` to what to try next."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.terminal.conftest import Start, check_in_order

_root = Path(__file__).parents[2]
_demo_s = 400.0


@pytest.mark.slow
@pytest.mark.xdist_group("spark-commands")
def test_the_demo_says_what_happens_proves_it_and_ends_with_what_to_try(start: Start, tmp_path: Path) -> None:
    demo = start("demo")
    demo.wait_for("7 of 7", "starting Spark", timeout_s=_demo_s)
    assert demo.finish(_demo_s) == 0, demo.text
    for part in ("a producer appends", "starts again", "a projector", "an orchestrator", "an agent", "a daemon"):
        assert part in demo.text
    assert "killed (SIGKILL) in its second stage, and resumed" in demo.text
    assert "0 snapshots differ from a replay; 0 damaged" in demo.text
    assert "IDEMPOTENCY_CONTENT_MISMATCH" in demo.text
    assert "ingest daemon: finished earlier" in demo.text
    assert re.findall(r"^  (yes|NO) ", demo.text, re.MULTILINE) == ["yes"] * 5
    assert "starting Spark" not in demo.text
    (address,) = re.findall(r"file://(\S+/report\.html)", demo.unwrapped)
    assert b"site-03" in Path(address).read_bytes()
    assert not [path for path in (tmp_path / "demo").rglob("*") if path.lstat().st_mode & 0o077]
    check_in_order(demo)
    advice = demo.unwrapped.partition("Try next")[2]
    for command in re.findall(r"^  (runstate .+)$", advice, re.MULTILINE):
        if "pipeline" not in command:  # Another start of Spark.
            tried = start(shell=command, columns=200)
            assert tried.finish() == (1 if command == "runstate verify ndjson:demo/runs" else 0), tried.text


@pytest.mark.slow
def test_an_interrupted_demo_ends_its_processes(start: Start) -> None:
    demo = start("demo")
    demo.wait_for("2 of 7")
    demo.interrupt()
    assert demo.finish() == 130, demo.text
    check_in_order(demo)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What `make` looks at."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(_root / name, tmp_path)
    return tmp_path


def _make_demo(checkout: Path) -> str:
    """What `make demo` would do."""
    return subprocess.run(["make", "-n", "demo"], cwd=checkout, capture_output=True, text=True, check=True).stdout


def test_make_demo_installs_only_what_the_demo_needs(checkout: Path) -> None:
    planned = _make_demo(checkout)
    assert re.search(r"pip install .*'\.\[spark\]'", planned), planned
    assert "dev" not in planned
    assert ".venv-demo/bin/runstate demo" in planned


def test_make_demo_says_what_it_installs_and_how_long_it_takes(checkout: Path) -> None:
    planned = _make_demo(checkout)
    assert re.search(r"echo.*[Ii]nstall.*minute", planned), planned
    assert "--quiet" not in planned


def test_make_demo_uses_the_environment_that_is_there(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / ".ready").touch()
    planned = _make_demo(checkout)
    assert "pip install" not in planned
    assert ".venv/bin/runstate demo" in planned
