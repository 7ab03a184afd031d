"""Every change to every column, row and item of a database log, against one oracle; `docs/formats` has its tables.

With `RUNSTATE_KILL_ROUNDS` all of them, otherwise a sample: the same each time.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.commands import Cli
from tests.damage_oracle import Commands, Subject, check_reads, check_repair
from tests.database_damage import Change, Damage, Scene, SqliteScene, new_draft, scene_at, scenes, streams

from runstate.errors import LogDamaged
from runstate.logs.registry import open_log

samples = {"sqlite": (12, 4), "postgresql": (5, 1), "snowflake": (2, 1), "dynamodb": (2, 1)}
"""How many damages are looked at: through the log, and through the commands."""
file_damages = 5
not_repaired = {
    "sqlite": ("blob.", "model.", "sqlite."),
    "postgresql": ("blob.", "model.", "postgres."),
    "snowflake": ("blob.", "model."),
    "dynamodb": ("blob.", "model.", "dynamodb.feed_"),
}
"""As the format pages say: what repair cannot help with. The name of a model is stored once."""
is_soak = "RUNSTATE_KILL_ROUNDS" in os.environ


def chosen(damages: list[Damage], count: int) -> list[Damage]:
    return damages if is_soak else random.Random(17).sample(damages, count)


@pytest.fixture(scope="module", params=scenes)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = scene_at(request.param, tmp_path_factory.mktemp("damage") / "log")
    yield made
    made.close()


@pytest.fixture
def scene(whole: Scene) -> Scene:
    whole.restore()
    return whole


@pytest.mark.slow
def test_no_change_gives_a_wrong_event_and_every_repair_does_what_it_says(scene: Scene) -> None:
    # A model that was changed is found by the commands, which know the models.
    damages = [damage for damage in scene.damages() if ".model" not in damage[0]]
    seen = 0
    for what, change in chosen(damages, samples[scene.scheme][0]):
        subject = Subject(lambda: open_log(scene.url), scene.content, scene.right, new_draft, what)
        if not scene.damage(change):
            continue
        check_reads(subject)
        kept: dict[tuple[str, bool], int] = {}
        for salvage in (False, True):
            scene.damage(change)
            with open_log(scene.url) as log:
                there = [info.stream for info in log.streams() if info.stream in streams]
            for stream in there:
                kept[stream, salvage] = len(check_repair(subject, stream, salvage=salvage)[1])
        assert all(kept[stream, True] >= kept[stream, False] for stream in there), (what, kept)
        seen += 1
    assert seen


@pytest.mark.slow
def test_all_commands_agree_on_a_damaged_database(scene: Scene, cli: Cli) -> None:
    commands = Commands(cli, scene.url, streams, not_repaired[scene.scheme])
    commands.learn()
    for what, change in chosen(scene.damages(), samples[scene.scheme][1]):
        check_commands(commands, scene, what, change)


def check_commands(commands: Commands, scene: Scene, what: str, change: Change) -> None:
    if not scene.damage(change):
        return
    commands.check(what)
    kept: dict[bool, dict[str, int]] = {}
    for salvage in (False, True):
        scene.damage(change)
        kept[salvage] = commands.check_repair(what, scene.content, salvage=salvage)
    assert all(kept[True].get(stream, 0) >= count for stream, count in kept[False].items()), (what, kept)


@pytest.mark.slow
def test_no_damage_to_the_file_of_a_database_gives_a_wrong_answer(tmp_path: Path, cli: Cli) -> None:
    scene = scene_at("sqlite", tmp_path / "log")
    assert isinstance(scene, SqliteScene)
    commands = Commands(cli, scene.url, streams, not_repaired[scene.scheme])
    commands.learn()
    rounds = 400 if is_soak else file_damages
    for number, (what, change) in enumerate(scene.file_damages(seed=17, count=rounds)):
        scene.damage(change)
        subject = Subject(lambda: open_log(scene.url), scene.content, scene.right, new_draft, what)
        with suppress(LogDamaged):  # It cannot be opened at all.
            check_reads(subject)
        if is_soak or number < 2:
            scene.damage(change)
            commands.check(what)
