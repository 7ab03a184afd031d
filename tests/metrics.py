"""Metrics for tests: a file of them, as Prometheus reads it."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

_labels = ("stage", "model", "kind", "status")


def samples(path: Path) -> dict[tuple[str, ...], float]:
    """Values by name, stage, model, and what else there is."""
    found = {}
    for family in text_string_to_metric_families(path.read_text()):
        for sample in family.samples:
            labels = [sample.labels[name] for name in _labels if name in sample.labels]
            found[sample.name, *labels] = sample.value
    return found
