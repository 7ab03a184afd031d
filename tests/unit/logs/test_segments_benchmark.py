"""The benchmark of the segments log runs, and counts what its format page says of flushes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

root = Path(__file__).parents[3]


@pytest.mark.slow
def test_an_append_is_measured_beside_its_limits_and_its_flushes_are_those_of_the_format_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.segments", "--quick", "--only", "append-10", "--json", "figures.json"]
    environment = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "the same files and flushes" in done.stdout
    figures = json.loads((tmp_path / "figures.json").read_bytes())
    page = (root / "docs/formats/segments.md").read_text()
    assert figures["flushes"]["a plan of 1 event"] == 3
    assert [name for name, number in figures["flushes"].items() if f"| {name} | {number} |" not in page] == []
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]
