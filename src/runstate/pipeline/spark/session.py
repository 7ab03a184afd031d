"""Spark sessions: on this machine by default, on a cluster or a Connect server by its address.

    with spark_session() as spark: ...                        # every core of this machine
    with spark_session(master="spark://host:7077") as spark: ...
    with spark_session(remote="sc://host:15002") as spark: ...

`conf` wins over every setting that is made here. A session that is running already is used as it is, and left running.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from runstate.errors import RunstateError, Unsupported, redact, shown_url
from runstate.pipeline.spark.java import find_java, java_home
from runstate.pipeline.spark.java_stderr import filtered_stderr
from runstate.pipeline.spark.machine import usable_cores, usable_memory_bytes
from runstate.pipeline.spark.private_files import private_file
from runstate.pipeline.spark.shipping import package_zip, ship
from runstate.pipeline.spark.worker_python import worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_mebibyte = 1 << 20
_starting = threading.Lock()

# What fails in a task is raised in the driver, and told there in a line or two: the log need not tell it a second time,
# with the stack of the JVM. What is raised nowhere (a lost master, say) still gets through. The gateway has a level of
# its own because Spark would otherwise set the one of all to WARN, and say so.
_quiet_log = """\
status = error
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} Spark %p %c{1}: %m%n%ex{0}
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.abort.name = org.apache.spark.util.Utils
logger.abort.level = off
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.query.name = org.apache.spark.sql.execution
logger.query.level = off
"""

# For a page that is not shown, Spark would keep the last thousand queries, jobs and stages; a stream has many.
_short_memory = {
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
}
_preferred = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}


class SessionConflict(RunstateError):
    """Another Spark session is running in this process; stop it first, or leave out `master`, `remote` and `conf`."""

    code = "spark.session_conflict"


class ServerUnreachable(RunstateError):
    """Nobody answers at the address of the Spark Connect server."""

    code = "spark.unreachable"
    retryable = True


def session(
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    remote: str | None = None,
    app_name: str = "runstate",
    py_files: Sequence[str] = (),
) -> SparkSession:
    """A Spark session with the settings that the pipeline needs; `spark.stop()` is the caller's.

    The session that is running in this process is given back if there is one. Otherwise one is started: with `remote`
    on a Connect server, else on `master`, by default all cores that this process may use and a quarter of the memory.
    `py_files` are made importable for tasks; on anything but `local[…]`, so is this package.

    Raises:
        Unsupported: pyspark, or what Connect needs, is not installed.
        JavaMissing: there is no Java to run Spark on.
        SessionConflict: a session is running that was not started the way this one is asked for.
        ServerUnreachable: nobody answers at `remote`.
    """
    if master is not None and remote is not None:
        raise Unsupported("A session has a master or is remote, not both")
    with _starting:
        running = active_session()
        given = dict(conf or {})
        if running is None and master is None and remote is None:
            remote = os.environ.get("SPARK_REMOTE")
        if running is not None:
            spark = _adopted(running, master, remote, given)
        elif remote is not None:
            spark = _connected(remote, app_name, given)
        else:
            spark = _started(master, app_name, given)
        try:
            has_package = not is_remote(spark) and is_local(spark.sparkContext.master)
            ship(spark, [*([] if has_package else [str(package_zip())]), *py_files])
        except BaseException:
            if running is None:
                spark.stop()
            raise
        return spark


@contextmanager
def spark_session(
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    remote: str | None = None,
    app_name: str = "runstate",
    py_files: Sequence[str] = (),
) -> Iterator[SparkSession]:
    """`session` for a `with` block: stopped at its end, unless it was running before.

    Raises:
        Unsupported, JavaMissing, SessionConflict, ServerUnreachable: as `session` does.
    """
    running = active_session()
    spark = session(master=master, conf=conf, remote=remote, app_name=app_name, py_files=py_files)
    try:
        yield spark
    finally:
        if running is None:
            spark.stop()


def active_session() -> SparkSession | None:
    """The session that is running in this process, if any.

    Raises:
        Unsupported: pyspark is not installed.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise Unsupported(f"The pipeline needs Spark: pip install 'runstate[spark]' ({error})") from error
    running = SparkSession.getActiveSession()
    return None if running is None or _is_stopped(running) else running


