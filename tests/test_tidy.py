"""The project stays tidy by itself: sizes, names, dead files, words that have no place in it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

root = Path(__file__).parents[1]
source_files = sorted((root / "src").rglob("*.py"))
lines_max = 400
function_lines_max = 60
vague_names = {"utils", "helpers", "common", "base", "manager", "core", "misc", "util", "helper"}


def _id(path: Path) -> str:
    return str(path.relative_to(root))


@pytest.mark.parametrize("path", source_files, ids=_id)
def test_a_module_fits_in_one_sitting(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= lines_max


@pytest.mark.parametrize("path", source_files, ids=_id)
def test_a_function_fits_on_one_screen(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= function_lines_max, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", source_files, ids=_id)
def test_a_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", source_files, ids=_id)
def test_a_module_is_named_for_what_it_holds(path: Path) -> None:
    assert not vague_names & {part.removesuffix(".py") for part in path.relative_to(root).parts}


@pytest.mark.parametrize("path", source_files, ids=_id)
def test_invariants_raise_and_do_not_assert(path: Path) -> None:
    if "conformance" in path.parts:
        return  # The kit is made of tests.
    asserts = [node.lineno for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)]
    assert not asserts


@pytest.mark.parametrize("path", source_files, ids=_id)
def test_nothing_is_left_unfinished(path: Path) -> None:
    assert not re.search(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b", path.read_text())


@pytest.mark.parametrize("path", source_files, ids=_id)
def test_json_lines_are_never_split_by_splitlines(path: Path) -> None:
    # str.splitlines() also splits on U+2028, which may stand inside a JSON string.
    if path.name in ("schema.py", "demo.py"):
        return  # These two split SQL and digits.
    assert "splitlines(" not in path.read_text()


@pytest.mark.parametrize("path", [p for p in source_files if "logs" in p.parts], ids=_id)
def test_only_the_disk_opens_files(path: Path) -> None:
    if path.name in ("disk.py", "simulated_disk.py"):
        return
    text = path.read_text()
    # SQLite keeps its own file; the log only makes it private before SQLite would make it readable by all.
    allowed = {"sqlite/log.py"}
    if not any(str(path).endswith(name) for name in allowed):
        assert not re.search(r"\bos\.(open|write|rename|replace|fsync|unlink)\(|(?<![.\w])open\(|\.write_bytes\(", text)


def test_every_module_is_imported_by_another_or_is_an_entry() -> None:
    text = "\n".join(p.read_text() for p in [*source_files, root / "pyproject.toml", *(root / "tests").rglob("*.py")])
    dead = []
    for path in source_files:
        module = ".".join(path.relative_to(root / "src").with_suffix("").parts)
        package, _, name = module.rpartition(".")
        if path.name in ("__init__.py", "__main__.py"):
            continue
        if not re.search(rf"\b{re.escape(module)}\b|from {re.escape(package)} import (\([^)]*|[^\n]*)\b{name}\b", text):
            dead.append(module)
    assert not dead


def test_importing_runstate_imports_no_driver() -> None:
    heavy = ["pyspark", "pyarrow", "pandas", "psycopg", "boto3", "snowflake", "litestar", "uvicorn", "pytest"]
    script = f"import sys, runstate; print([m for m in {heavy!r} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_the_public_surface_has_at_most_twenty_names() -> None:
    import runstate

    assert len(runstate.__all__) <= 20
    assert all(getattr(runstate, name).__doc__ for name in runstate.__all__)


def test_every_error_has_a_code_of_its_own_and_says_something() -> None:
    from runstate import errors

    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.RunstateError)]
    codes = [c.code for c in classes]
    assert len(set(codes)) == len(codes)
    assert all(str(c()) for c in classes)


def test_no_tracked_file_names_an_index_host_or_a_machine() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout
    hosts = "|".join(["py" + "pi.org", "python" + "hosted", "npm" + "js", "deb." + "debian"])
    for name in tracked.splitlines():
        path = root / name
        if path.is_file() and path.suffix in {".py", ".md", ".toml", ".txt", ".json", ""}:
            assert not re.search(hosts, path.read_text(errors="replace")), name
