"""The error that a job raises when it cannot do what the user asked, and how it is found again in the Java
stack trace that Spark makes of it.
"""

from __future__ import annotations

import re
import sys
from typing import Final


class PipelineError(Exception):
    """The text is one sentence for the user, with the next step if there is one."""


_RAISED: Final = re.compile(r"^\W*(?:E\s+)?tidelog\.pipeline\.[\w.]+Error: (.+)$", re.MULTILINE)


def spark_errors() -> tuple[type[Exception], ...]:
    """Returns Spark's error classes for an `except` clause, or none if pyspark has not been imported yet."""
    if "pyspark" not in sys.modules:
        return ()
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JJavaError


def sentence_of(error: Exception) -> str | None:
    """Returns the text of the PipelineError in Spark's error, or None if the error is another one."""
    found = _RAISED.search(str(error))
    return found[1].strip() if found else None
