"""Runs `tidelog pipeline archive` with a task that fails once. The first argument names a file that remembers
the failure.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from tidelog.pipeline.archive import batch
from tidelog.pipeline.archive.main import main

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def run() -> None:
    memory = Path(sys.argv.pop(1))
    real = batch.raw_rows

    def with_a_bad_task(records: DataFrame) -> DataFrame:
        @fn.udf("binary")
        def fails_once(value: bytes | None) -> bytes | None:
            if not memory.exists():
                memory.touch()
                raise RuntimeError("a task that fails once")
            return value

        return real(records.withColumn("value", fails_once("value")))

    batch.raw_rows = with_a_bad_task
    main()


if __name__ == "__main__":
    run()
