"""The query that calls the batches of an archive, run to its end or until it is told to stop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidelog.pipeline.archive.batch import BatchArchiver

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_LOOK_S: Final = 0.5
_PY4J_LOG: Final = logging.getLogger("py4j")


def run_query(query: StreamingQuery, archiver: BatchArchiver, stops: Callable[[], bool]) -> None:
    """Runs the query. When `stops` returns True, the current batch is interrupted, and the next run repeats
    it. Raises StreamingQueryException.
    """
    level = _PY4J_LOG.level
    try:
        while not query.awaitTermination(_LOOK_S):
            if stops():
                archiver.is_broken_off = True
                _PY4J_LOG.setLevel(logging.CRITICAL)  # Spark raises it for every error of a batch
                return
    finally:
        query.stop()
        _PY4J_LOG.setLevel(level)
