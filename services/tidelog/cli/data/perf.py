"""`tidelog perf`: measures how fast a cluster accepts and returns records of this one Python process."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import click

from tidelog.cli.data.consume import starting_positions
from tidelog.cli.data.produce import ACKS, CODECS
from tidelog.cli.output import print_table
from tidelog.cli.tool_command import ToolCommand, chosen_topic, cluster_options, connect, topic_option
from tidelog.client.threads.topic_reader import MAX_REQUEST_BYTES, batch_producer_of, reading, sound_records
from tidelog.process.command_help import SuggestingGroup
from tidelog.records.batch import BATCH_HEADER_BYTES
from tidelog.settings.setting import INT_MAX

MIB: Final = 1 << 20
MAX_RECORD_BYTES: Final = MAX_REQUEST_BYTES - MIB
"""The largest value. The producer refuses larger requests, and the rest of a request needs some room."""
MAX_VALUES: Final = 64
MAX_VALUES_BYTES: Final = 64 * MIB
"""The most different values, and the memory for them, if one value is not larger."""
RECORD_OVERHEAD_BYTES: Final = 21
"""The assumed size of a record's own fields. An exact size is not needed."""
_PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)


@dataclass(slots=True)
class _Measurement:
    """The records that were acknowledged or read, and the time until then."""

    records: int = 0
    size_bytes: int = 0
    elapsed_s: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)
    """The times of the batches that were sent."""

    def add(self, records: int, size_bytes: int, elapsed_s: float) -> None:
        self.records += records
        self.size_bytes += size_bytes
        self.elapsed_s = elapsed_s


@contextlib.contextmanager
def _told_at_the_end(measured: _Measurement) -> Iterator[None]:
    """Prints what was measured, also what was measured before Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        if measured.records:
            _show(measured)
        raise
    _show(measured)


@click.group(cls=SuggestingGroup)
def command() -> None:
    """Measure the throughput of producing and consuming."""


@command.command(
    "produce",
    cls=ToolCommand,
    examples=("tidelog perf produce flights --num-records 100000 --record-size 100",),
)
@topic_option
@click.option("--num-records", type=click.IntRange(min=1), default=100_000, show_default=True)
@click.option(
    "--record-size",
    type=click.IntRange(min=1, max=MAX_RECORD_BYTES),
    default=1000,
    show_default=True,
    help="Size of a value in bytes.",
)
@click.option(
    "--throughput",
    type=int,
    default=-1,
    show_default=True,
    help="Maximum number of records per second; -1 means no limit.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    help="Size of a batch in bytes.",
)
@click.option("--acks", type=click.Choice(ACKS), default="all", show_default=True)
@click.option("--compression-codec", "codec", type=click.Choice(CODECS), default="none")
@cluster_options
def perf_produce(
    num_records: int, record_size: int, throughput: int, batch_size: int, acks: str, codec: str
) -> None:
    """Send batches of random values to the partitions in turn, with one request in flight."""
    name = chosen_topic()
    batch_records = min(num_records, records_of_a_batch(batch_size, record_size))
    different = max(1, min(batch_records, MAX_VALUES, MAX_VALUES_BYTES // record_size))
    values = [os.urandom(record_size) for _ in range(different)]
    measured = _Measurement()
    with (
        _told_at_the_end(measured),
        connect() as cluster,
        batch_producer_of(cluster, acks=acks, compression=codec, batch_bytes=batch_size) as producer,
    ):
        num_partitions = len(cluster.topic(name).partitions)
        producer.partitions_for(name)  # so that the first batch does not wait for metadata
        began_s = time.monotonic()
        while measured.records < num_records:
            count = min(batch_records, num_records - measured.records)
            if throughput > 0:
                count = min(count, throughput)
                time.sleep(max(0.0, began_s + measured.records / throughput - time.monotonic()))
            batch = [values[i % len(values)] for i in range(count)]
            asked_s = time.monotonic()
            producer.send_batch(name, batch, partition=len(measured.latencies_ms) % num_partitions).result()
            measured.latencies_ms.append((time.monotonic() - asked_s) * 1000)
            measured.add(count, count * record_size, time.monotonic() - began_s)


@command.command("consume", cls=ToolCommand, examples=("tidelog perf consume flights",))
@topic_option
@click.option(
    "--num-records",
    "--messages",
    type=click.IntRange(min=1),
    help="Stop after this number of records. The default is to stop at the end of the topic.",
)
@click.option(
    "--timeout",
    "timeout_ms",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    help="Stop when no record arrives for this time.",
)
@click.option(
    "--fetch-size",
    type=click.IntRange(min=1),
    default=MIB,
    show_default=True,
    help="Maximum bytes of a partition in a fetch.",
)
@cluster_options
def perf_consume(num_records: int | None, timeout_ms: int, fetch_size: int) -> None:
    """Read all partitions from the beginning."""
    name = chosen_topic()
    measured = _Measurement()
    with _told_at_the_end(measured), connect() as cluster:
        topic = cluster.topic(name)
        ends = starting_positions(cluster, topic, None, "latest")
        starts = starting_positions(cluster, topic, None, "earliest")
        settings = {"max.partition.fetch.bytes": min(fetch_size, INT_MAX)}
        with reading(cluster, name, starts, settings) as reader:
            began_s = seen_s = time.monotonic()
            while (
                time.monotonic() - seen_s < timeout_ms / 1000
                and (num_records is None or measured.records < num_records)
                and (num_records is not None or _is_before(starts | reader.positions(), ends))
            ):
                batch = reader.poll()
                if batch is not None:
                    read = sum(1 for _ in sound_records(batch, max_headers=0))
                    seen_s = time.monotonic()
                    measured.add(read, batch.size_bytes, seen_s - began_s)


def _is_before(positions: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    return any(positions[index] < end for index, end in ends.items())


def records_of_a_batch(batch_size: int, record_size: int) -> int:
    """Returns how many records a batch of this size holds, with their own fields, but at least 1."""
    return max(1, (batch_size - BATCH_HEADER_BYTES) // (record_size + RECORD_OVERHEAD_BYTES))


def percentile(ordered: list[float], percent: float) -> float:
    """Returns the smallest value that at least `percent` of the values do not exceed."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def _show(measured: _Measurement) -> None:
    seconds = max(measured.elapsed_s, 1e-9)
    print_table(
        ("#records", "#seconds", "#records/s", "#MiB/s"),
        [
            (
                measured.records,
                f"{measured.elapsed_s:.3f}",
                f"{measured.records / seconds:.0f}",
                f"{measured.size_bytes / MIB / seconds:.2f}",
            )
        ],
        name="rates",
    )
    if not measured.latencies_ms:
        return
    latencies_ms = sorted(measured.latencies_ms)
    print_table(
        ("#" + "average ms", *(f"#p{p:g} ms" for p in _PERCENTILES), "#max ms"),
        [
            [f"{sum(latencies_ms) / len(latencies_ms):.2f}"]
            + [f"{percentile(latencies_ms, p):.2f}" for p in _PERCENTILES]
            + [f"{latencies_ms[-1]:.2f}"]
        ],
        title="Time from creating a batch to its acknowledgement",
        name="latency",
    )
