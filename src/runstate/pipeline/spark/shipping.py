"""Send this package to executors that do not have it, and find out what else they lack.

What is sent is a zip of the package and its metadata, so that models and logs are found by their entry points there as
they are here. What has compiled parts cannot be imported from a zip: `check_executors` names what is missing.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import io
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runstate.errors import RunstateError, Unsupported
from runstate.logs.registry import entry_point_of, extra_of
from runstate.pipeline.spark.failures import readable
from runstate.pipeline.spark.private_files import process_directory
from runstate.storage.disk import write_private

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

executor_modules = ("msgspec", "rfc8785", "filelock", "pyarrow", "pandas", "deltalake", "runstate")
"""What every task of ours imports. One that opens a log imports that log's module, too, and with it its driver."""
_metadata = ("METADATA", "entry_points.txt")
_oldest_time = (1980, 1, 1, 0, 0, 0)


class ExecutorsIncomplete(RunstateError):
    """The Python of Spark's executors lacks packages that Runstate needs."""

    code = "spark.executors_incomplete"


def ship(spark: SparkSession, py_files: Sequence[str]) -> None:
    """Make each of `py_files` (.py, .zip) importable in every task of the session."""
    for path in py_files:
        if type(spark).__module__.startswith("pyspark.sql.connect"):
            spark.addArtifacts(path, pyfile=True)
        else:
            spark.sparkContext.addPyFile(path)


def package_zip() -> Path:
    """This package as a zip to be put on `sys.path`. The same content always gives the same name and the same bytes.

    Raises:
        Unsupported: this package is not installed, so that there are no entry points to send.
    """
    try:
        installed = distribution("runstate")
    except PackageNotFoundError as error:
        raise Unsupported(
            "Runstate is not installed here, and cannot be sent to executors: pip install runstate"
        ) from error
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in _files(importlib.resources.files("runstate"), "runstate"):
            archive.writestr(zipfile.ZipInfo(name, _oldest_time), file.read_bytes(), zipfile.ZIP_DEFLATED)
        for name in _metadata:
            text = installed.read_text(name) or ""
            place = f"runstate-{installed.version}.dist-info/{name}"
            archive.writestr(zipfile.ZipInfo(place, _oldest_time), text, zipfile.ZIP_DEFLATED)
    data = content.getvalue()
    path = process_directory() / f"runstate-{installed.version}-{hashlib.sha256(data).hexdigest()[:12]}.zip"
    write_private(path, data)
    return path


def _files(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name == "__pycache__":
            continue
        if entry.is_dir():
            yield from _files(entry, f"{name}/{entry.name}")
        else:
            yield f"{name}/{entry.name}", entry


def check_executors(
    spark: SparkSession, modules: Sequence[str] = executor_modules, *, urls: Sequence[str] = (), stage: str = ""
) -> None:
    """Run one small task that imports `modules` and the logs of `urls`, before a long job finds that one is missing.

    Raises:
        ExecutorsIncomplete: with the names of all that are missing, the logs that need them, and what to do.
        PipelineFailed: the task could not run, as with another version of Python.
    """
    from pyspark.sql.functions import lit, udf

    # A function inside a function is sent by value: a task could not even load one that is imported from this package.
    def missing(names: str) -> str:
        import importlib
        import json
        import sys

        lacking = {}
        for name in names.split():
            try:
                importlib.import_module(name)
            except ImportError as error:
                # One that is there, and cannot be loaded, is missed itself.
                lacking[name] = (isinstance(error, ModuleNotFoundError) and error.name) or name
        return json.dumps([sys.executable, lacking])

    logs = {point.module: point for url in urls if (point := entry_point_of(url)) is not None}
    # Without Arrow, since that may be what is missing.
    probe = udf(missing, "string", useArrow=False)
    with readable(stage or "check_executors"):
        row = spark.range(1).select(probe(lit(" ".join([*modules, *logs]))).alias("found")).collect()[0]
    python, found = msgspec.json.decode(row["found"], type=tuple[str, dict[str, str]])
    if not found:
        return
    plain = list(dict.fromkeys(found[name] for name in modules if name in found))
    # What every task needs is missed by every log, too, and is told once.
    drivers = {logs[name]: package for name, package in found.items() if name in logs and package not in plain}
    told = [*plain, *(f"{package}, which the {point.name} log needs" for point, package in drivers.items())]
    install = " ".join([*plain, *dict.fromkeys(map(extra_of, drivers))])
    raise ExecutorsIncomplete(
        f"{f'The stage {stage} cannot run: the' if stage else 'The'} executors' Python ({python}) cannot import "
        f"{', '.join(told)}. Install that where executors run (pip install {install}), or name a Python that has it "
        "in spark.pyspark.python",
        missing=list(dict.fromkeys([*plain, *drivers.values()])),
        python=python,
    )


def check_cluster(spark: SparkSession, stage: str, urls: Sequence[str] = ()) -> None:
    """`check_executors` where executors have a Python of their own; on this machine they have ours.

    Raises:
        ExecutorsIncomplete: as `check_executors` does.
    """
    # Imported here: sessions are made with what this module sends.
    from runstate.pipeline.spark.session import is_local, is_remote

    if is_remote(spark) or not is_local(spark.sparkContext.master):
        check_executors(spark, urls=urls, stage=stage)
