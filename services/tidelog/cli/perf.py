"""`tidelog perf`: measures how fast a cluster accepts and returns records of this one Python process."""

from __future__ import annotations

import os
import time
from typing import Final

import click

from tidelog.cli.consume import starting_positions
from tidelog.cli.output import print_table
from tidelog.cli.record_batcher import RECORD_OVERHEAD_BYTES
from tidelog.cli.tool_command import (
    ToolCommand,
    chosen_topic,
    cluster_options,
    connect,
    topic_option,
)
from tidelog.client.batch_sender import ACKS_ALL, ACKS_LEADER, ACKS_NONE, BatchSender
from tidelog.client.fetch_loop import FetchLoop
from tidelog.process.command_help import SuggestingGroup
from tidelog.records.batch import BATCH_HEADER_BYTES
from tidelog.records.compression import Compression
from tidelog.records.record import Record

MIB: Final = 1 << 20
_ACKS: Final = {"all": ACKS_ALL, "-1": ACKS_ALL, "1": ACKS_LEADER, "0": ACKS_NONE}
_PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)


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
    type=click.IntRange(min=1),
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
@click.option("--acks", type=click.Choice(list(_ACKS)), default="all", show_default=True)
@click.option(
    "--compression-codec", "codec", type=click.Choice([c.name.lower() for c in Compression]), default="none"
)
@cluster_options
def perf_produce(
    topic_name: str | None,
    topic_option: str | None,
    num_records: int,
    record_size: int,
    throughput: int,
    batch_size: int,
    acks: str,
    codec: str,
    bootstrap_server: str,
    request_timeout_ms: int,
) -> None:
    """Send batches of random values to the partitions in turn, with one request in flight."""
    name = chosen_topic(topic_name, topic_option)
    batch_records = min(num_records, records_of_a_batch(batch_size, record_size))
    values = [os.urandom(record_size) for _ in range(min(batch_records, 64))]
    latencies_ms: list[float] = []
    sent = 0
    with connect(bootstrap_server, request_timeout_ms) as cluster:
        topic = cluster.topic(name)
        sender = BatchSender(cluster, topic, acks=_ACKS[acks], compression=Compression[codec.upper()])
        began_s = time.monotonic()
        while sent < num_records:
            count = min(batch_records, num_records - sent)
            if throughput > 0:
                count = min(count, throughput)
                time.sleep(max(0.0, began_s + sent / throughput - time.monotonic()))
            now_ms = time.time_ns() // 1_000_000
            records = [Record(i, now_ms, None, values[i % len(values)]) for i in range(count)]
            asked_s = time.monotonic()
            sender.send({len(latencies_ms) % len(topic.partitions): records})
            latencies_ms.append((time.monotonic() - asked_s) * 1000)
            sent += count
        elapsed_s = time.monotonic() - began_s
    latencies_ms.sort()
    _show_rates(sent, sent * record_size, elapsed_s)
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
def perf_consume(
    topic_name: str | None,
    topic_option: str | None,
    num_records: int | None,
    timeout_ms: int,
    fetch_size: int,
    bootstrap_server: str,
    request_timeout_ms: int,
) -> None:
    """Read all partitions from the beginning."""
    name = chosen_topic(topic_name, topic_option)
    read = size_bytes = 0
    with connect(bootstrap_server, request_timeout_ms) as cluster:
        topic = cluster.topic(name)
        ends = starting_positions(cluster, topic, None, "latest")
        loop = FetchLoop(
            cluster,
            topic,
            starting_positions(cluster, topic, None, "earliest"),
            partition_max_bytes=fetch_size,
            max_headers=0,
        )
        began_s = seen_s = time.monotonic()
        while (
            time.monotonic() - seen_s < timeout_ms / 1000
            and (num_records is None or read < num_records)
            and (num_records is not None or any(loop.positions[index] < end for index, end in ends.items()))
        ):
            for rows in loop.poll():
                read += len(rows.records)
                size_bytes += rows.size_bytes
                seen_s = time.monotonic()
        elapsed_s = seen_s - began_s
    _show_rates(read, size_bytes, elapsed_s)


def records_of_a_batch(batch_size: int, record_size: int) -> int:
    """Returns how many records a batch of this size holds, with their own fields, but at least 1."""
    return max(1, (batch_size - BATCH_HEADER_BYTES) // (record_size + RECORD_OVERHEAD_BYTES))


def percentile(ordered: list[float], percent: float) -> float:
    """Returns the smallest value that at least `percent` of the values do not exceed."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def _show_rates(records: int, size_bytes: int, elapsed_s: float) -> None:
    seconds = max(elapsed_s, 1e-9)
    print_table(
        ("#records", "#seconds", "#records/s", "#MiB/s"),
        [(records, f"{elapsed_s:.3f}", f"{records / seconds:.0f}", f"{size_bytes / MIB / seconds:.2f}")],
        name="rates",
    )
