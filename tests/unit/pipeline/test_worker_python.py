"""The program that Spark's workers are started with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pyspark = pytest.importorskip("pyspark", reason="pip install 'runstate[spark]'")


def started_with(*entries: str) -> list[str]:
    """The Python that is started with this PYTHONPATH, and the PYTHONPATH that it gets."""
    from runstate.pipeline.spark.worker_python import worker_python

    script = "import json, os, sys; print(json.dumps([sys.executable, os.environ['PYTHONPATH']]))"
    command = [str(worker_python()), "-c", script]
    done = subprocess.run(command, env={"PYTHONPATH": ":".join(entries)}, capture_output=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def test_workers_start_without_spark_s_own_entries_and_keep_the_others() -> None:
    home = Path(pyspark.__file__).parent
    own = [f"{home}/python/lib/pyspark.zip", f"{home}/python/lib/py4j-src.zip", f"{home}/jars/spark-core.jar"]
    assert started_with(*own, *own, "/a b", "/c*/lib/pyspark.zip") == [sys.executable, "/a b:/c*/lib/pyspark.zip"]


def test_workers_start_without_any_pythonpath() -> None:
    assert started_with() == [sys.executable, ""]
