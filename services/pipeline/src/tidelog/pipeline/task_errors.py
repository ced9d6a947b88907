"""What a task or a data source raised, found again in the page of Java that Spark makes of it."""

from __future__ import annotations

import re
import sys
from typing import Final

_RAISED: Final = re.compile(r"^\W*(?:E\s+)?tidelog\.pipeline\.[\w.]+Error: (.+)$", re.MULTILINE)


def spark_errors() -> tuple[type[Exception], ...]:
    """For an `except`; none while nobody has imported pyspark, so that nothing is imported for it."""
    if "pyspark" not in sys.modules:
        return ()
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JJavaError


def sentence_of(error: Exception) -> str | None:
    """The PipelineError's text, None if it wasn't one."""
    found = _RAISED.search(str(error))
    return found[1].strip() if found else None
