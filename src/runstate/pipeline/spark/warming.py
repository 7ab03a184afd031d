"""Making Spark start faster: an archive of its classes, which Java maps into memory instead of loading them one by one.

Most of what a small job takes goes into reading, checking and linking thousands of classes. Java can keep them as they
are after that (class data sharing). An archive fits one Java and one Spark, and Java itself makes sure of it: with
anything else it starts as if there were none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from runstate.errors import RunstateError
from runstate.pipeline import jobs
from runstate.pipeline.audit import job as audit
from runstate.pipeline.report.figures import Part, report
from runstate.pipeline.spark.java import class_archive, find_java
from runstate.pipeline.spark.session import active_session, spark_session
from runstate.store import open as open_store

_timeout_s = 900


class WarmingFailed(RunstateError):
    """No archive of Spark's classes was made. Spark starts as before, only not faster."""

    code = "spark.warming_failed"


def warm() -> Path:
    """Run every kind of job once, and keep the classes that were loaded for it. Returns the archive: about 150 MB.

    Raises:
        Unsupported: pyspark is not installed.
        JavaMissing: there is no Java to run Spark on.
        WarmingFailed: a job has failed, or this Java has no archive of its own classes to build upon.
    """
    active_session()  # Says what is missing, if pyspark is.
    archive = class_archive(find_java())
    with TemporaryDirectory(prefix="warming-", dir=archive.parent) as directory:
        made = Path(directory, archive.name)
        said = _run_elsewhere(directory, f"-XX:ArchiveClassesAtExit={made} -Xlog:disable")
        if not made.exists():
            raise WarmingFailed(f"Java has kept no archive of Spark's classes; has it one of its own? {said}")
        # Whole at any moment: a Java that maps half an archive crashes.
        os.replace(made, archive)
    return archive


def _run_elsewhere(directory: str, java_options: str) -> str:
    """Run the jobs in another process. What was printed last; the output ends when Java has, the archive written."""
    try:
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-m", __name__, directory],
            env={**os.environ, "SPARK_SUBMIT_OPTS": java_options},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise WarmingFailed(f"The jobs have not ended within {_timeout_s} seconds") from error
    said = (done.stdout + done.stderr).strip()[-500:]
    if done.returncode:
        raise WarmingFailed(f"The jobs that were to load Spark's classes have failed: {said}")
    return said


def _run_jobs(directory: Path) -> None:
    log, table = f"sqlite:{directory / 'log.db'}", f"table:{directory / 'table'}"
    with open_store(log) as store:
        run = store.run("warm", tenant="warm", plan="warm")
        run.started()
        run.completed()
    with spark_session(master="local[2]") as spark:
        jobs.ingest(spark, [log], directory / "table")
        jobs.replay(spark, [table], directory / "snapshots")
        audit.summary(audit.audit(spark, [log], snapshots=directory / "snapshots"))
        report(spark, [Part([table], "engine")])


if __name__ == "__main__":
    _run_jobs(Path(sys.argv[1]))
