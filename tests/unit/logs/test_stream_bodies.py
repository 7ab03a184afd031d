"""Pages of lines are those of the records, also where seqs have gaps."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.log_urls import url_at

from runstate.conformance.notes import as_held, notes
from runstate.errors import InvalidArgument
from runstate.logs.registry import open_log
from runstate.logs.stream_bodies import read_bodies


@pytest.mark.parametrize("scheme", ["sqlite", "ndjson", "wal", "memory"])
def test_a_page_of_lines_is_that_of_the_records(tmp_path: Path, scheme: str) -> None:
    with open_log(url_at(scheme, tmp_path / "log")) as log:
        held = as_held("s", notes("a", "b"))
        if scheme != "ndjson":  # Its lines are numbered.
            held += [*as_held("s", notes("c"), after_seq=4), *as_held("s", notes("d", "e"), after_seq=9)]
        log.adopt("s", held)
        info = log.stream("s")
        for after_seq in range(13):
            for limit in range(1, 8):
                expected = [record.body for record in log.read("s", after_seq=after_seq, limit=limit)]
                assert read_bodies(log, "s", info, after_seq, limit) == expected, (after_seq, limit)
        assert read_bodies(log, "nothing", None, 0, 5) == []
        with pytest.raises(InvalidArgument):
            read_bodies(log, "s", info, 0, 0)
