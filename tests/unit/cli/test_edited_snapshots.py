"""A stored snapshot that was edited or deleted: verify, replay --check and repair agree, in every log with files."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.commands import Cli

import runstate


@pytest.fixture(params=["ndjson", "segments", "wal"])
def url(request: pytest.FixtureRequest, cli: Cli) -> str:
    """A log in files with one finished run of the engine model."""
    found = f"{request.param}:log"
    with runstate.open(found, "engine") as store:
        run = store.run("r-1", tenant="t", plan="p")
        run.started()
        run.completed()
    return found


def snapshot_file() -> Path:
    (found,) = (path for path in Path("log").rglob("*") if path.is_file() and "snapshot" in path.name)
    return found


def edit() -> None:
    path = snapshot_file()
    data = path.read_bytes()
    assert b"COMPLETED" in data
    path.write_bytes(data.replace(b"COMPLETED", b"FAILED"))


engine = ("--model", "engine")


def test_an_edited_snapshot_is_damage_for_all_commands_until_it_is_repaired(url: str, cli: Cli) -> None:
    assert cli("verify", url).code == 0
    edit()
    assert cli("verify", url).code == 1
    checked = cli("replay", url, "--check", *engine)
    assert (checked.code, checked.out.startswith("r-1: ")) == (1, True)
    assert '"status":"COMPLETED"' in cli("snapshot", url, "r-1", "--json", *engine).out
    assert cli("repair", url, "--dry-run").code == 0
    assert cli("verify", url).code == 1
    assert cli("repair", url).code == 0
    assert cli("verify", url).code == 0
    assert cli("replay", url, "--check", *engine).code == 0
    assert cli("repair", url).err == "nothing to repair\n"


def test_a_deleted_snapshot_is_named_by_replay_check_and_rebuilt_by_replay(url: str, cli: Cli) -> None:
    snapshot_file().unlink()
    assert cli("replay", url, "--check", *engine).code == 1
    assert cli("replay", url, *engine).code == 0
    assert cli("replay", url, "--check", *engine).code == 0
