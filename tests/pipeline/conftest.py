"""One Spark session for the tests of the pipeline that ask for it: they share one JVM in one worker of xdist.

The others start Spark in processes of their own, one after the other in another worker.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.log_urls import credentials

from runstate.pipeline.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_here = Path(__file__).parent

fast_start = {
    # The first compiler alone: a test is over before the second one would pay.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
}


# First: pytest-xdist looks at the marks in the same hook, and must find these.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _here in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group(_group(item)))


def _group(item: pytest.Item) -> str:
    # By a parameter, where a fixture asks for the session by that name.
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return "spark" if "spark" in (*getattr(item, "fixturenames", ()), *parameters) else "spark-processes"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Where groups have no effect, every worker would start a Spark of its own, and nobody would notice why."""
    if item.config.getoption("loadgroup", False) and not item.nodeid.endswith(f"@{_group(item)}"):
        pytest.fail("pytest-xdist has not put this test into its group; is it too old for this pytest?", pytrace=False)


@pytest.fixture(autouse=True, scope="module")
def _functions_travel_by_value(request: pytest.FixtureRequest) -> None:
    """Tasks may use functions of the test's own module, which a worker of Spark could not import."""
    pytest.importorskip("pyspark", reason="pip install 'runstate[spark]'")
    from pyspark.cloudpickle import register_pickle_by_value

    register_pickle_by_value(request.module)  # type: ignore[no-untyped-call]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # Now, since its workers inherit what is set when Spark starts: they open logs by themselves.
    for name, value in credentials.items():
        os.environ.setdefault(name, value)
    started = session(master="local[2]", conf=fast_start, app_name="runstate-tests")
    yield started
    started.stop()


@pytest.fixture
def spark_home(tmp_path: Path) -> str:
    """For SPARK_HOME: a local cluster keeps its working files where Spark is installed."""
    import pyspark

    home = tmp_path / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    return str(home)
