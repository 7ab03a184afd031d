"""Every change to every column, row and item of a database log, against one oracle; `docs/formats` has its tables.

With `RUNSTATE_KILL_ROUNDS` all of them, otherwise a sample of a fixed seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.damage_oracle import Subject, attempt, check_reads, check_repair
from tests.database_damage import Damage, Scene, new_draft, scene_at, scenes, streams

from runstate.logs.registry import open_log

seed = 20261117
samples = {"sqlite": (150, 12), "postgresql": (25, 6), "snowflake": (6, 2), "dynamodb": (12, 3)}
"""How many damages are looked at without RUNSTATE_KILL_ROUNDS: through the log, and through the commands."""


def chosen(damages: list[Damage], count: int) -> list[Damage]:
    if "RUNSTATE_KILL_ROUNDS" in os.environ:
        return damages
    return random.Random(seed).sample(damages, min(count, len(damages)))


@pytest.fixture(params=scenes)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    made = scene_at(request.param, tmp_path / "log")
    yield made
    made.close()


def damaged(scene: Scene, damages: list[Damage]) -> Iterator[str]:
    """The log with each of the damages that the database lets happen."""
    for what, change in damages:
        scene.restore()
        if attempt(change, *scene.refused):
            yield what


def check_damage(scene: Scene, what: str, change: Damage) -> None:
    subject = Subject(lambda: open_log(scene.url), scene.content, scene.right, new_draft, what, scene.not_repaired)
    check_reads(subject)
    kept = {}
    for salvage in (False, True):
        scene.restore()
        change[1]()
        with open_log(scene.url) as log:
            there = {info.stream for info in log.streams()}
        for stream in streams:
            if stream in there:
                kept[stream, salvage] = len(check_repair(subject, stream, salvage=salvage)[1])
