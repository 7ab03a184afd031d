"""Tasks that do not see the driver's directory: every job says so, writes nothing, and deletes nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.fleet_logs import filled

import runstate
from runstate.logs.archive.directory import ArchiveDirectory

_program = """
import json, sys
from pathlib import Path
from runstate.errors import RunstateError
from runstate.pipeline.audit.findings_table import write_findings
from runstate.pipeline.audit import job as audit
from runstate.pipeline.archive.job import archive
from runstate.pipeline.jobs import compact, ingest, replay
from runstate.pipeline.spark.session import spark_session
from runstate.retention import Archiving

url, files, private, python = sys.argv[1:]
private = Path(private)
conf = {"spark.pyspark.python": python, "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
found = {}
with spark_session(master="local[2]", conf=conf) as spark:
    jobs = {
        "archive": lambda: archive(spark, url, private / "old", Archiving(before="2100-01-01T00:00:00.000Z")),
        "ingest": lambda: ingest(spark, url, private / "events"),
        "ingest files": lambda: ingest(spark, files, private / "lines", model="engine"),
        "replay": lambda: replay(spark, url, private / "snapshots"),
        "audit": lambda: write_findings(audit.audit(spark, url), private / "findings"),
        "compact": lambda: compact(spark, private / "made"),
    }
    for name, job in jobs.items():
        try:
            job()
            found[name] = "done"
        except RunstateError as error:
            found[name] = error.as_data()
print(json.dumps(found))
"""


def hiding_python(directory: Path, at: Path, instead: Path | None = None) -> Path:
    """A Python that sees another directory, or an empty one, in the place of one that is there."""
    mount = f"mount -t tmpfs none {directory}" if instead is None else f"mount --bind {instead} {directory}"
    hide = f'{mount} && exec {sys.executable} "$@"'
    at.write_text(f"#!/bin/sh\nexec unshare --mount --map-root-user sh -c '{hide}' sh \"$@\"\n")
    at.chmod(0o755)
    seen = subprocess.run(
        [at, "-c", f"import os; print(os.listdir({str(directory)!r}))"], capture_output=True, text=True
    )
    if seen.stdout == f"{os.listdir(directory)}\n" or seen.returncode:
        pytest.skip(f"a process cannot have a directory to itself here: {seen.stderr}")
    return at


@pytest.fixture
def hiding(tmp_path: Path) -> tuple[Path, Path]:
    """A directory, and a Python that sees an empty one in its place."""
    private = tmp_path / "private"
    private.mkdir()
    (private / "driver").touch()
    return private, hiding_python(private, tmp_path / "python")


def done_by(program: str, *given: object, spark_home: str) -> Any:
    """What a program on Spark prints at its end, as JSON."""
    environment = {**os.environ, "SPARK_HOME": spark_home}
    command = [sys.executable, "-c", program, *map(str, given)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_no_job_goes_on_where_a_task_sees_another_directory(
    tmp_path: Path, hiding: tuple[Path, Path], spark_home: str
) -> None:
    private, python = hiding
    url = filled("sqlite", "engine", tmp_path, runs=6)
    (lines := tmp_path / "lines.ndjson").write_bytes(b"")
    with runstate.open(url, "engine", create=False) as store:
        streams = [head.stream for head in store.log.heads()]
        lines.write_bytes(b"".join(line + b"\n" for line in store.log.lines(streams[0])))
    found = done_by(_program, url, f"files:{lines}", private, python, spark_home=spark_home)
    missing = found.pop("compact")
    assert missing["code"] == "log.not_found"
    for name, told in found.items():
        assert told["details"]["cause"]["code"] == "pipeline.storage_not_shared", (name, told)
        assert "Nothing was written or deleted there" in told["message"], name
    with runstate.open(url, "engine", create=False) as store:
        assert [head.stream for head in store.log.heads()] == streams
    left = [path.name for path in private.rglob("*") if path.suffix in (".parquet", ".ndjson") or ".tmp" in path.name]
    assert left == []


_archive = """
import json, sys
from pathlib import Path
from runstate.errors import RunstateError
from runstate.pipeline.archive.job import archive
from runstate.pipeline.spark.session import spark_session
from runstate.retention import Archiving

url, to, python = sys.argv[1:]
conf = {"spark.pyspark.python": python, "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
with spark_session(master="local[2]", conf=conf) as spark:
    try:
        archive(spark, url, Path(to), Archiving(before="2100-01-01T00:00:00.000Z"))
        found = "done"
    except RunstateError as error:
        found = error.as_data()
print(json.dumps(found))
"""


def test_nothing_is_deleted_where_only_the_packs_are_on_a_disk_of_the_task(tmp_path: Path, spark_home: str) -> None:
    """The marker of the archive's directory is seen by all; what stands below it is not."""
    url, to = filled("sqlite", "engine", tmp_path, runs=6), tmp_path / "old"
    ArchiveDirectory(to).prepare("engine")
    (to / "packs" / "here").touch()
    python = hiding_python(to / "packs", tmp_path / "python")
    (to / "packs" / "here").unlink()
    with runstate.open(url, "engine", create=False) as store:
        streams = [head.stream for head in store.log.heads()]
    told = done_by(_archive, url, to, python, spark_home=spark_home)
    assert told["code"] == "pipeline.storage_not_shared"
    assert "Nothing was deleted from the log" in told["message"]
    assert told["details"]["host"] == socket.gethostname()
    with runstate.open(url, "engine", create=False) as store:
        assert [head.stream for head in store.log.heads()] == streams


_sources = """
import json, sys
from pathlib import Path
from runstate.errors import RunstateError
from runstate.pipeline.audit import job as audit
from runstate.pipeline.audit.findings_table import write_findings
from runstate.pipeline.archive.job import archive
from runstate.pipeline.jobs import ingest, replay
from runstate.pipeline.spark.session import spark_session
from runstate.retention import Archiving

url, model, to, python = sys.argv[1:]
to = Path(to)
conf = {"spark.pyspark.python": python, "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
found = {}
with spark_session(master="local[2]", conf=conf) as spark:
    jobs = {
        "archive": lambda: archive(spark, url, to / "old", Archiving(before="2100-01-01T00:00:00.000Z"), model=model),
        "ingest": lambda: ingest(spark, url, to / "events", model=model),
        "replay": lambda: replay(spark, url, to / "snapshots", model=model),
        "audit": lambda: audit.summary(audit.audit(spark, url, model=model)),
        "audit written": lambda: write_findings(audit.audit(spark, url, model=model), to / "findings"),
    }
    for name, job in jobs.items():
        try:
            job()
            found[name] = "done"
        except RunstateError as error:
            found[name] = error.as_data()
print(json.dumps(found))
"""


_is_soak = "RUNSTATE_KILL_ROUNDS" in os.environ
_views = [("ndjson", True), ("ndjson", False), ("sqlite", False)]


@pytest.mark.parametrize(("scheme", "is_empty"), _views if _is_soak else _views[1:2])
def test_no_job_works_on_fewer_streams_than_the_driver_sees(
    tmp_path: Path, spark_home: str, scheme: str, is_empty: bool
) -> None:
    model = "rundir" if scheme == "ndjson" else "engine"
    (whole := tmp_path / "whole").mkdir()
    (fewer := tmp_path / "fewer").mkdir()
    (to := tmp_path / "to").mkdir()
    url = filled(scheme, model, whole, runs=6)
    if not is_empty:
        filled(scheme, model, fewer, runs=4)
        (fewer / "worker").touch()
    with runstate.open(url, model, create=False) as store:
        streams = [head.stream for head in store.log.heads()]
    hidden, instead = (whole, fewer) if scheme == "sqlite" else (whole / f"ndjson-{model}", fewer / f"ndjson-{model}")
    python = hiding_python(hidden, tmp_path / "python", None if is_empty else instead)
    found = done_by(_sources, url, model, to, python, spark_home=spark_home)
    for name, told in found.items():
        assert told != "done", name
        assert told["code"] == "pipeline.failed", (name, told)
        assert told["details"]["stage"] == name.split()[0]
        assert told["details"]["cause"]["code"] == "pipeline.source_not_shared", (name, told)
        assert told["details"]["cause"]["details"]["host"] == socket.gethostname()
        assert "the same files on every machine" in told["message"]
    with runstate.open(url, model, create=False) as store:
        assert [head.stream for head in store.log.heads()] == streams
    assert not (to / "findings").exists()
