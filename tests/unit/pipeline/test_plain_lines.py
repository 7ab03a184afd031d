"""Lines of plain files: found whatever the cuts, never held whole when too long, numbered, and each given a row."""

from __future__ import annotations

import io
import itertools
import os
import tracemalloc
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runstate.errors import InvalidUrl, LogNotFound
from runstate.models.rundir import RUNDIR
from runstate.pipeline.source import file_lines, plain_files
from runstate.pipeline.source.file_lines import (
    FileChanged,
    Line,
    LineNumbers,
    Part,
    Stretch,
    content_bytes_max,
    read_lines,
    whole,
)
from runstate.pipeline.source.plain_files import FileShard, cut_parts, find_files, line_schema, row_of


def _lines_in(data: bytes) -> list[bytes]:
    """What a reader must find, said in one line."""
    return data.split(b"\n") if data and not data.endswith(b"\n") else data.split(b"\n")[:-1]


def _stretches(data: bytes, cuts: list[int], start: int = 0) -> list[Stretch]:
    part = Part("f", start, len(data), "")
    bounds = [start, *sorted({cut for cut in cuts if start < cut < len(data)}), len(data)]
    return [Stretch(part, *bound) for bound in itertools.pairwise(bounds) if bound[0] < bound[1]]


def _read(data: bytes, cuts: list[int], bytes_max: int = 100, start: int = 0) -> list[Line]:
    return [line for s in _stretches(data, cuts, start) for line in read_lines(io.BytesIO(data), s, bytes_max)]


@pytest.fixture
def tiny_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lines, "_chunk_bytes", 3)
    monkeypatch.setattr(file_lines, "_step_bytes", 3)


some_bytes = st.lists(st.sampled_from([b"\n", b"\n", b"\r", b"a", b"bc", "\u2028".encode(), b"\0"])).map(b"".join)


@pytest.mark.usefixtures("tiny_chunks")
def test_every_line_is_read_once_whatever_the_cuts() -> None:
    @given(data=some_bytes, cuts=st.lists(st.integers(0, 40)))
    def check(data: bytes, cuts: list[int]) -> None:
        lines = _read(data, cuts)
        assert [line.content for line in lines] == _lines_in(data)
        assert all(data[line.offset :].startswith(line.content) for line in lines)
        assert [line.is_ended for line in lines] == [data[line.offset + line.size :][:1] == b"\n" for line in lines]

    check()


@pytest.mark.usefixtures("tiny_chunks")
def test_a_part_that_begins_behind_a_newline_is_read_from_there() -> None:
    data = b"one\ntwo\nthree\nfour"
    for cuts in ([], [8], [9, 10, 14]):
        assert [line.content for line in _read(data, cuts, start=4)] == [b"two", b"three", b"four"]


@pytest.mark.usefixtures("tiny_chunks")
def test_of_an_overlong_line_its_size_and_its_beginning_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lines, "content_bytes_max", 4)
    data = b"short\n" + b"0123456789" * 3 + b"\nnext\n"
    assert _read(data, [11, 20], bytes_max=8) == [
        Line(0, 5, b"short", True),
        Line(6, 30, b"0123", True),
        Line(37, 4, b"next", True),
    ]
    assert _read(data[:30], [], bytes_max=8)[-1] == Line(6, 24, b"0123", False)


class _Endless(io.RawIOBase):
    """A file of one line, larger than any memory."""

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset
        return offset

    def read(self, size: int = -1) -> bytes:
        given = min(size, self._size - self._at)
        self._at += given
        return b"x" * given


