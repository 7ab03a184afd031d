"""Workers whose Python is not of the driver's version: the error names both, and what to set."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkRuntimeError
from tests.pipeline.fleet_logs import filled

from runstate.pipeline.spark.failures import PythonVersionMismatch, explain

_program = """
import json, sys
from pathlib import Path
from runstate.errors import RunstateError
from runstate.pipeline.jobs import ingest
from runstate.pipeline.spark.session import spark_session
from runstate.pipeline.spark.shipping import check_executors

url, to, python = sys.argv[1:]
conf = {"spark.pyspark.python": python, "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
found = []
with spark_session(master="local[2]", conf=conf) as spark:
    for job in (lambda: ingest(spark, url, Path(to)), lambda: check_executors(spark)):
        try:
            job()
        except RunstateError as error:
            found.append(error.as_data())
print(json.dumps(found))
"""

ours = f"{sys.version_info.major}.{sys.version_info.minor}"


def other_python() -> tuple[str, str]:
    """Another Python that this Spark can be imported by, and its version."""
    named = [shutil.which(f"python3.{minor}") for minor in range(10, 15)]
    installed = (Path.home() / ".pyenv" / "versions").glob("3.1*/bin/python3")
    for python in [*filter(None, named), *sorted(map(str, installed))]:
        asked = subprocess.run(
            [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True
        )
        if asked.returncode == 0 and (version := asked.stdout.strip()) != ours:
            return python, version
    pytest.skip(f"install a Python from 3.10 on that is not {ours}")


def test_another_python_is_named_with_both_versions_and_the_setting(tmp_path: Path, spark_home: str) -> None:
    python, version = other_python()
    url = filled("sqlite", "engine", tmp_path, runs=2)
    command = [sys.executable, "-c", _program, url, str(tmp_path / "events"), python]
    environment = {**os.environ, "SPARK_HOME": spark_home}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert len(told) == 2
    for each in told:
        cause = each["details"]["cause"]
        assert cause["code"] == "pipeline.python_version_mismatch"
        assert cause["details"] == {"worker": version, "driver": ours}
        assert f"workers run Python {version}, the driver runs Python {ours}" in each["message"]
        assert "spark.pyspark.python" in each["message"]
        assert "PYSPARK_PYTHON" in each["message"]
        assert "Traceback" not in each["message"]


def test_what_spark_says_about_versions_is_understood() -> None:
    said = PySparkRuntimeError(
        errorClass="PYTHON_VERSION_MISMATCH", messageParameters={"worker_version": "3.9", "driver_version": "3.13"}
    )
    frames = 'Traceback (most recent call last):\n  File "worker.py", line 1, in main\n'
    found = explain(PySparkRuntimeError(f"{frames}pyspark.errors.exceptions.base.PySparkRuntimeError: {said}\n"))
    assert isinstance(found, PythonVersionMismatch)
    assert found.details == {"worker": "3.9", "driver": "3.13"}
