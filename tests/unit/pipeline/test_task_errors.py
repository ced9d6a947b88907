"""The sentence in Spark's stack trace is found."""

from __future__ import annotations

import pytest

from tidelog.pipeline.errors import sentence_of

PAGE = """[PYTHON_DATA_SOURCE_ERROR] Failed to generate Python data source read partitions: Traceback:
  File "source.py", line 62, in partitions
    raise OffsetsMissingError(
tidelog.pipeline.segments.log_files.OffsetsMissingError: flights-1: offsets 3 to 5 cannot be read: gone
 SQLSTATE: 38000
\tat org.apache.spark.Something(Some.scala)
"""


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        (PAGE, "flights-1: offsets 3 to 5 cannot be read: gone"),
        ("java.lang.Error\ntidelog.pipeline.errors.PipelineError: no topic\n", "no topic"),
        ("org.apache.spark.SparkException: tidelog isn't there", None),
        ("ValueError: tidelog.pipeline", None),
    ],
)
def test_the_sentence_in_sparks_error_is_found(page: str, sentence: str | None) -> None:
    assert sentence_of(Exception(page)) == sentence
