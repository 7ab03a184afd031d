"""Commands on Spark never delete or change a file that Runstate did not write, and write only below `--to`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.commands import Cli
from tests.foreign_files import Planted, spark_targets
from tests.pipeline.test_stages import quick

import runstate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_model = """
import msgspec
from runstate import Fact, TaggedModel

class Placed(msgspec.Struct, tag="placed", frozen=True):
    amount: int

class State(msgspec.Struct):
    total: int = 0

class Order(TaggedModel[Placed, State]):
    name, version = "NAME", 1
    events, state = Placed, State

    def evolve(self, state: State, fact: Fact[Placed]) -> State:
        return State(state.total + fact.event.amount)
"""


def add_run(name: str) -> None:
    with runstate.open("sqlite:runs.db") as store:
        run = store.run(name, tenant="acme", plan="nightly")
        run.started()
        run.completed()


@pytest.mark.parametrize("command", [each for each in spark_targets if each != "pipeline run --to"])
def test_a_second_run_keeps_files_that_were_added_to_its_own_directory(
    spark: SparkSession, cli: Cli, tmp_path: Path, command: str
) -> None:
    # Absolute, since the workers of Spark are in another directory.
    arguments = spark_targets[command].format(to=tmp_path / "target").replace("runs.db", f"{tmp_path}/runs.db").split()
    add_run("r-1")
    first = cli(*arguments)
    assert first.code == 0, first.err
    planted = Planted(tmp_path / "target")
    add_run("r-2")
    second = cli(*arguments)
    planted.check()
    if "audit" in command:
        assert (second.code, "holds the findings of another audit" in second.err) == (2, True)
    else:
        assert second.code == 0, second.err


def write_model(directory: Path, name: str = "order") -> None:
    directory.mkdir()
    (directory / "order.py").write_text(_model.replace("NAME", name))


def place_order(order: str, directory: Path) -> None:
    line = f'{{"stream": "o-1", "key": "{order}", "event": {{"type": "placed", "amount": 5}}}}\n'
    command = [*runstate_command, "append", "sqlite:orders.db", "--model", "shop/order.py:Order"]
    subprocess.run(command, cwd=directory, input=line.encode(), check=True, capture_output=True)


runstate_command = [sys.executable, "-m", "runstate"]


def test_a_model_in_a_file_names_the_directories_of_a_pipeline_and_files_of_others_stay(tmp_path: Path) -> None:
    write_model(tmp_path / "shop")
    place_order("first", tmp_path)
    run = ["pipeline", "run", "sqlite:orders.db", "--to", "out", "--model", "shop/order.py:Order", *quick]
    done = subprocess.run([*runstate_command, *run], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for path in ("inputs/order.json", "events/order/table.json", "snapshots/order/table.json", "findings/order"):
        assert (tmp_path / "out" / path).exists()
    assert {path.name for path in tmp_path.iterdir()} - {"spark-warehouse"} == {"shop", "orders.db", "out"}
    assert {path.name for path in (tmp_path / "shop").iterdir()} <= {"order.py", "__pycache__"}
    planted = Planted(tmp_path / "out")
    place_order("second", tmp_path)
    place = f"{tmp_path}/shop/order.py:Order"  # The same model, by another path.
    resume = ["pipeline", "resume", str(tmp_path / "out"), "--model", place, "--json", *quick]
    done = subprocess.run([*runstate_command, *resume], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert '"model":"order","events":2' in done.stdout
    planted.check()


@pytest.mark.parametrize("name", ["../../mine", "a/b", ".hidden", "", "a b", pytest.param("n" * 101, id="long")])
def test_a_model_whose_name_cannot_be_a_directory_is_refused_and_nothing_is_written(
    tmp_path: Path, cli: Cli, name: str
) -> None:
    write_model(tmp_path / "shop", name)
    runstate.open("sqlite:orders.db").close()
    before = sorted(tmp_path.rglob("*"))
    outcome = cli("pipeline", "run", "sqlite:orders.db", "--to", "out", "--model", "shop/order.py:Order")
    assert outcome.code == 2
    assert "cannot be the name of a directory" in outcome.err
    assert not os.path.exists("mine")
    assert [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in path.parts] == before
