"""For commands that tests run: Java's first compiler alone, since they are over before the second one would pay."""

from __future__ import annotations

quick_java = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1"}
"""To be set in their environment."""
