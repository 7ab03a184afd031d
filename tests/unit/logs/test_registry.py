"""Opening logs by their URLs: what is refused, and what is suggested instead."""

from __future__ import annotations

import pytest

from runstate.errors import InvalidUrl
from runstate.logs.registry import open_log


@pytest.mark.parametrize(
    ("url", "suggested"),
    [
        ("postgres://me:geheim@db/runs?schema=a", "'postgresql://me@db/runs?schema=a'"),
        ("sqlit:runs.db", "'sqlite:runs.db'"),
    ],
)
def test_a_scheme_that_is_nearly_right_is_corrected(url: str, suggested: str) -> None:
    with pytest.raises(InvalidUrl) as refused:
        open_log(url)
    assert f"Did you mean {suggested}?" in str(refused.value)
    assert "geheim" not in str(refused.value.as_data())


def test_an_unknown_scheme_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InvalidUrl, match=r"'nonsense:x' is not a log URL\. A URL starts with one of: .*sqlite:"):
        open_log("nonsense:x")
