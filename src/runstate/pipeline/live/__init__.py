"""Feeds followed by Spark: snapshots that are kept up to date."""
