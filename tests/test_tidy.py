"""Rules for the source tree: sizes, names, dead files, forbidden words. Each file is read and parsed once."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

root = Path(__file__).parents[1]
lines_max = 400
function_lines_max = 60
vague_names = {"utils", "helpers", "common", "base", "manager", "core", "misc", "util", "helper"}

Offences = Iterator[tuple[int, str]]
"""Line and what is wrong there."""


@dataclass
class Source:
    """One file of the package, by its path below the checkout."""

    path: str
    text: str

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    def matches(self, pattern: str, message: str) -> Offences:
        for found in re.finditer(pattern, self.text):
            yield self.text.count("\n", 0, found.start()) + 1, message.format(found[0])


def module_fits_in_one_sitting(source: Source) -> Offences:
    lines = len(source.text.splitlines())
    if lines > lines_max:
        yield lines, f"the module has {lines} lines, the limit is {lines_max}"


def function_fits_on_one_screen(source: Source) -> Offences:
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > function_lines_max:
                yield node.lineno, f"{node.name} has {lines} lines, the limit is {function_lines_max}"


def module_has_a_docstring(source: Source) -> Offences:
    if not ast.get_docstring(source.tree):
        yield 1, "the module has no docstring"


def module_is_named_for_its_content(source: Source) -> Offences:
    for part in sorted(vague_names & set(source.path.removesuffix(".py").split("/"))):
        yield 1, f"{part!r} does not say what the module contains"


def invariants_do_not_use_assert(source: Source) -> Offences:
    if "/conformance/" in source.path:
        return  # The kit is made of tests.
    for node in source.nodes:
        if isinstance(node, ast.Assert):
            yield node.lineno, "assert is removed by python -O; raise instead"


def nothing_is_unfinished(source: Source) -> Offences:
    yield from source.matches(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b", "unfinished: {}")


def data_is_not_split_by_splitlines(source: Source) -> Offences:
    if source.path.endswith(("/schema.py", "/demo.py")):
        return  # These two split SQL and digits.
    yield from source.matches(r"splitlines\(", "{}) also splits on U+2028, which a JSON string may contain")


def only_the_disk_opens_files(source: Source) -> Offences:
    # SQLite keeps its own file; the log only makes it private before SQLite would make it readable by all.
    if "/logs/" not in source.path or source.path.endswith(
        ("/descriptors.py", "/disk.py", "/simulated_disk.py", "/overlay_disk.py", "/sqlite/readers.py")
    ):
        return
    opening = r"\bos\.(open|write|rename|replace|fsync|unlink)\(|(?<![.\w])open\(|\.write_bytes\("
    yield from source.matches(opening, "{}…) bypasses runstate.storage.disk")


rules: list[tuple[Callable[[Source], Offences], str, str]] = [
    (module_fits_in_one_sitting, "src/runstate/long.py", "x = 1\n" * (lines_max + 1)),
    (function_fits_on_one_screen, "src/runstate/long.py", "def f():\n" + "    x = 1\n" * function_lines_max),
    (function_fits_on_one_screen, "src/runstate/long.py", "async def f():\n" + "    x = 1\n" * function_lines_max),
    (module_has_a_docstring, "src/runstate/mute.py", "x = 1\n"),
    (module_is_named_for_its_content, "src/runstate/utils.py", ""),
    (module_is_named_for_its_content, "src/runstate/core/part.py", ""),
    (invariants_do_not_use_assert, "src/runstate/store.py", "def f():\n    assert x\n"),
    (nothing_is_unfinished, "src/runstate/store.py", "x = 1  # TO" + "DO later\n"),
    (data_is_not_split_by_splitlines, "src/runstate/store.py", "x = text.splitlines()\n"),
    (only_the_disk_opens_files, "src/runstate/logs/wal/log.py", "x = open('file')\n"),
    (only_the_disk_opens_files, "src/runstate/logs/wal/log.py", "os.rename(a, b)\n"),
    (only_the_disk_opens_files, "src/runstate/logs/wal/log.py", "path.write_bytes(b'')\n"),
]
"""Every rule, with an example that breaks it."""


def source_files() -> Iterator[Source]:
    for path in sorted((root / "src").rglob("*.py")):
        yield Source(path.relative_to(root).as_posix(), path.read_text())


def test_every_source_file_follows_every_rule() -> None:
    every = dict.fromkeys(rule for rule, _, _ in rules)
    sources = list(source_files())
    assert sources
    offences = [f"{s.path}:{line}: {message}" for s in sources for rule in every for line, message in rule(s)]
    assert not offences, "\n".join(offences)


@pytest.mark.parametrize(("rule", "path", "text"), rules, ids=lambda part: getattr(part, "__name__", ""))
def test_a_rule_reports_a_file_that_breaks_it(rule: Callable[[Source], Offences], path: str, text: str) -> None:
    assert list(rule(Source(path, text)))


def dead_modules(modules: Iterable[str], text: str) -> list[str]:
    """The modules that no line of `text` imports or names."""
    named = set(re.findall(r"\brunstate(?:\.\w+)+", text))
    for package, names in re.findall(r"^\s*from (runstate[\w.]*) import (\([^)]*\)|.*)$", text, re.MULTILINE):
        named |= {f"{package}.{name}" for name in re.findall(r"\w+", names)}
    # `runstate.logs.log.Record` names the module `runstate.logs.log` too.
    named |= {name.rpartition(".")[0] for name in named}
    return [module for module in modules if module not in named]


def test_every_module_is_imported_by_another_or_is_an_entry() -> None:
    sources = list(source_files())
    modules = [s.path.removeprefix("src/").removesuffix(".py").replace("/", ".") for s in sources]
    others = [root / "pyproject.toml", *(root / "tests").rglob("*.py")]
    text = "\n".join([*(s.text for s in sources), *(path.read_text() for path in others)])
    assert not dead_modules((m for m in modules if not m.endswith(("__init__", "__main__"))), text)


def test_a_module_that_nothing_imports_is_reported() -> None:
    text = "from runstate.a import (\n    used,\n)\nimport runstate.b.c\nfrom runstate.d import x\n"
    assert dead_modules(["runstate.a.used", "runstate.b.c", "runstate.d", "runstate.a.dead"], text) == [
        "runstate.a.dead"
    ]


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
    offences = []
    for name in tracked.splitlines():
        path = root / name
        if path.is_file() and path.suffix in {".py", ".md", ".toml", ".txt", ".json", ""}:
            found = Source(name, path.read_text(errors="replace")).matches(hosts, "names {}")
            offences += [f"{name}:{line}: {message}" for line, message in found]
    assert not offences, "\n".join(offences)
