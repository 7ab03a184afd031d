"""The pipeline on a terminal: the stage under way, the stages that are done, and Ctrl-C. Each command starts a JVM."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.fleets import histories
from tests.terminal.conftest import Start, check_in_order
from tests.terminal.ptys import Terminal, environment, runstate_command

import runstate

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark-commands")]
pytest.importorskip("pyspark", reason="pip install 'runstate[spark]'")
_spark_s = 240.0
_quick = ["--master", "local[2]", "--conf", "spark.driver.memory=1g", "--conf", "spark.sql.shuffle.partitions=2"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all tests of this module work: a fleet in `fleet.db`."""
    made = tmp_path_factory.mktemp("pipeline")
    with runstate.open(f"sqlite:{made}/fleet.db", on_alert=lambda alert: None) as store:
        for lines in histories("engine", 0, 6).values():
            store.append_events([store.model.parse(line) for line in lines])
    return made


@pytest.fixture(scope="module")
def interrupted(directory: Path) -> Terminal:
    """A pipeline that was interrupted while Spark was starting."""
    command = runstate_command("pipeline", "run", "sqlite:fleet.db", "--to", "fleet", *_quick)
    run = Terminal(command, directory, environment(directory), 100, 30)
    run.wait_for_match(r"ingest engine: starting Spark[^\n]* 0:0[1-9]")
    run.interrupt()
    run.code = run.finish()
    return run


@pytest.fixture(scope="module")
def resumed(directory: Path, interrupted: Terminal) -> Terminal:
    """The same pipeline, resumed and finished, on a small terminal."""
    command = runstate_command("pipeline", "resume", "fleet", *_quick)
    resume = Terminal(command, directory, environment(directory, NO_COLOR="1"), 60, 20)
    resume.wait_for("ingest engine: finished", timeout_s=_spark_s)
    resume.wait_for("report", timeout_s=_spark_s)
    resume.code = resume.finish(_spark_s)
    return resume


def test_an_interrupted_pipeline_says_how_to_continue(interrupted: Terminal) -> None:
    assert interrupted.code == 130, interrupted.text
    assert "ingest engine: interrupted" in interrupted.text
    assert "runstate pipeline resume fleet" in interrupted.flat
    assert b"Traceback" not in interrupted.raw
    check_in_order(interrupted)


def test_a_resumed_pipeline_leaves_a_line_for_each_stage(resumed: Terminal) -> None:
    assert resumed.code == 0, resumed.text
    ended = [line.partition(" after ")[0] for line in resumed.lines if " after " in line]
    stages = [f"{stage}: finished" for stage in ("ingest engine", "replay engine", "audit engine", "report")]
    assert ended == ["ingest engine: interrupted", *stages] or ended == stages, resumed.text


def test_the_table_of_a_pipeline_stands_below_its_stages(resumed: Terminal) -> None:
    header = next(number for number, line in enumerate(resumed.lines) if line.startswith("model"))
    assert resumed.lines[header + 1].split()[0] == "engine", resumed.text
    assert "report: fleet/report.html" in resumed.flat
    assert b"Traceback" not in resumed.raw
    assert not resumed.has_colour
    check_in_order(resumed)


def test_the_display_shows_spark_tasks_and_time(resumed: Terminal) -> None:
    shown = resumed.raw.decode()
    assert "replay engine" in shown
    assert "/1 tasks" in shown


def test_a_stage_is_repeated_by_force(resumed: Terminal, start: Start) -> None:
    again = start("pipeline", "resume", "fleet", "--force", "report", *_quick)
    again.wait_for("ingest engine: finished earlier", "report: starting Spark", timeout_s=_spark_s)
    assert again.finish(_spark_s) == 0, again.text
    assert "report: finished after" in again.text
    check_in_order(again)


def test_replay_shows_its_tasks_and_ends_at_ctrl_c(directory: Path, start: Start) -> None:
    replay = start("pipeline", "replay", "sqlite:fleet.db", "--to", "cancelled", *_quick)
    replay.wait_for("replay: starting Spark")
    replay.wait_for("0/1 tasks", timeout_s=_spark_s)
    replay.interrupt()
    assert replay.finish(_spark_s) == 130, replay.text
    assert replay.lines[-1] == "interrupted"
    check_in_order(replay)


