"""Every command and every block of code in the README and the docs is run here, and must do what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from tests.quick_java import quick_java

root = Path(__file__).parents[1]
pages = [
    *(root / name for name in ("README.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((root / "docs").rglob("*.md")),
]
_block = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_link = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def _blocks(page: Path, *languages: str) -> list[str]:
    return [code for language, code in _block.findall(page.read_text()) if language in languages]


_run_elsewhere = ("make ", ". .venv", "runstate demo", "runstate pipeline warm")
"""The demo has a test of its own in tests/terminal/test_demo.py; the others, `make test` itself has run before this."""


_in_soak = () if "RUNSTATE_KILL_ROUNDS" in os.environ else ("pipeline-recipes.md",)
"""Pages whose servers and sessions of Spark take minutes: `make soak` runs them."""


def _runnable(page: Path) -> bool:
    return bool(_blocks(page, "python", "console")) and page.name not in _in_soak


def _marked(page: Path) -> object:
    """Pages that start Spark are run one after the other: each command of theirs is a JVM of its own."""
    starts_spark = any("pipeline" in code for code in _blocks(page, "python", "console"))
    return pytest.param(page, marks=pytest.mark.xdist_group("spark-commands")) if starts_spark else page


@pytest.mark.slow
@pytest.mark.parametrize("page", [_marked(p) for p in pages if _runnable(p)], ids=lambda p: str(p.relative_to(root)))
def test_the_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    """Blocks run in the order of the page, in one directory. A python block whose first line is a comment that
    names a file is also saved under that name, so that later commands can use it."""
    (tmp_path / "examples").symlink_to(root / "examples")
    for language, code in _block.findall(page.read_text()):
        if language == "python":
            named = re.match(r"# (\w+\.py)\n", code)
            file = tmp_path / (named[1] if named else "block.py")
            file.write_text(code)
            _run([sys.executable, str(file)], tmp_path)
        elif language == "console":
            for command in re.findall(r"^\$ (.+)$", code, re.MULTILINE):
                if not command.startswith(_run_elsewhere):
                    _run(["bash", "-euo", "pipefail", "-c", command], tmp_path)


def _run(command: list[str], directory: Path) -> None:
    scripts = str(Path(sys.executable).parent)
    done = subprocess.run(
        command,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=300,
        env={
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "HOME": str(directory),
            **{name: value for name, value in os.environ.items() if name == "XDG_CACHE_HOME"},
            **quick_java,
        },
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def _unusable(language: str, code: str) -> list[str]:
    """What is wrong with code that needs systems which are not here: its syntax, and the options of our commands."""
    if language == "py":
        try:
            compile(code, "block", "exec")
        except SyntaxError as error:
            return [f"line {error.lineno}: {error.msg}"]
    else:
        checked = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True)
        if checked.returncode:
            return [checked.stderr.strip()]
    # A command is a line of the shell, a string, or a list of strings.
    text = re.sub(r"\\\n", " ", code).replace('", "', " ")
    return [wrong for found in _command.finditer(text) for wrong in _unknown_options(found[1].split(), found[2])]


_command = re.compile(r"runstate ((?:pipeline )?[a-z]+)([^\n\"]*)")


def _unknown_options(names: list[str], rest: str) -> list[str]:
    from typer.main import get_command

    from runstate.cli.main import app

    command = get_command(app)
    for name in names:
        if name not in command.commands:  # type: ignore[attr-defined]
            return [f"there is no command {' '.join(names)}"]
        command = command.commands[name]  # type: ignore[attr-defined]
    known = {option for parameter in command.params for option in parameter.opts}
    given = re.findall(r"(?:^| )(--[a-z-]+)", rest)
    return [f"{' '.join(names)} has no option {option}" for option in given if option not in known]


@pytest.mark.parametrize("page", [p for p in pages if _blocks(p, "py", "sh")], ids=lambda p: str(p.relative_to(root)))
def test_code_for_other_systems_has_no_mistake_that_can_be_seen_here(page: Path) -> None:
    blocks = [(language, code) for language, code in _block.findall(page.read_text()) if language in ("py", "sh")]
    assert [wrong for language, code in blocks for wrong in _unusable(language, code)] == []


@pytest.mark.parametrize(
    ("language", "code", "wrong"),
    [
        ("py", "def f(:\n", "line 1: invalid syntax"),
        ("py", 'run(["runstate", "pipeline", "run", "a", "--too", "b"])\n', "pipeline run has no option --too"),
        ("sh", "runstate pipeline rum a\n", "there is no command pipeline rum"),
        ("sh", "runstate pipeline run a \\\n  --mastr yarn\n", "pipeline run has no option --mastr"),
        ("sh", "if true; then\n", "bash: line 2: syntax error: unexpected end of file"),
    ],
)
def test_a_mistake_in_code_for_other_systems_is_reported(language: str, code: str, wrong: str) -> None:
    (found,) = _unusable(language, code)
    assert found.startswith(wrong)


def _broken_links(page: Path) -> list[str]:
    text = page.read_text()
    broken = [found for found in _link.finditer(text) if not (page.parent / found[1]).exists()]
    return [f"{page}:{text.count(chr(10), 0, found.start()) + 1}: {found[1]} does not exist" for found in broken]


def test_links_lead_somewhere() -> None:
    assert not [broken for page in pages for broken in _broken_links(page)]


def test_a_broken_link_is_reported_with_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[here](page.md#part) and [web](https://example.org)\n[nowhere](gone.md)\n")
    assert _broken_links(page) == [f"{page}:2: gone.md does not exist"]


def test_every_command_is_documented() -> None:
    from typer.main import get_command

    from runstate.cli.main import app

    page = (root / "docs/cli.md").read_text()
    groups = [("", get_command(app))]
    for prefix, group in groups:
        for name, command in group.commands.items():  # type: ignore[attr-defined]
            assert f"## {prefix}{name}" in page
            if hasattr(command, "commands"):
                groups.append((f"{prefix}{name} ", command))
            for parameter in command.params:
                for option in parameter.opts:
                    if option.startswith("--") and option != "--help":
                        assert option in page, f"{name} {option}"


def test_the_limits_in_the_threat_model_are_those_of_the_code() -> None:
    rows = re.findall(
        r"^\| .+ \| ([\d,]+)[^|]* \| `([\w.]+)` \|$", (root / "docs/security.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 10
    for value, place in rows:
        module, _, name = place.rpartition(".")
        assert getattr(import_module(f"runstate.{module}"), name) == int(value.replace(",", "")), place


def test_every_make_target_is_explained() -> None:
    makefile = (root / "Makefile").read_text()
    for target in re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)[0].split():
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), target
