"""Shards: every stream is in exactly one, and none is much heavier than it must be."""

from hypothesis import given
from hypothesis import strategies as st

from runstate.pipeline.shards import Shard, cut

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
