"""How Spark finds the data source by itself: it looks for modules named `pyspark_*`, and a `DefaultSource` in each.

`spark.read.format("runstate")` and `CREATE TABLE … USING runstate` then work in every session, without `register`.
"""

from runstate.pipeline.source.data_source import RunstateSource as DefaultSource

__all__ = ["DefaultSource"]