def test_an_overlong_line_is_never_held_whole() -> None:
    size = 256 << 20
    file: BinaryIO = _Endless(size)  # type: ignore[assignment]
    stretch = Stretch(Part("f", 0, size, ""), 0, size)
    tracemalloc.start()
    try:
        (line,) = read_lines(file, stretch, 1 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (line.size, len(line.content)) == (size, content_bytes_max)
    assert peak < 8 << 20


def test_a_file_that_ends_before_its_part_does_is_told() -> None:
    stretch = Stretch(Part("f", 0, 100, ""), 0, 100)
    with pytest.raises(FileChanged, match="became shorter"):
        list(read_lines(io.BytesIO(b"one\ntwo\n"), stretch, 100))


@pytest.mark.usefixtures("tiny_chunks")
def test_lines_are_numbered_by_their_offsets_in_any_order(tmp_path: Path) -> None:
    data = b"one\n\ntwo\nthree\n\n\nfour"
    file = tmp_path / "f"
    file.write_bytes(data)
    offsets = [line.offset for line in _read(data, [])]
    numbers = LineNumbers()
    assert [numbers.of(str(file), offset) for offset in reversed(offsets)] == [7, 6, 5, 4, 3, 2, 1]
    assert [numbers.of(str(file), offset) for offset in offsets] == [1, 2, 3, 4, 5, 6, 7]


# --- which files ----------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("b.ndjson", "a.jsonl", "deep/er/c.ndjson", "other.json", "[odd].ndjson"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x\n")
    return tmp_path


def _names(place: Path, path: str) -> list[str]:
    return [os.path.relpath(file, place.resolve()) for file in find_files(f"files:{place}/{path}")]


def test_a_directory_is_all_lines_below_it(place: Path) -> None:
    assert _names(place, "") == ["[odd].ndjson", "a.jsonl", "b.ndjson", "deep/er/c.ndjson"]


def test_a_glob_is_what_it_matches_and_a_file_is_itself(place: Path) -> None:
    assert _names(place, "*.json*") == ["a.jsonl", "other.json"]
    assert _names(place, "**/*.ndjson") == ["[odd].ndjson", "b.ndjson", "deep/er/c.ndjson"]
    assert _names(place, "other.json") == ["other.json"]
    assert _names(place, "[odd].ndjson") == ["[odd].ndjson"]


def test_a_file_that_two_names_lead_to_is_one_file(place: Path) -> None:
    (place / "link.ndjson").symlink_to(place / "b.ndjson")
    assert _names(place, "*.ndjson") == ["[odd].ndjson", "b.ndjson"]


def test_what_is_not_there_is_told(place: Path) -> None:
    for path in ("nothing.ndjson", "nothing/*.ndjson"):
        with pytest.raises(LogNotFound, match="nothing"):
            _names(place, path)
    with pytest.raises(InvalidUrl, match="files:PATH"):
        find_files("files:")


def test_a_name_that_is_no_text_is_told(tmp_path: Path) -> None:
    os.close(os.open(os.fsencode(tmp_path) + b"/\xff.ndjson", os.O_CREAT))
    with pytest.raises(InvalidUrl, match="rename"):
        find_files(f"files:{tmp_path}")


# --- shards ---------------------------------------------------------------------------------------------------


def _covered(shards: list[Any]) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for shard in shards:
        assert isinstance(shard, FileShard)
        for stretch in shard.stretches:
            found.setdefault(stretch.part.file, []).append((stretch.start, stretch.stop))
    return found


def test_large_files_are_cut_and_small_ones_put_together() -> None:
    mebibyte = 1 << 20
    parts = [Part("large", 0, 200 * mebibyte, ""), *(Part(f"small-{n}", 0, 1000, "") for n in range(500))]
    shards = cut_parts(parts, 2)
    assert len(shards) == 4
    covered = _covered(shards)
    assert covered["large"][0] == (0, 64 * mebibyte)
    for part in parts:
        starts, stops = zip(*covered[part.file], strict=True)
        assert (starts[0], stops[-1]) == (part.start, part.end)
        assert starts[1:] == stops[:-1]


def test_little_is_one_shard_and_nothing_is_none() -> None:
    assert len(cut_parts([Part("a", 5, 10, ""), Part("b", 0, 9, "")], 8)) == 1
    assert cut_parts([], 8) == []
    assert cut_parts([Part("a", 10, 10, "")], 8) == []


def test_a_whole_file_is_known_by_its_last_bytes(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"x" * 100_000)
    before = whole(str(file))
    file.write_bytes(b"x" * 99_999 + b"y")
    assert (before.start, before.end) == (0, 100_000)
    assert whole(str(file)).tail != before.tail


# --- rows -----------------------------------------------------------------------------------------------------

good = (
    b'{"event_id":"e1","run_id":"r1","type":"NOTED","payload":{"text":"\xe2\x80\xa8"},'
    b'"trace_id":"00000000000000000000000000000001","span_id":"0000000000000001"}'
)


def _row(content: bytes, *, offset: int = 7, is_ended: bool = True, bytes_max: int = 1000) -> dict[str, Any]:
    line = Line(offset, len(content), content, is_ended)
    return dict(zip(line_schema.names, row_of(line, "f", RUNDIR, bytes_max), strict=True))


def test_a_good_line_has_its_envelope_and_its_bytes() -> None:
    row = _row(good)
    assert (row["stream"], row["key"], row["body"], row["file"], row["offset"]) == ("r1", "e1", good, "f", 7)
    assert (row["code"], row["reason"], row["content"], row["line"]) == (None, None, None, None)


@pytest.mark.parametrize("ending", [b"\r", b""])
def test_a_carriage_return_belongs_to_the_ending(ending: bytes) -> None:
    assert _row(good + ending)["body"] == good


def test_a_byte_order_mark_belongs_to_the_beginning_of_the_file_alone() -> None:
    assert _row(b"\xef\xbb\xbf" + good, offset=0)["body"] == good
    assert _row(b"\xef\xbb\xbf" + good, offset=7)["code"] == "json.invalid"


@pytest.mark.parametrize("blank", [b"", b"  \t", b"\r"])
def test_a_blank_line_is_no_event(blank: bytes) -> None:
    assert (_row(blank)["code"], _row(blank)["content"]) == ("line.empty", blank)


def test_an_unfinished_line_is_taken_only_if_it_is_an_event() -> None:
    assert _row(good, is_ended=False)["code"] is None
    row = _row(good[:-1], is_ended=False)
    assert (row["code"], row["content"]) == ("line.unfinished", good[:-1])
    assert "The file ends before the line does: Not JSON" in row["reason"]
    assert _row(b" ", is_ended=False)["code"] == "line.unfinished"


def test_a_line_beyond_the_limit_is_no_event() -> None:
    row = _row(good, bytes_max=len(good) - 1)
    assert (row["code"], row["content"]) == ("event.too_large", good)
    assert str(len(good)) in row["reason"]


def test_zeros_are_called_zeros() -> None:
    row = _row(good[:40] + b"\0" * 9 + good[49:])
    assert row["code"] == "json.invalid"
    assert "9 NUL bytes" in row["reason"]


def test_a_model_that_breaks_on_a_line_does_not_break_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(line: bytes) -> None:
        raise KeyError("lone \ud800 surrogate")

    monkeypatch.setattr(RUNDIR, "check_line", broken)
    row = _row(good)
    assert row["code"] == "model.failed"
    assert "KeyError" in row["reason"].encode().decode()


def test_every_stretch_proves_that_its_file_is_the_one_that_was_planned(tmp_path: Path) -> None:
    (file := tmp_path / "a.ndjson").write_bytes(b"{}\n" * 100)
    part = whole(str(file))
    file.write_bytes(b"[]\n" * 100)  # Of the same size, as another machine may see it.
    with pytest.raises(FileChanged, match="does not see the file that the driver sees"):
        list(plain_files._stretch_rows(Stretch(part, 0, 30), RUNDIR, 100))
