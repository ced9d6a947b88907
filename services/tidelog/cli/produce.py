"""`tidelog produce`: sends lines from standard input to a topic (kafka-console-producer)."""

from __future__ import annotations

import io
import select
import sys
import time
from typing import Final, cast

import click

from tidelog.cli.line_records import LineFormat, LineSplitter
from tidelog.cli.line_sender import LineSender
from tidelog.cli.output import add_facts, counted, note
from tidelog.cli.producer_options import ACKS, CODECS
from tidelog.cli.tool_command import (
    ToolCommand,
    ToolError,
    chosen_topic,
    cluster_options,
    connect,
    parse_pairs,
    topic_option,
)
from tidelog.client.cluster import Cluster, Topic
from tidelog.client.errors import ClientError
from tidelog.client.threads.topic_reader import batch_producer_of
from tidelog.model.errors import KafkaError
from tidelog.records.record import Record

CHUNK_BYTES: Final = 1 << 16
MAX_LINE_BYTES: Final = 64 * 1024 * 1024


@click.command(
    cls=ToolCommand,
    examples=(
        "echo hello | tidelog produce flights",
        "tidelog produce flights --parse-key --key-separator : < lines.txt",
    ),
)
@topic_option
@click.option("--parse-key", is_flag=True, help="Each line consists of key, separator and value.")
@click.option(
    "--key-separator",
    show_default="a tab",
    metavar="TEXT",
    help="Separator between key and value.",
)
@click.option("--parse-headers", is_flag=True, help="Each line begins with headers NAME:VALUE,... and a tab.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="Add this header to every record. Repeatable, also with the same name.",
)
@click.option("--null-marker", metavar="TEXT", help="Send null for a key or value that equals this text.")
@click.option(
    "--partition", type=click.IntRange(min=0), help="Send all records to this partition, whatever their keys."
)
@click.option(
    "--acks",
    type=click.Choice(ACKS),
    default="all",
    show_default=True,
    help="Replicas that must have a record before it is acknowledged.",
)
@click.option(
    "--compression-codec",
    "--compression",
    "codec",
    type=click.Choice(CODECS),
    default="none",
    show_default=True,
    help="Compression of the batches.",
)
@click.option(
    "--batch-size", type=click.IntRange(min=1), default=16384, show_default=True, help="Bytes of a batch."
)
@cluster_options
def command(
    topic_name: str | None,
    topic_option: str | None,
    parse_key: bool,
    key_separator: str | None,
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
    """Send each line of standard input as a record. Batches are sent when no more input is waiting."""
    name = chosen_topic(topic_name, topic_option)
    if key_separator == "":
        raise ToolError("--key-separator: expected at least one character")
    if key_separator is not None and not parse_key:
        raise click.UsageError("--key-separator requires --parse-key.")
    if key_separator is None:
        key_separator = "\t"
    constant = tuple((key, value.encode()) for key, value in parse_pairs("--header", headers))
    line_format = LineFormat(
        parse_key, key_separator, parse_headers, null_marker=null_marker, headers=constant
    )
    with connect(bootstrap_server, request_timeout_ms) as cluster:
        topic = _existing_or_created(cluster, name)
        if partition is not None and partition >= len(topic.partitions):
            raise ToolError(
                f"topic '{name}' has partitions 0 to {len(topic.partitions) - 1}, not {partition}"
            )
        with batch_producer_of(cluster, acks=acks, compression=codec, batch_bytes=batch_size) as producer:
            sender = LineSender(producer, name, partition)
            if sys.stdin.isatty():
                note(f"Each line becomes a record of topic {name}. Press Ctrl-D to finish.")
            try:
                _send_lines(sender, line_format)
            except (KeyboardInterrupt, KafkaError, ClientError):
                note(f"{counted(sender.sent_records, 'record')} sent to {name}; the others are unknown.")
                raise
    note(f"{counted(sender.sent_records, 'record')} sent to {name}.")
    add_facts(topic=name, records=sender.sent_records)


def _existing_or_created(cluster: Cluster, name: str) -> Topic:
    """Returns the topic, and notes if the broker has created it, because the name may be a typing error."""
    is_new = name not in cluster.topics([name])
    topic = cluster.topic(name, creates=True)
    if is_new:
        partitions = counted(len(topic.partitions), "partition")
        note(f"Topic {name} did not exist; the broker created it with {partitions}.")
    return topic


def _send_lines(sender: LineSender, line_format: LineFormat) -> None:
    """Sends standard input. Raises ToolError for the first line without a record, after all lines before it
    are stored.
    """
    # Unbuffered, so that select reports all waiting input.
    source = cast(io.RawIOBase, cast(io.BufferedReader, sys.stdin.buffer).raw)
    splitter = LineSplitter(MAX_LINE_BYTES)
    line_number = 0
    while True:
        try:
            chunk = source.read(CHUNK_BYTES)
        except KeyboardInterrupt:
            chunk = b""
        now_ms = time.time_ns() // 1_000_000
        records: list[Record] = []
        refusal: ToolError | None = None
        try:
            for line in splitter.lines(chunk):
                line_number += 1
                records.append(line_format.record_of(line, now_ms, line_number))
        except ToolError as error:
            refusal = error
        if records:
            sender.send(records, now_ms)
        if refusal is not None:
            sender.flush()
            sent = counted(sender.sent_records, "record", "was", "were")
            raise ToolError(f"{refusal}. {sent} sent, from the lines before it") from None
        if not chunk:
            sender.flush()
            return
        if not select.select([source], [], [], 0)[0]:
            sender.flush()
