"""Shards: every stream is in exactly one, and none is much heavier than it must be."""

from hypothesis import given
from hypothesis import strategies as st

from runstate.pipeline.source.shards import Shard, cut, cut_counted, place_before

streams = st.lists(st.text(min_size=1, max_size=5), unique=True, max_size=60).map(sorted)


def holds(shard: Shard, stream: str) -> bool:
    return stream > shard.after and (shard.until is None or stream <= shard.until)


@given(streams, st.integers(1, 9), st.randoms(use_true_random=False))
def test_every_stream_is_in_exactly_one_shard(names: list[str], count: int, luck) -> None:  # type: ignore[no-untyped-def]
    shards = cut([(name, luck.randrange(10**6)) for name in names], count)
    assert len(shards) <= count
    for name in [*names, "", "\U0010ffff" * 6]:
        assert sum(holds(shard, name) for shard in shards) == (1 if names and name else 0) or not name


@given(st.integers(1, 2000), st.integers(1, 16))
def test_shards_of_equal_streams_are_about_equal(number: int, count: int) -> None:
    names = [f"{each:05d}" for each in range(number)]
    shards = cut([(name, 7_000_000) for name in names], count)
    sizes = [sum(holds(shard, name) for name in names) for shard in shards]
    assert sum(sizes) == number
    assert max(sizes) <= 1.25 * number / count + 2


def test_a_heavy_stream_gets_a_shard_almost_to_itself() -> None:
    weights = [(f"{each:03d}", 100_000_000 if each == 50 else 100_000) for each in range(100)]
    shards = cut(weights, 4)
    (heavy,) = [shard for shard in shards if holds(shard, "050")]
    assert len(shards) > 1
    assert sum(weight for name, weight in weights if holds(heavy, name)) <= 110_000_000


def test_nothing_has_no_shards() -> None:
    assert cut([], 4) == []


ids = st.text(st.characters(min_codepoint=0x20, exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(ids, ids)
def test_the_place_before_a_stream_parts_it_from_all_that_are_less(stream: str, other: str) -> None:
    place = place_before(stream)
    place.encode()
    assert place < stream
    assert (other > place) == (other >= stream)


@given(ids)
def test_the_place_before_a_stream_is_behind_the_longest_id_that_is_less(stream: str) -> None:
    less = stream[:-1] + chr(0x1F) + chr(0x10FFFF) * 127
    assert less < stream
    assert less <= place_before(stream)


@given(streams, ids, ids, st.integers(1, 5))
def test_the_parts_of_shards_hold_what_lies_between(names: list[str], low: str, high: str, count: int) -> None:
    for shards in (cut([(name, 1) for name in names], count), [Shard(only=tuple(names))]):
        parts = [part for shard in shards if (part := shard.between(low, high)) is not None]
        held = [name for part in parts for name in names if holds(part, name) and name in (part.only or names)]
        assert held == [name for name in names if low < name <= high]


@given(st.lists(st.sampled_from("abcdefghijkl"), max_size=30), st.integers(1, 40), st.integers(1, 9))
def test_shards_know_how_many_streams_they_have_whatever_comes_twice(some: list[str], times: int, count: int) -> None:
    names = sorted(some * times)  # Many, so that not every one is kept as a bound.
    shards = cut_counted(((name, 3, 1) for name in names), count)
    assert [(s.after, s.until) for s in shards] == [(s.after, s.until) for s in cut([(n, 3) for n in names], count)]
    for shard in shards:
        inside = [name for name in names if name > shard.after and (shard.until is None or name <= shard.until)]
        assert shard.streams == len(inside)
