"""Where relative URLs begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from runstate.pipeline.source.relative_urls import located, relative_to


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:runs.db", "sqlite:/driver/runs.db"),
        ("ndjson:../runs", "ndjson:/driver/../runs"),
        ("wal:farm?history=drop", "wal:/driver/farm?history=drop"),
        ("files:in/*.ndjson", "files:/driver/in/*.ndjson"),
        ("table:/data/events", "table:/data/events"),
        ("postgresql://db/runs", "postgresql://db/runs"),
        ("memory:", "memory:"),
        ("sqlite:", "sqlite:"),
        ("nonsense", "nonsense"),
    ],
)
def test_a_url_is_completed_with_the_directory_of_the_driver(url: str, expected: str) -> None:
    with relative_to("/driver"):
        assert located(url) == expected


def test_without_a_driver_it_is_the_directory_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError), relative_to("/driver"):
        raise RuntimeError
    assert located("sqlite:runs.db") == f"sqlite:{tmp_path}/runs.db"
