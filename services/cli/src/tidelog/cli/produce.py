"""`tidelog produce`: lines from standard input to a topic (kafka-console-producer)."""

from __future__ import annotations

import io
import select
import sys
import time
from typing import Final, cast

import click
from tidelog.cli.line_records import LineFormat, LineSplitter
from tidelog.cli.output import note
from tidelog.cli.record_batcher import RecordBatcher
from tidelog.cli.tool_command import (
    ToolCommand,
    ToolError,
    chosen_topic,
    cluster_options,
    connect,
    parse_assignments,
    topic_option,
)
from tidelog.client.batch_sender import ACKS_ALL, ACKS_LEADER, ACKS_NONE, BatchSender
from tidelog.client.cluster import Cluster, Topic
from tidelog.records.compression import Compression

CHUNK_BYTES: Final = 1 << 16
MAX_LINE_BYTES: Final = 64 * 1024 * 1024
_ACKS: Final = {"all": ACKS_ALL, "-1": ACKS_ALL, "1": ACKS_LEADER, "0": ACKS_NONE}
_CODECS: Final = [codec.name.lower() for codec in Compression]


@click.command(cls=ToolCommand)
@topic_option
@click.option("--parse-key", is_flag=True, help="Lines are KEY SEPARATOR VALUE.")
@click.option(
    "--key-separator", default="\t", show_default="a tab", metavar="TEXT", help="Between key and value."
)
@click.option("--parse-headers", is_flag=True, help="Lines begin with NAME:VALUE,... and a tab.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of every record; repeatable."
)
@click.option("--null-marker", metavar="TEXT", help="A key or value that is this text is null (a tombstone).")
@click.option("--partition", type=click.IntRange(min=0), help="All to this partition, whatever the key.")
@click.option(
    "--acks", type=click.Choice(list(_ACKS)), default="all", show_default=True, help="Who must have it."
)
@click.option(
    "--compression-codec",
    "--compression",
    "codec",
    type=click.Choice(_CODECS),
    default="none",
    show_default=True,
    help="Of the batches.",
)
@click.option(
    "--batch-size", type=click.IntRange(min=1), default=16384, show_default=True, help="Bytes of a batch."
)
@cluster_options
def command(
    topic_name: str | None,
    topic_option: str | None,
    parse_key: bool,
    key_separator: str,
    parse_headers: bool,
    headers: tuple[str, ...],
    null_marker: str | None,
    partition: int | None,
    acks: str,
    codec: str,
    batch_size: int,
    bootstrap_server: str,
    request_timeout_ms: int,
) -> None:
    """Each line of standard input becomes a record. They are sent when no more input is waiting."""
    name = chosen_topic(topic_name, topic_option)
    if not key_separator:
        raise ToolError("--key-separator: at least one character expected")
    constant = tuple((key, value.encode()) for key, value in parse_assignments("--header", headers).items())
    line_format = LineFormat(
        parse_key, key_separator, parse_headers, null_marker=null_marker, headers=constant
    )
    with connect(bootstrap_server, request_timeout_ms) as cluster:
        topic = _existing_or_created(cluster, name)
        if partition is not None and partition >= len(topic.partitions):
            raise ToolError(
                f"topic '{name}' has partitions 0 to {len(topic.partitions) - 1}, not {partition}"
            )
        sender = BatchSender(cluster, topic, acks=_ACKS[acks], compression=Compression[codec.upper()])
        batcher = RecordBatcher(sender, batch_bytes=batch_size, partition=partition)
        if sys.stdin.isatty():
            note(f"Each line becomes a record of {name}; Ctrl-D ends.")
        _send_lines(batcher, line_format)
    note(f"{batcher.sent_records} records sent to {name}.")


def _existing_or_created(cluster: Cluster, name: str) -> Topic:
    """The broker may create a missing topic (auto.create.topics.enable); a typo shall not go unseen."""
    is_new = name not in cluster.topics([name])
    topic = cluster.topic(name, creates=True)
    if is_new:
        note(f"Topic {name} did not exist; the broker created it with {len(topic.partitions)} partitions.")
    return topic


def _send_lines(batcher: RecordBatcher, line_format: LineFormat) -> None:
    # Unbuffered, so that select tells the truth.
    source = cast(io.RawIOBase, cast(io.BufferedReader, sys.stdin.buffer).raw)
    splitter = LineSplitter(MAX_LINE_BYTES)
    line_number = 0
    while True:
        try:
            chunk = source.read(CHUNK_BYTES)
        except KeyboardInterrupt:
            chunk = b""
        now_ms = time.time_ns() // 1_000_000
        for line in splitter.lines(chunk):
            line_number += 1
            batcher.add(line_format.record_of(line, now_ms, line_number))
        if not chunk:
            batcher.flush()
            return
        if not select.select([source], [], [], 0)[0]:
            batcher.flush()
