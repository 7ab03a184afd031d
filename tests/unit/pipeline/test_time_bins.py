"""Bins of time: enough of them to see something, few enough to read, and labelled by what tells them apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runstate.pipeline.report.time_bins import (
    bin_start_ms,
    bin_width_ms,
    bins_max,
    label,
    label_starts_ms,
    ladder_ms,
    ms_max,
    ms_min,
    time_ms,
    time_text,
)

minute, hour, day = 60_000, 3_600_000, 86_400_000
noon = time_ms("2026-11-15T12:00:00Z") or 0


@pytest.mark.parametrize(
    ("length_ms", "width_ms"),
    [
        (0, 1),
        (40, 1),
        (10_000, 200),
        (59_000, 1000),
        (5 * minute, 10_000),
        (hour, 2 * minute),
        (day, 30 * minute),
        (29 * day, 12 * hour),
        (365 * day, 7 * day),
        (4 * 365 * day, 30 * day),
    ],
)
def test_a_fleet_of_any_length_gets_bins_that_fit(length_ms: int, width_ms: int) -> None:
    assert bin_width_ms(noon, noon + length_ms) == width_ms


moments = st.integers(ms_min, ms_max)


@given(moments, moments)
def test_bins_are_neither_too_many_nor_too_few(one: int, other: int) -> None:
    first, last = sorted((one, other))
    width = bin_width_ms(first, last)
    starts = range(bin_start_ms(first, width), bin_start_ms(last, width) + 1, width)
    assert width in ladder_ms
    assert len(starts) <= bins_max
    assert len(starts) >= 24 or width == 1
    assert starts[0] <= first < starts[0] + width


@given(st.integers(ms_min, ms_max - day), st.integers(0, day), st.integers(1, 8))
def test_labels_are_few_and_stand_at_bins(first: int, length: int, labels_max: int) -> None:
    width = bin_width_ms(first, first + length)
    start = bin_start_ms(first, width)
    bins = [start + n * width for n in range((bin_start_ms(first + length, width) - start) // width + 1)]
    found = label_starts_ms(start, len(bins), width, labels_max)
    assert found <= set(bins)
    assert 1 <= len(found) <= labels_max


def test_labels_stand_at_round_times() -> None:
    first, width = noon + 40_000, 10_000
    found = sorted(label_starts_ms(first, 31, width, 6))
    assert [label(at, width, first, first + 300_000) for at in found] == [
        "12:01:00",
        "12:02:00",
        "12:03:00",
        "12:04:00",
        "12:05:00",
    ]


@pytest.mark.parametrize(
    ("width_ms", "length_ms", "words"),
    [
        (100, 5000, "12:00:00.000"),
        (10_000, 5 * minute, "12:00:00"),
        (10 * minute, 5 * hour, "12:00"),
        (hour, 48 * hour, "15 Nov 12:00"),
        (day, 30 * day, "15 Nov"),
        (7 * day, 300 * day, "15 Nov 2026"),
        (30 * day, 900 * day, "Nov 2026"),
    ],
)
def test_a_label_says_no_more_than_tells_it_from_the_others(width_ms: int, length_ms: int, words: str) -> None:
    assert label(noon, width_ms, noon, noon + length_ms) == words


def test_midnight_is_labelled_by_its_day() -> None:
    assert label(noon + 12 * hour, hour, noon, noon + 48 * hour) == "16 Nov"


def test_weeks_begin_on_monday() -> None:
    assert time_text(bin_start_ms(noon, 7 * day)) == "2026-11-09T00:00:00Z"


@given(moments)
def test_a_time_is_read_as_it_was_written(at_ms: int) -> None:
    assert time_ms(time_text(at_ms)) == at_ms


@pytest.mark.parametrize("text", ["", "soon", "2026-11-15T09:30:00", "0000-01-01T00:00:00Z"])
def test_what_is_no_time_with_a_zone_has_none(text: str) -> None:
    assert time_ms(text) is None
