"""A display never fails or slows the work it shows, and nothing that is printed runs into it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.terminal.conftest import Start
from tests.terminal.ptys import Terminal

Script = Callable[..., Terminal]

_head = """\
import logging, sys, time
from pathlib import Path
from runstate.cli.output import words, write_line
from runstate.cli.progress_display import Display, Progress, Watch, showing, track
def wait():
    while not Path('go').exists(): time.sleep(0.01)
"""


@pytest.fixture
def script(tmp_path: Path, start: Start) -> Script:
    """Runs a few lines of Python that use a display: `script("with showing('x'): ...")`."""

    def run(code: str, redirect: str = "", **env: str) -> Terminal:
        (tmp_path / "script.py").write_text(_head + code)
        return start(shell=f"exec {sys.executable} script.py {redirect}", **env)

    return run


def test_progress_shows_what_is_done_how_much_and_since_when(script: Script, tmp_path: Path, size: str) -> None:
    shown = script("with showing('copying', 40, 'events') as p:\n p.advance(12)\n wait()")
    shown.wait_for("copying", "12/40 events", "0:00")
    (tmp_path / "go").touch()
    assert shown.finish() == 0
    assert shown.text == ""


@pytest.mark.parametrize("failing", ["lambda: 1 / 0", "lambda: object", "lambda: Broken()"])
def test_a_display_that_fails_goes_away_and_the_work_continues(script: Script, failing: str) -> None:
    shown = script(
        "class Broken:\n"
        "    def __rich_console__(self, console, options): raise ValueError('cannot draw')\n"
        f"with Display({failing}):\n"
        "    time.sleep(0.8)\n"
        "    words.print('the work is done')\n"
    )
    assert shown.finish() == 0
    assert "the work is done" in shown.lines
    assert len(shown.lines) <= 2, shown.text


def test_a_terminal_that_is_not_read_does_not_stop_the_work(script: Script, tmp_path: Path) -> None:
    # Each frame is larger than what the kernel keeps for a terminal, as after Ctrl-S.
    script(
        "with Display(lambda: '\\n'.join(['x' * 90] * 29)):\n"
        "    for number in range(20):\n"
        "        time.sleep(0.1)\n"
        "    Path('done').touch()\n"
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "done").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_expensive_snapshot_is_taken_seldom(script: Script) -> None:
    shown = script(
        "taken = []\n"
        "def snapshot():\n"
        "    taken.append(1)\n"
        "    time.sleep(0.1)\n"
        "    return 'x'\n"
        "with Display(snapshot):\n"
        "    time.sleep(1.5)\n"
        "words.print(f'{len(taken)} taken')\n"
    )
    shown.finish()
    assert shown.lines == ["1 taken"]


def test_what_is_printed_stands_above_the_display(script: Script, size: str) -> None:
    shown = script(
        "with showing('working') as progress:\n"
        "    for number in range(8):\n"
        "        time.sleep(0.1)\n"
        "        words.print(f'message {number}')\n"
        "        write_line(f'data {number}'.encode())\n"
        "        logging.warning('warning %d', number)\n"
    )
    assert shown.finish() == 0
    expected = [[f"message {n}", f"data {n}", f"WARNING:root:warning {n}"] for n in range(8)]
    assert shown.lines == [line for each in expected for line in each]


def test_an_unfinished_line_is_left_alone(script: Script) -> None:
    shown = script(
        "with showing('working'):\n"
        "    time.sleep(0.5)\n"
        "    sys.stdout.write('three ')\n"
        "    time.sleep(0.5)\n"
        "    sys.stdout.write('words here\\n')\n"
    )
    assert shown.finish() == 0
    assert shown.lines == ["three words here"]


def test_what_goes_to_a_file_is_free_of_the_display(script: Script, tmp_path: Path) -> None:
    shown = script(
        "with showing('working'):\n"
        "    for number in range(5):\n"
        "        time.sleep(0.1)\n"
        "        write_line(f'data {number}'.encode())\n"
        "        print(f'text {number}')\n",
        "> out",
    )
    assert shown.finish() == 0
    assert shown.text == ""
    lines = (tmp_path / "out").read_text().split("\n")
    assert sorted(filter(None, lines)) == sorted([f"data {n}" for n in range(5)] + [f"text {n}" for n in range(5)])


def test_an_error_in_a_loop_leaves_no_display_behind(script: Script) -> None:
    shown = script(
        "try:\n"
        "    for item in track(range(10), 'working'):\n"
        "        time.sleep(0.5)\n"
        "        raise OSError('no space')\n"
        "except OSError as error:\n"
        "    kept = error\n"
        "    words.print(str(error))\n"
        "time.sleep(0.5)\n"
    )
    assert shown.finish() == 0
    assert shown.lines == ["no space"]


def test_a_killed_process_leaves_the_cursor_visible(script: Script) -> None:
    shown = script("with showing('working'):\n time.sleep(60)")
    shown.wait_for("working")
    shown.kill()
    assert shown.is_cursor_visible


def test_a_frame_replaces_the_one_before(script: Script, size: str) -> None:
    shown = script(
        "with Watch() as watch:\n"
        "    for number in range(5):\n"
        "        with watch.frame():\n"
        "            words.print(f'frame {number}')\n"
        "            write_line(b'its data')\n"
        "        time.sleep(0.3)\n"
        "words.print('over')\n"
    )
    shown.wait_for("frame 1", "its data")
    assert shown.lines == ["frame 1", "its data"]
    assert shown.finish() == 0
    assert shown.lines == ["over"]


def test_a_frame_that_is_higher_than_the_terminal_says_so(script: Script, tmp_path: Path) -> None:
    shown = script(
        "with Watch() as watch:\n"
        "    with watch.frame():\n"
        "        words.print('\\n'.join(map(str, range(100))))\n"
        "    wait()\n"
    )
    shown.wait_for("(72 more lines)")
    assert shown.lines[:3] == ["0", "1", "2"]
    (tmp_path / "go").touch()
    assert shown.finish() == 0
    assert shown.text == ""


@pytest.mark.parametrize(
    ("redirect", "env"),
    [("", {"TERM": "dumb"}), ("", {"TERM": ""}), ("2> err", {}), ("2> err", {"FORCE_COLOR": "1"})],
    ids=["TERM=dumb", "no TERM", "stderr in a file", "a file with FORCE_COLOR"],
)
def test_there_is_no_animation_where_it_cannot_be_seen(
    script: Script, tmp_path: Path, redirect: str, env: dict[str, str]
) -> None:
    shown = script("with showing('working', 10):\n time.sleep(0.6)\nwords.print('done')", redirect, **env)
    assert shown.finish() == 0
    written = (tmp_path / "err").read_bytes() if redirect else shown.raw
    assert written.strip() == b"done"


@pytest.mark.parametrize("columns", [20, 5])
def test_a_narrow_terminal_gets_one_line(start: Start, tmp_path: Path, columns: int) -> None:
    (tmp_path / "script.py").write_text(
        _head + "with showing('copying a-long-name', 40, 'events') as p:\n p.advance(12)\n wait()"
    )
    shown = start(shell=f"exec {sys.executable} script.py", columns=columns)
    shown.wait_until_drawn()
    assert len(shown.lines) == 1
    (tmp_path / "go").touch()
    assert shown.finish() == 0
