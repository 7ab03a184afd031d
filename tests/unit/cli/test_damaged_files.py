"""Every kind of damage to every file of a stream, through the commands, against the oracle of all damaged logs.

With `RUNSTATE_KILL_ROUNDS` all of them, otherwise a few: the same each time.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.commands import Cli
from tests.damage_oracle import Commands
from tests.database_damage import fill, streams
from tests.unit.logs.test_damage_matrix import contents

count = 3
"""How many damages of each log are looked at."""
log, whole = Path("log"), Path("whole")


def damages() -> Iterator[tuple[str, Path, bytes | None]]:
    """One damage of each kind for each file of the stream `b`."""
    for path in sorted(log.rglob("*")):
        if path.is_file() and "b" in path.parts:
            seen: set[str] = set()
            for what, content in contents(path.read_bytes()):
                kind = what.rstrip("0123456789")
                if kind not in seen and content != path.read_bytes():
                    seen.add(kind)
                    yield f"{path.name}: {what}", path, content


def restore() -> None:
    shutil.rmtree(log)
    shutil.copytree(whole, log)


def tree() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in log.rglob("*") if path.is_file() and ".locks" not in path.parts}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["ndjson", "segments", "wal"])
def test_all_commands_agree_on_a_damaged_file(cli: Cli, scheme: str) -> None:
    url = f"{scheme}:log"
    fill(url)
    shutil.copytree(log, whole)
    commands = Commands(cli, url, streams, ("blob.",), ("--model", "engine"))
    commands.learn()
    found = list(damages())
    if "RUNSTATE_KILL_ROUNDS" not in os.environ:
        found = random.Random(17).sample(found, count)
    for what, path, content in found:
        kept: dict[bool, dict[str, int]] = {}
        for salvage in (False, True):
            restore()
            path.unlink()
            if content is not None:
                path.write_bytes(content)
            if not salvage:
                commands.check(what)
            kept[salvage] = commands.check_repair(what, tree, salvage=salvage)
        assert all(kept[True].get(stream, 0) >= number for stream, number in kept[False].items()), (what, kept)