def is_remote(spark: SparkSession) -> bool:
    """Whether the session is on the other side of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _is_stopped(spark: SparkSession) -> bool:
    if is_remote(spark):
        return bool(getattr(spark, "is_stopped", False))
    return spark.sparkContext._jsc is None


def _adopted(spark: SparkSession, master: str | None, remote: str | None, conf: dict[str, str]) -> SparkSession:
    wanted = shown_url(remote) if remote else master and _sized(master)
    actual = "a Connect server" if is_remote(spark) else spark.sparkContext.master
    if wanted and (is_remote(spark) or remote is not None or wanted != actual):
        raise SessionConflict(
            f"A Spark session on {actual} is running in this process; stop it to start one on {wanted}"
        )
    for name, value in conf.items():
        if spark.conf.get(name, None) == value:
            continue
        if not spark.conf.isModifiable(name):
            raise SessionConflict(f"{name} cannot be changed while Spark is running; stop the session first", name=name)
        spark.conf.set(name, value)
    return spark


def _connected(remote: str, app_name: str, conf: dict[str, str]) -> SparkSession:
    from pyspark.errors import PySparkImportError
    from pyspark.sql import SparkSession

    _check_reachable(remote)
    settings = {**_preferred, **conf}
    try:
        return SparkSession.builder.remote(remote).appName(app_name).config(map={**settings}).getOrCreate()
    except (ImportError, PySparkImportError) as error:
        raise Unsupported(f"Spark Connect needs more packages: pip install 'runstate[spark]' ({error})") from error


def _check_reachable(remote: str) -> None:
    # Spark itself would try for ten minutes before it says so.
    if any(os.environ.get(name) for name in ("grpc_proxy", "https_proxy", "http_proxy")):
        return  # The server need not be reachable but for the proxy.
    try:
        address = urlsplit(remote)
        socket.create_connection((address.hostname, address.port or 15002), timeout=20).close()
    except (OSError, ValueError) as error:
        shown = shown_url(remote)
        raise ServerUnreachable(f"There is no Spark Connect server at {shown}: {error}", remote=shown) from error


def _started(master: str | None, app_name: str, conf: dict[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    # spark-submit has started the JVM and chosen the master before this process began.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master is None and not submitted:
        master = conf.get("spark.master", "local[*]")
    settings = {**_preferred, **_defaults(_sized(master) if master else None, conf), **conf}
    # Either of these would win over a master: the first is a user's default, the second what a session on a Connect
    # server leaves behind.
    environment: dict[str, str | None] = {"SPARK_REMOTE": None, "SPARK_CONNECT_MODE_ENABLED": None}
    if not submitted:
        environment["JAVA_HOME"] = str(java_home(find_java()))
    python = conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    if python or (master or "").startswith("local"):
        # Spark would take whatever `python3` is on PATH, which need not be the one that Runstate is installed in.
        environment["PYSPARK_PYTHON"] = python or str(worker_python())
    if is_local(master) and not python:
        # Another Python may lack this package, and elsewhere a daemon starts before the package is sent.
        settings.setdefault("spark.python.daemon.module", "runstate.pipeline.spark.workers")
    if "spark.log.level" not in conf:
        for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
            # They print what is raised anyway, and the JVM's stack with it.
            PySparkLogger.getLogger(name).setLevel("CRITICAL")
    with _environment(environment):
        if not submitted and SparkContext._gateway is None:
            # pyspark puts these settings on Java's command line, which everybody on this machine can read. Those that
            # are set after Java was started are sent to it through a socket.
            open_settings = [(name, value) for name, value in settings.items() if not _is_secret(name, value)]
            with filtered_stderr() as stderr:
                gateway = launch_gateway(SparkConf(loadDefaults=False).setAll(open_settings), {"stderr": stderr})  # type: ignore[no-untyped-call]
            SparkContext._ensure_initialized(gateway=gateway)
        return SparkSession.builder.appName(app_name).config(map={**settings}).getOrCreate()


def _is_secret(name: str, value: str) -> bool:
    """Whether a setting holds a secret, and Java can start without it."""
    text = f"{name}={value}"
    return redact(text) != text and not name.startswith(("spark.driver.", "spark.jars"))


def is_local(master: str | None) -> bool:
    """Whether tasks run on this machine with this installation, so that nothing has to be sent to them."""
    return master is not None and (master == "local" or master.startswith("local["))


def _sized(master: str) -> str:
    # Java's own count is not taken for `*`: it can differ from what this process was pinned to.
    return master.replace("*", str(usable_cores()), 1) if master.startswith("local[*") else master


def _defaults(master: str | None, conf: Mapping[str, str]) -> dict[str, str]:
    """Settings that depend on where Spark runs."""
    made = {
        "spark.ui.enabled": "false",
        **({} if conf.get("spark.ui.enabled") == "true" else _short_memory),
        "spark.ui.showConsoleProgress": "false",
        # What Spark writes for us, such as findings and checkpoints, is for its owner alone.
        "spark.hadoop.fs.permissions.umask-mode": "077",
        # Less waiting for each Python task than on a TCP socket.
        "spark.python.unix.domain.socket.enabled": "true",
    }
    if "spark.log.level" not in conf:
        settings = private_file("log4j2.properties", _quiet_log)
        made["spark.driver.defaultJavaOptions"] = f"-Dlog4j2.configurationFile={settings}"
    if master is not None:
        made["spark.master"] = master
    if is_local(master):
        # A quarter, since the Python workers that do the folding need theirs too.
        heap_mebibytes = min(max(usable_memory_bytes() // 4 // _mebibyte, 1024), 8192)
        made |= {
            "spark.driver.memory": f"{heap_mebibytes}m",
            # The machine's name may lead to an address that is not there any more, after a change of network.
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # 200 partitions are for clusters; here most of them would be empty.
            "spark.sql.shuffle.partitions": str(4 * usable_cores()),
        }
    return made


@contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Change this process's environment for as long as Spark needs to start and to copy it; None takes a name out."""
    before = {name: os.environ.get(name) for name in changes}
    _set_environment(changes)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
