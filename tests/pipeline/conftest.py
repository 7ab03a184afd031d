"""One Spark session for all tests of the pipeline; they are slow, and share one JVM in one worker of xdist."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runstate.pipeline.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_here = Path(__file__).parent

fast_start = {
    # The first compiler alone: a test is over before the second one would pay.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _here in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(autouse=True, scope="module")
def _functions_travel_by_value(request: pytest.FixtureRequest) -> None:
    """Tasks may use functions of the test's own module, which a worker of Spark could not import."""
    pytest.importorskip("pyspark", reason="pip install 'runstate[spark]'")
    from pyspark.cloudpickle import register_pickle_by_value

    register_pickle_by_value(request.module)  # type: ignore[no-untyped-call]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    started = session(master="local[2]", conf=fast_start, app_name="runstate-tests")
    yield started
    started.stop()
