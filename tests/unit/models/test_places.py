"""A file of a user that cannot be loaded: each error says what is wrong, in which file, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from runstate.errors import UnknownModel
from runstate.models.registry import find_model
from runstate.runtimes.orchestrator.graph import InvalidGraph, load_graph

_files = {
    "syntax.py": "def broken(:\n",
    "imports.py": "import nothing_of_that_name\n",
    "exits.py": "raise SystemExit('configure me first')\n",
    "other.py": "class Order: pass\nclass Invoice: pass\n",
    "made.py": "from runstate.runtimes.orchestrator import Graph\nflow = Graph('flow')\ndef work(job): pass\n",
}
_cases = [
    ("syntax.py:X", ["syntax.py, line 1", "invalid syntax", "fix the file"]),
    ("imports.py:X", ["imports.py:1", "'nothing_of_that_name' is not installed", "pip install"]),
    ("exits.py:X", ["configure me first", "exits.py:1", "if __name__ == '__main__':"]),
    ("other.py:Missing", ["other.py has no 'Missing'", "it has: Invoice, Order"]),
    ("made.py:graph", ["made.py has no 'graph'", "it has: flow, work"]),
    ("directory:X", ["directory is a directory", "FILE.py:NAME"]),
    ("directory.py:X", ["directory.py is a directory", "FILE.py:NAME"]),
    ("/dev/null:X", ["/dev/null is not a Python file", "FILE.py:NAME"]),
    ("gone.py:X", ["there is no file gone.py"]),
    ("\udcff.py:X", ["there is no file"]),
]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in _files.items():
        Path(name).write_text(text)
    Path("directory").mkdir()
    Path("directory.py").mkdir()


@pytest.mark.parametrize(("place", "expected"), _cases, ids=[repr(place) for place, _ in _cases])
def test_a_model_that_cannot_be_loaded_says_what_to_do(place: str, expected: list[str]) -> None:
    with pytest.raises(UnknownModel) as refused:
        find_model(place)
    assert all(words in str(refused.value) for words in expected), str(refused.value)


@pytest.mark.parametrize(("place", "expected"), _cases, ids=[repr(place) for place, _ in _cases])
def test_a_graph_that_cannot_be_loaded_says_what_to_do(place: str, expected: list[str]) -> None:
    with pytest.raises(InvalidGraph) as refused:
        load_graph(place)
    assert all(words in str(refused.value) for words in expected), str(refused.value)


def test_a_package_in_this_directory_is_not_refused_as_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("shop_package").mkdir()
    Path("shop_package/__init__.py").write_text("Order = 3\n")
    monkeypatch.syspath_prepend(Path.cwd())
    with pytest.raises(InvalidGraph, match="is a int, not a Graph"):
        load_graph("shop_package:Order")


def test_ctrl_c_while_a_file_is_loaded_stays_an_interrupt() -> None:
    Path("slow.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        find_model("slow.py:X")
