"""The errors that Spark gets for a batch that fails, and for one that is interrupted."""

from __future__ import annotations

import re
from typing import Final

import pytest
from pyspark.sql import DataFrame

from tidelog.pipeline.archive.batch import BatchArchiver, BrokenOffError

SPARKS_PATTERN: Final = (
    r"py4j.protocol.Py4JJavaError: An error occurred while calling((.|\r\n|\r|\n)*)"
    r"(java.lang.InterruptedException|java.io.InterruptedIOException)"
)
"""The pattern of StreamExecution in Spark 4.2 for failures that only mean that the query was stopped."""


class Failing(BatchArchiver):
    def __init__(self) -> None:
        self.failure = None
        self.is_broken_off = False

    def _archive(self, records: DataFrame, batch: int) -> None:
        raise ValueError("a page of Java\n" * 1000)


def test_a_failure_is_kept_and_reported() -> None:
    archiver = Failing()
    with pytest.raises(ValueError, match="a page of Java"):
        archiver(None, 0)  # type: ignore[arg-type]  # it isn't read
    assert isinstance(archiver.failure, ValueError)


def test_an_interrupted_batch_is_reported_in_words_that_spark_takes_for_a_stop() -> None:
    archiver = Failing()
    archiver.is_broken_off = True
    with pytest.raises(BrokenOffError) as told:
        archiver(None, 0)  # type: ignore[arg-type]  # it isn't read
    assert re.search(SPARKS_PATTERN, str(told.value))
    assert told.value.__suppress_context__, "Spark would be handed the page, too"
