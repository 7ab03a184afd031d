"""pyproject.toml declares every package that the source imports, and nothing that is not used."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

root = Path(__file__).parents[1]

extras_of_folders = {
    "adapters/openlineage": "openlineage",
    "cli/pipeline": "spark",
    "cli/spark_": "spark",
    "conformance/": "conformance",
    "logs/dynamodb/": "dynamodb",
    "logs/postgres/": "postgres",
    "logs/snowflake/": "snowflake",
    "logs/wal/": "zstd",
    "metrics.py": "metrics",
    "models/engine/column": "spark",
    "models/model.py": "spark",  # For the annotations of a column fold alone.
    "pipeline/stage_metrics.py": "metrics",
    "pipeline/": "spark",
    "runtimes/telemetry/": "otel",
}
"""Beginnings of paths in src/runstate, and the extra whose packages may be imported there beside the core ones."""

import_names = {
    "openlineage-python": ["openlineage"],
    "opentelemetry-exporter-otlp-proto-http": ["opentelemetry.exporter.otlp.proto.http"],
    "opentelemetry-sdk": ["opentelemetry"],
    "psycopg[binary,pool]": ["psycopg", "psycopg_pool"],
    "snowflake-connector-python": ["snowflake"],
}
"""Where a package is not imported under its own name."""

used_without_import = {
    "flask": "the server of moto",
    "flask-cors": "the server of moto",
    "hatchling": "python -m hatchling, in tests/e2e/test_typed_for_users.py",
    "import-linter": "make lint",
    "pandas": "pyspark imports it; this limits its version",
    "pytest-xdist": "make test",
    "ruff": "make lint",
}


@cache
def declared() -> dict[str, list[str]]:
    """The packages of each extra, without versions; the core ones under the empty name."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {name: [re.split(r"[<>=!~ ]", line)[0] for line in lines] for name, lines in groups.items()}


def modules_of(package: str) -> list[str]:
    return import_names.get(package, [re.sub(r"\[.*", "", package).replace("-", "_").lower()])


def imported(text: str) -> Iterator[tuple[int, str]]:
    """Line and module of every import of a third-party package, wherever it is in the file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for module in found:
                if module.partition(".")[0] not in {*sys.stdlib_module_names, "runstate", "tests", "benchmarks"}:
                    yield node.lineno, module


def undeclared(path: str, text: str) -> list[str]:
    """The imports of a file in src/runstate that neither the core packages nor its folder's extra provide."""
    extra = next((extra for start, extra in extras_of_folders.items() if path.startswith(start)), "")
    provided = {module.partition(".")[0] for p in declared()[""] + declared()[extra] for module in modules_of(p)}
    return [f"{path}:{line}: {m}" for line, m in imported(text) if m.partition(".")[0] not in provided]


def unused(packages: Iterable[str], text: str) -> list[str]:
    """The packages whose modules are neither imported in `text` nor named there as a string."""
    patterns = {p: "|".join(rf"(?:import|from) {m}\b|[\"']{m}\b" for m in modules_of(p)) for p in packages}
    return [package for package, pattern in patterns.items() if not re.search(pattern, text)]


def _texts(*folders: str) -> str:
    return "\n".join(path.read_text() for folder in folders for path in sorted((root / folder).rglob("*.py")))


def test_every_import_is_declared() -> None:
    source = root / "src/runstate"
    files = {path.relative_to(source).as_posix(): path.read_text() for path in source.rglob("*.py")}
    assert [line for path, text in sorted(files.items()) for line in undeclared(path, text)] == []


def test_an_undeclared_import_is_reported_with_its_line() -> None:
    assert undeclared("store.py", "import os\n\ndef f():\n    from flask import Flask\n") == ["store.py:4: flask"]


def test_a_driver_is_declared_for_its_own_folder_alone() -> None:
    assert undeclared("logs/postgres/log.py", "import psycopg\n") == []
    assert undeclared("logs/sqlite/log.py", "import psycopg\n") == ["logs/sqlite/log.py:1: psycopg"]


def test_every_declared_package_is_used() -> None:
    shipped = {p for name, packages in declared().items() if name not in ("dev", "all") for p in packages}
    assert unused(sorted(shipped - used_without_import.keys()), _texts("src")) == []
    rest = sorted(set(declared()["dev"]) - used_without_import.keys())
    assert unused(rest, _texts("src", "tests", "benchmarks").replace(Path(__file__).read_text(), "")) == []


def test_an_unused_package_is_reported() -> None:
    assert unused(["msgspec", "psycopg[binary,pool]", "uvicorn"], "import msgspec\nfrom psycopg_pool import P\n") == [
        "uvicorn"
    ]


def test_no_exception_is_left_for_a_package_that_is_gone() -> None:
    every = {package for packages in declared().values() for package in packages}
    assert (used_without_import.keys() | import_names.keys()) - every == set()


def test_every_extra_is_in_all_or_for_development() -> None:
    (line,) = declared()["all"]
    listed = set(line.removeprefix("runstate[").removesuffix("]").split(","))
    assert listed == declared().keys() - {"", "all", "dev", "conformance"}
