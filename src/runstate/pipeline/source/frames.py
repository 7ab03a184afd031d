"""Any DataFrame of events folded into snapshots, wherever its rows come from: one shuffle brings streams together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from operator import itemgetter

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from runstate.models.registry import find_model
from runstate.pipeline.replay.fold import Snapshot, fold_lines, packed, snapshot_schema
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.spark.failures import told_to_driver

_needed = ["stream", "seq", "body"]


def fold_frame(frame: DataFrame, model: str, partitions: int | None = None) -> DataFrame:
    """The state of every stream of a DataFrame with the columns `stream`, `seq` and `body`, like the view `snapshots`.

    Raises:
        InvalidOption: a column is missing.
        UnknownModel: there is no such model.
    """
    if missing := [name for name in _needed if name not in frame.columns]:
        raise InvalidOption(f"The DataFrame has no column {missing[0]!r}; it needs {', '.join(_needed)}")
    find_model(model)

    def fold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with told_to_driver():
            yield from packed(_folded(batches, model))

    events = frame.select(*_needed)
    grouped = events.repartition("stream") if partitions is None else events.repartition(partitions, "stream")
    return grouped.sortWithinPartitions("stream", "seq").mapInArrow(fold, from_arrow_schema(snapshot_schema))


def _folded(batches: Iterable[pa.RecordBatch], model: str) -> Iterator[Snapshot]:
    for stream, events in groupby(chain.from_iterable(map(_rows, batches)), key=itemgetter(0)):
        yield fold_lines(stream, ((seq, body) for _, seq, body in events), find_model(model))


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[str, int, bytes]]:
    stream, seq, body = (batch.column(name) for name in _needed)
    # A body is text or bytes; a model folds bytes.
    return zip(stream.to_pylist(), seq.to_pylist(), body.cast(pa.binary()).to_pylist(), strict=True)
