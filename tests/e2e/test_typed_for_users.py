"""The installed wheel gives a user's `mypy --strict` types for the examples of the README and the guides."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import msgspec
import pytest

root = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("typed-for-users")]

misuse = """
import runstate
from runstate import Fact
from runstate.logs.log import EventLog
from thermostat import TargetSet, Thermostat


class HalfALog:
    def append(self, stream: str) -> None: ...


log: EventLog = HalfALog()
with runstate.open("sqlite:runs.db") as store:
    store.append_event("started")
    store.project_snapshot("r-1").no_such_field
with runstate.open("sqlite:home.db", Thermostat()) as home:
    home.append_event(TargetSet(21.5))
    home.append_event(Fact("kitchen", "warm", key="1"))
    home.project_snapshot("kitchen").no_such_field
"""
"""Every statement after the imports is wrong. A package without types would let mypy accept all of them."""


def _blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (root / page).read_text(), re.MULTILINE | re.DOTALL)


def _save_named(page: str, directory: Path) -> None:
    """Save every block of a page whose first line is a comment with a file's name."""
    for code in _blocks(page):
        if named := re.match(r"# (\w+\.py)\n", code):
            (directory / named[1]).write_text(code)


def _run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=300)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    # Not with `_run`: the tests may find hatchling by PYTHONPATH.
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    built = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    (path,) = directory.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def user(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's Python, with the wheel installed. Only third-party packages come from the environment of the tests."""
    home = tmp_path_factory.mktemp("user")
    venv.create(home, symlinks=True)
    python = home / "bin/python"
    installed = _run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    assert installed.returncode == 0, installed.stderr
    (site,) = home.glob("lib/python*/site-packages")
    (site / "third_party.pth").write_text(f"{Path(msgspec.__file__).parents[1]}\n")
    where = _run(python, "-c", "import runstate; print(runstate.__file__)").stdout
    assert where.startswith(str(site)), where
    return python


@pytest.fixture(scope="module")
def complaints(user: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What one run of `mypy --strict` says about each file of a user."""
    project = tmp_path_factory.mktemp("project")
    (project / "readme.py").write_text(_blocks("README.md")[0])
    _save_named("docs/guides/models.md", project)
    _save_named("docs/guides/logs.md", project)
    (project / "misuse.py").write_text(misuse)
    names = {path.name for path in project.glob("*.py")}
    assert names == {"readme.py", "thermostat.py", "door.py", "bakery.py", "my_log.py", "test_my_log.py", "misuse.py"}
    mypy: list[str | Path] = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--python-executable", user]
    done = _run(*mypy, *sorted(names), cwd=project)
    assert done.returncode == 1, f"{done.stdout}\n{done.stderr}"  # `misuse.py` has errors.
    found: dict[str, list[str]] = {name: [] for name in names}
    for line in done.stdout.splitlines()[:-1]:
        found[line.partition(":")[0]].append(line)
    return found


def test_the_wheel_says_that_it_is_typed(wheel: Path) -> None:
    assert "runstate/py.typed" in zipfile.ZipFile(wheel).namelist()


def test_the_ten_lines_of_the_readme_are_typed(complaints: dict[str, list[str]]) -> None:
    assert complaints["readme.py"] == []


@pytest.mark.parametrize("name", ["thermostat.py", "door.py", "bakery.py"])
def test_a_model_of_a_user_is_typed(complaints: dict[str, list[str]], name: str) -> None:
    assert complaints[name] == []


@pytest.mark.parametrize("name", ["my_log.py", "test_my_log.py"])
def test_a_log_of_a_user_is_typed(complaints: dict[str, list[str]], name: str) -> None:
    assert complaints[name] == []


def test_wrong_use_is_found_by_mypy(complaints: dict[str, list[str]]) -> None:
    found = [re.sub(r"^.*\[(.+)\]$", r"\1", line) for line in complaints["misuse.py"] if ": error: " in line]
    assert found == ["assignment", "arg-type", "attr-defined", "arg-type", "arg-type", "attr-defined"]


def test_the_ten_lines_of_the_readme_run_from_the_wheel(user: Path, tmp_path: Path) -> None:
    done = _run(user, "-c", _blocks("README.md")[0], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "COMPLETED\n"), done.stderr
