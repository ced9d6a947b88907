#!/usr/bin/env python3
"""Compares the segment source with Spark's Kafka connector. The same session (local[2]) reads the same
records from the files of a running broker and from the broker itself, in turns.

The script prints the rows per second and the broker's CPU time; with --write it writes them to
docs/benchmarks-pipeline.md. It also reports the machine's load, because other work distorts the results.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
from confluent_kafka import Producer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import create_topic
from tidelog.pipeline import segments
from tidelog.pipeline.segments.storage import Storage
from tidelog.pipeline.segments.visible import visible_logs
from tidelog.pipeline.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER: Final = "local[2]"
PARTITIONS: Final = 4
START_TIMEOUT_S: Final = 180.0
VISIBLE_TIMEOUT_S: Final = 180.0
LEAST_RATIO: Final = 1.0
REPORT: Final = Path(__file__).resolve().parents[2] / "docs" / "benchmarks-pipeline.md"


class Shape(NamedTuple):
    name: str
    value_bytes: int
    batch_bytes: int
    codec: str


SHAPES: Final = (
    Shape("1 KB, batches of 16 KB", 1000, 16_384, "none"),
    Shape("1 KB, batches of 1 MB", 1000, 1_000_000, "none"),
    Shape("1 KB, batches of 16 KB, lz4", 1000, 16_384, "lz4"),
    Shape("100 B, batches of 16 KB", 100, 16_384, "none"),
)


class Run(NamedTuple):
    seconds: float
    spark_cpu_s: float
    broker_cpu_s: float


class Result(NamedTuple):
    shape: Shape
    rows: int
    connector: Run
    source: Run

    @property
    def ratio(self) -> float:
        return self.connector.seconds / self.source.seconds


def main() -> int:
    arguments = _arguments()
    console = Console()
    directory = Path(tempfile.mkdtemp(prefix="tidelog-segments-bench-"))
    settings = {"replica.high.watermark.checkpoint.interval.ms": "500"}
    broker = BrokerProcess(directory / "data", directory / "broker.log", settings).start(START_TIMEOUT_S)
    spark = None
    try:
        topics = [f"shape-{number}" for number in range(len(arguments.shapes))]
        for topic, shape in zip(topics, arguments.shapes, strict=True):
            rows = _rows_of(shape, arguments.megabytes)
            _fill(broker.bootstrap, topic, shape, rows)
            _wait_until_visible(broker, topic, rows)
        spark = spark_session("segments beside the connector", master=MASTER)
        segments.register(spark)
        load = os.getloadavg()[0]
        results = [
            _measure(spark, broker, topic, shape, _rows_of(shape, arguments.megabytes), arguments.runs)
            for topic, shape in zip(topics, arguments.shapes, strict=True)
        ]
    finally:
        if spark is not None:
            spark.stop()
        broker.stop()
        shutil.rmtree(directory, ignore_errors=True)
    console.print(_table(results, load))
    if arguments.write:
        REPORT.write_text(_report(results, load, arguments))
        console.print(f"written: {REPORT}")
    return 0 if results[0].ratio >= LEAST_RATIO else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400, help="size of the values of each shape")
    parser.add_argument(
        "--runs", type=int, default=3, help="runs of each reader, in turns; the result is the median"
    )
    parser.add_argument(
        "--shapes", type=int, default=len(SHAPES), help="number of shapes, from the first one"
    )
    parser.add_argument("--write", action="store_true", help=f"write the report to {REPORT.name}")
    arguments = parser.parse_args()
    arguments.shapes = SHAPES[: arguments.shapes]
    return arguments


def _rows_of(shape: Shape, megabytes: int) -> int:
    return megabytes * 1_000_000 // shape.value_bytes


def _fill(bootstrap: str, topic: str, shape: Shape, rows: int) -> None:
    create_topic(bootstrap, topic, PARTITIONS, {"retention.ms": "-1"})
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "1",
            "linger.ms": 50,
            "batch.size": shape.batch_bytes,
            "compression.type": shape.codec,
        }
    )
    # Half of each value does not compress, as with real records.
    noise = random.Random(7).randbytes(1_000_000)
    half = shape.value_bytes // 2
    for number in track(range(rows), description=shape.name, transient=True):
        start = number * 37 % (len(noise) - half)
        value = noise[start : start + half] + b"a" * (shape.value_bytes - half)
        while True:
            try:
                producer.produce(topic, value, key=b"key-%d" % number, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def _wait_until_visible(broker: BrokerProcess, topic: str, rows: int) -> None:
    deadline = time.monotonic() + VISIBLE_TIMEOUT_S
    while True:
        logs = visible_logs(Storage(), [str(broker.data_dir)], [topic])
        if sum(log.end_offset for log in logs) == rows:
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"{rows} records weren't checkpointed within {VISIBLE_TIMEOUT_S:g} s")
        time.sleep(0.2)


def _measure(
    spark: SparkSession, broker: BrokerProcess, topic: str, shape: Shape, rows: int, runs: int
) -> Result:
    def connector() -> DataFrame:
        options = {
            "kafka.bootstrap.servers": broker.bootstrap,
            "subscribe": topic,
            "includeHeaders": "true",
            "kafka.isolation.level": "read_committed",
        }
        return spark.read.format("kafka").options(**options).load()

    def source() -> DataFrame:
        return spark.read.format("tidelog").option("subscribe", topic).load(str(broker.data_dir))

    found: dict[str, list[Run]] = {"connector": [], "source": []}
    for number in range(runs + 1):
        for name, frame in (("connector", connector), ("source", source)):
            run = _read(frame, psutil.Process(broker.pid), rows)
            if number:  # the first run warms up the JVM and the page cache
                found[name].append(run)
    return Result(shape, rows, _median(found["connector"]), _median(found["source"]))


def _read(frame: Callable[[], DataFrame], broker: psutil.Process, rows: int) -> Run:
    """Reads all columns of all rows."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    seen = Observation()
    broker_before, spark_before, began = _cpu_s(broker), _spark_cpu_s(broker), time.perf_counter()
    frame().observe(seen, count(lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - began
    if seen.get["rows"] != rows:
        raise SystemExit(f"{seen.get['rows']} rows read, {rows} written")
    return Run(seconds, _spark_cpu_s(broker) - spark_before, _cpu_s(broker) - broker_before)


def _cpu_s(process: psutil.Process) -> float:
    """Returns the CPU time of a process and of its children that have ended."""
    return float(sum(process.cpu_times()[:4]))


def _spark_cpu_s(broker: psutil.Process) -> float:
    children = psutil.Process().children(recursive=True)
    return sum(_cpu_s(child) for child in children if child.pid != broker.pid)


def _median(runs: list[Run]) -> Run:
    return Run(*(statistics.median(column) for column in zip(*runs, strict=True)))


def _cells(result: Result) -> tuple[str, ...]:
    connector, source = result.connector, result.source
    return (
        result.shape.name,
        f"{result.rows:,}",
        f"{result.rows / connector.seconds:,.0f}",
        f"{result.rows / source.seconds:,.0f}",
        f"{result.ratio:.2f}",
        f"{connector.spark_cpu_s:.1f}",
        f"{source.spark_cpu_s:.1f}",
        f"{connector.broker_cpu_s:.2f}",
        f"{source.broker_cpu_s:.2f}",
    )


_COLUMNS: Final = (
    "records",
    "rows",
    "connector, rows/s",
    "segments, rows/s",
    "ratio",
    "connector: Spark's CPU, s",
    "segments: Spark's CPU, s",
    "connector: broker's CPU, s",
    "segments: broker's CPU, s",
)


def _table(results: list[Result], load: float) -> Table:
    table = Table(*_COLUMNS, title=f"Segment source beside the Kafka connector, {MASTER}, load {load:.1f}")
    for result in results:
        table.add_row(*_cells(result))
    return table


def _report(results: list[Result], load: float, arguments: argparse.Namespace) -> str:
    rows = [_COLUMNS, ("---",) + ("---:",) * (len(_COLUMNS) - 1), *map(_cells, results)]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"""# Benchmarks of the pipeline

`tests/bench/segments_beside_connector.py --write` writes this page. It reads all columns of the same records
with the segment source (`spark.read.format("tidelog")`, with checksums checked) from the data directory of a
running broker, and with Spark's own Kafka connector from that broker.

- Spark runs as {MASTER}. The topic has {PARTITIONS} partitions, and each kind of records has
  {arguments.megabytes} MB of values. The rows are discarded (`noop`).
- A figure is the median of {arguments.runs} runs, which alternate, after one run of each for warm-up.
- The machine has {os.cpu_count()} cores. The load average was {load:.1f} at the beginning;
  where other work was running, CPU time is more reliable than rows per second.
- Spark's CPU time is that of the JVM and its Python workers. The broker's CPU time includes its own
  housekeeping.

{lines}
"""


if __name__ == "__main__":
    sys.exit(main())