def test_replay_leaves_its_counts(directory: Path, start: Start) -> None:
    replay = start("pipeline", "replay", "sqlite:fleet.db", "--to", "snapshots", *_quick)
    assert replay.finish(_spark_s) == 0, replay.text
    assert [line.split() for line in replay.lines] == [["folded", "streams", "failed"], ["6", "6", "0"]]
    check_in_order(replay)


def test_ctrl_c_while_spark_starts_prints_no_traceback(directory: Path, start: Start) -> None:
    replay = start("pipeline", "replay", "sqlite:fleet.db", "--to", "never", *_quick)
    replay.wait_for_match(r"replay: starting Spark[^\n]* 0:0[2-9]")
    replay.interrupt()
    assert replay.finish(_spark_s) == 130, replay.text
    check_in_order(replay)


def test_stream_shows_how_much_it_has_projected_until_ctrl_c(directory: Path, start: Start) -> None:
    stream = start("pipeline", "stream", "sqlite:fleet.db", "--to", "console", "--state", "live", *_quick)
    with runstate.open(f"sqlite:{directory}/fleet.db") as store:
        events = sum(info.events for info in store.log.streams())
    stream.wait_for("following", f"{events} events", timeout_s=_spark_s)
    stream.interrupt()
    assert stream.finish(_spark_s) == 0, stream.text
    assert sum(line.startswith("engine-0-") for line in stream.lines) == 6, stream.text
    assert stream.lines[-1] == f"{events} events projected"
    check_in_order(stream)


def test_the_report_shows_the_clock_that_was_asked_for(directory: Path, start: Start) -> None:
    report = start("pipeline", "report", "sqlite:fleet.db", "--to", "page", "--clock", "persisted", *_quick)
    assert report.finish(_spark_s) == 0, report.text
    assert report.lines[-1] == "report: page/report.html"
    check_in_order(report)
    page = (directory / "page" / "report.html").read_text()
    assert re.findall(r'id="clock-(\w+)"[^>]* checked>', page) == ["persisted"]


def test_a_clock_that_does_not_exist_is_refused_before_spark_starts(directory: Path, start: Start) -> None:
    report = start("pipeline", "report", "sqlite:fleet.db", "--to", "never", "--clock", "wall")
    assert report.finish() == 2, report.text
    assert "There is no clock 'wall'; there are: emitted, persisted" in report.flat
    assert "Spark" not in report.text
    assert not (directory / "never").exists()


def test_the_shell_answers_statements_one_after_the_other(directory: Path, start: Start) -> None:
    shell = start("pipeline", "shell", "sqlite:fleet.db", *_quick)
    shell.wait_for("snapshots: stream, seq", "sql>", timeout_s=_spark_s)
    shell.type("SELECT count(DISTINCT stream) AS runs\n")
    shell.type("FROM events;\n")
    shell.wait_for_match(r"runs\s+6\s", timeout_s=_spark_s)
    shell.type("SELECT nonsense FROM events;\n")
    shell.wait_for("Spark refuses the query", "nonsense", timeout_s=_spark_s)
    shell.type("SELECT 1 +\n")
    shell.wait_for_match(r"1 \+\n\.\.\.>")
    shell.interrupt()  # What was begun is forgotten.
    shell.type("SELECT 40 + 2 AS answer;\n")
    shell.wait_for_match(r"answer\s+42\s", timeout_s=_spark_s)
    shell.type("\x04")
    assert shell.finish(_spark_s) == 0, shell.text
    assert b"Traceback" not in shell.raw


def test_sql_answers_and_refuses_in_one_line(directory: Path, start: Start) -> None:
    asked = start("pipeline", "sql", "SELECT count(*) AS runs FROM snapshots", "sqlite:fleet.db", *_quick)
    assert asked.finish(_spark_s) == 0, asked.text
    assert [line.strip() for line in asked.lines if line.strip()][-2:] == ["runs", "6"]
    check_in_order(asked)
