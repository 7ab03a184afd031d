"""Runstate on Spark: read any log, ingest, replay, audit and report on a whole fleet.

`pyspark` is imported in this package alone, and needs the extra: `pip install 'runstate[spark]'`.
"""
