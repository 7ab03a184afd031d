"""What went wrong on Spark, in words: the Python error of the task that failed, not the JVM's account of it.

    with readable("replay"):
        frame.write.parquet(...)

A task should run inside `told_to_driver()`: an error of ours then arrives with its details.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from runstate.errors import RunstateError

_traceback = "Traceback (most recent call last):\n"
_note = "runstate error: "
# Where a Python error's text ends: a frame of the JVM, its heading in a Connect error, Spark's code of the condition.
_afterwards = re.compile(
    r"\n\s+at [\w.$/<>]+\(|\n\s*(?:JVM stacktrace:|Driver stacktrace:|Caused by: |SQLSTATE: \w{5})"
)
_raised = re.compile(r"^(?P<name>[A-Za-z_][\w.]*(?:<locals>\.\w+)*)(?:: (?P<message>.*))?$", re.DOTALL)
_lost_task = re.compile(r"most recent failure: Lost task [^:]*:\s*(?P<reason>.*)", re.DOTALL)
_other_python = re.compile(
    r"\[PYTHON_VERSION_MISMATCH\] .*?version: (?P<worker>\d+(?:\.\d+)*) than that in driver: (?P<driver>\d+(?:\.\d+)*)"
)
_message_chars_max = 2000


class PipelineFailed(RunstateError):
    """A stage of the pipeline failed."""

    code = "pipeline.failed"


class SparkFailed(RunstateError):
    """Spark could not do what it was asked."""

    code = "spark.failed"


class PythonVersionMismatch(RunstateError):
    """Spark's workers run another version of Python than the driver."""

    code = "pipeline.python_version_mismatch"


@contextmanager
def readable(stage: str) -> Iterator[None]:
    """Turn a failure of Spark in the block into one of ours. Errors of ours that the driver raised pass as they are.

    Raises:
        PipelineFailed: names the stage and the cause; `details["cause"]` is the cause as data.
    """
    try:
        yield
    except RunstateError:
        raise
    except Exception as error:
        cause = explain(error)
        if cause is None:
            raise
        raise PipelineFailed(f"The stage {stage} failed: {cause}", stage=stage, cause=cause.as_data()) from error


@contextmanager
def told_to_driver() -> Iterator[None]:
    """For the body of a task: an error of ours that leaves it carries its details to the driver."""
    try:
        yield
    except RunstateError as error:
        # Spark sends nothing but the printed traceback, and notes are part of that.
        with suppress(TypeError, ValueError):
            error.add_note(_note + msgspec.json.encode(error.details).decode())
        raise


def explain(error: BaseException) -> RunstateError | None:
    """The error behind a failure of Spark, or None if this is no failure of Spark.

    An error of ours that a task raised comes back as what it was, so that its code tells what to do. Any other is a
    `SparkFailed` with the last line that tells the cause.
    """
    if isinstance(error, RunstateError):
        return error
    if not _is_from_spark(error):
        return None
    for text in _accounts(error):
        if (found := _python_error(text)) is not None:
            return found
    return SparkFailed(_first_words(next(_accounts(error))), error=type(error).__name__)


def _is_from_spark(error: BaseException) -> bool:
    # Nothing is imported for this: an error of a library that is not loaded cannot have been raised.
    kinds = [("pyspark.errors", "PySparkException"), ("py4j.protocol", "Py4JError"), ("grpc", "RpcError")]
    classes = [getattr(sys.modules[module], name) for module, name in kinds if module in sys.modules]
    return isinstance(error, tuple(classes))


def _accounts(error: BaseException) -> Iterator[str]:
    """All that the error has to say, the best first."""
    yield str(error)
    for name in ("_stackTrace", "_stacktrace"):
        with suppress(Exception):
            if text := getattr(error, name, None):
                yield str(text)
    if error.__cause__ is not None:
        yield from _accounts(error.__cause__)


def _python_error(text: str) -> RunstateError | None:
    """The last Python traceback in the text, as an error."""
    _, found, last = text.rpartition(_traceback)
    if not found:
        return None
    # The frames are indented; the error itself begins with the first line that is not.
    lines = last.split("\n")
    start = next((number for number, line in enumerate(lines) if line and not line[0].isspace()), None)
    if start is None:
        return None
    said = _afterwards.split("\n".join(lines[start:]), maxsplit=1)[0].strip()
    said, _, note = said.partition(f"\n{_note}")
    raised = _raised.match(said)
    name, message = (raised["name"], raised["message"] or "") if raised else ("", said)
    kind = _error_class(name)
    if (versions := _other_python.search(message)) is not None:
        return _other_version(versions["worker"], versions["driver"])
    if kind is None:
        short = name.rpartition(".")[2]
        told = f"{short}: {message}" if short and message else short or message
        return SparkFailed(told[:_message_chars_max], error=name)
    rebuilt = kind.__new__(kind)
    RunstateError.__init__(rebuilt, message[:_message_chars_max])
    rebuilt.details = _details(note)
    return rebuilt


def _other_version(worker: str, driver: str) -> PythonVersionMismatch:
    return PythonVersionMismatch(
        f"The workers run Python {worker}, the driver runs Python {driver}; Spark needs one minor version on both. "
        f"Set spark.pyspark.python (or the variable PYSPARK_PYTHON) to a Python {driver} that is on every machine, or "
        f"start the driver with Python {worker}",
        worker=worker,
        driver=driver,
    )


def _error_class(name: str) -> type[RunstateError] | None:
    module, _, attribute = name.rpartition(".")
    if module.startswith("runstate.") and not module.endswith("__main__"):  # That one runs a command.
        with suppress(ImportError):
            importlib.import_module(module)
    # Only what is loaded: a text from elsewhere must not choose what gets imported here.
    found = getattr(sys.modules.get(module), attribute, None)
    return found if isinstance(found, type) and issubclass(found, RunstateError) else None


def _details(note: str) -> dict[str, Any]:
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(note.partition("\n")[0], type=dict[str, Any])
    return {}


def _first_words(text: str) -> str:
    """Spark's own error without its stack, its query plan, and the tasks that it was tried on."""
    if lost := _lost_task.search(text):
        text = lost["reason"]
    head = re.split(r"\n\s+at [\w.$/<>]+\(|\n\s*JVM stacktrace:|\n\n|\s+SQLSTATE: ", text.strip(), maxsplit=1)[0]
    return re.sub(r"^(?:An error occurred while calling [^\n]*\n: )?(?:org\.apache\.spark\.[\w.]+: )?", "", head)[
        :_message_chars_max
    ]
