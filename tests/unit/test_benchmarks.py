"""The benchmarks run, and print what they promise. Nothing here is about how fast anything is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

root = Path(__file__).parents[2]


def bench(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run in `directory`, so that the stores that are measured are made, and removed, there."""
    command = [sys.executable, "-m", "benchmarks", "--quick", "--seconds", "0.05", *arguments]
    path = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=directory, env=path, capture_output=True, text=True, timeout=120, check=False)


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
