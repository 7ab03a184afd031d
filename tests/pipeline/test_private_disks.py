"""Tasks that do not see the driver's directory: every job says so, writes nothing, and deletes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.pipeline.fleet_logs import filled

import runstate

_program = """
import json, sys
from pathlib import Path
from runstate.errors import RunstateError
from runstate.pipeline import audit
from runstate.pipeline.archive import archive
from runstate.pipeline.jobs import compact, ingest, replay
from runstate.pipeline.session import spark_session
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
        "audit": lambda: audit.write(audit.audit(spark, url), private / "findings"),
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


@pytest.fixture
def hiding(tmp_path: Path) -> tuple[Path, Path]:
    """A directory, and a Python that sees an empty one in its place."""
    private, python = tmp_path / "private", tmp_path / "python"
    private.mkdir()
    hide = f'mount -t tmpfs none {private} && exec {sys.executable} "$@"'
    python.write_text(f"#!/bin/sh\nexec unshare --mount --map-root-user sh -c '{hide}' sh \"$@\"\n")
    python.chmod(0o755)
    (private / "driver").touch()
    seen = subprocess.run(
        [python, "-c", f"import os; print(os.listdir({str(private)!r}))"], capture_output=True, text=True
    )
    if seen.stdout != "[]\n":
        pytest.skip(f"a process cannot have a directory to itself here: {seen.stderr}")
    return private, python


def test_no_job_goes_on_where_a_task_sees_another_directory(
    tmp_path: Path, hiding: tuple[Path, Path], spark_home: str
) -> None:
    private, python = hiding
    url = filled("sqlite", "engine", tmp_path, runs=6)
    (lines := tmp_path / "lines.ndjson").write_bytes(b"")
    with runstate.open(url, "engine", create=False) as store:
        streams = [head.stream for head in store.log.heads()]
        lines.write_bytes(b"".join(line + b"\n" for line in store.log.lines(streams[0])))
    program = [sys.executable, "-c", _program, url, f"files:{lines}", str(private), str(python)]
    environment = {**os.environ, "SPARK_HOME": spark_home}
    done = subprocess.run(program, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    missing = found.pop("compact")
    assert missing["code"] == "log.not_found"
    for name, told in found.items():
        assert told["details"]["cause"]["code"] == "pipeline.storage_not_shared", (name, told)
        assert "Nothing was written or deleted there" in told["message"], name
    with runstate.open(url, "engine", create=False) as store:
        assert [head.stream for head in store.log.heads()] == streams
    left = [path.name for path in private.rglob("*") if path.suffix in (".parquet", ".ndjson") or ".tmp" in path.name]
    assert left == []
