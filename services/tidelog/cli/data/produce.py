"""`tidelog produce`: sends lines from standard input to a topic (kafka-console-producer).

A line is `[headers TAB] [key TAB] value`, in the format of Kafka's console producer.
"""

from __future__ import annotations

import io
import select
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

import click

from tidelog.cli.output import add_facts, counted, note
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
from tidelog.client.shell.producing.delivery import BatchDelivery
from tidelog.client.threads.producer import Producer
from tidelog.client.threads.topic_reader import batch_producer_of
from tidelog.model.errors import KafkaError
from tidelog.records.compression import Compression
from tidelog.records.record import Record
from tidelog.records.record_writer import Header

CHUNK_BYTES: Final = 1 << 16
MAX_LINE_BYTES: Final = 64 * 1024 * 1024
ACKS: Final = ("all", "-1", "1", "0")
CODECS: Final = tuple(codec.name.lower() for codec in Compression)


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
    "--key-separator", show_default="a tab", metavar="TEXT", help="Separator between key and value."
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
    parse_key: bool,
    key_separator: str | None,
    parse_headers: bool,
    headers: tuple[str, ...],
    null_marker: str | None,
    partition: int | None,
    acks: str,
    codec: str,
    batch_size: int,
) -> None:
    """Send each line of standard input as a record. Batches are sent when no more input is waiting."""
    name = chosen_topic()
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
    with connect() as cluster:
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


@dataclass(frozen=True, slots=True)
class LineFormat:
    """The format of lines.

    A key or value that equals `null_marker` is null. Every record gets `headers`.
    """

    parses_key: bool = False
    key_separator: str = "\t"
    parses_headers: bool = False
    headers_delimiter: str = "\t"
    headers_separator: str = ","
    headers_key_separator: str = ":"
    null_marker: str | None = None
    headers: tuple[Header, ...] = ()

    def record_of(self, line: bytes, timestamp_ms: int, line_number: int) -> Record:
        """Converts one line. Raises ToolError that names the line and the missing part."""
        rest = line
        headers = self.headers
        if self.parses_headers:
            text, rest = self._split(rest, self.headers_delimiter, "headers", line_number)
            headers += self._headers_of(text, line_number)
        key: bytes | None = None
        if self.parses_key:
            key, rest = self._split(rest, self.key_separator, "key", line_number)
        return Record(0, timestamp_ms, self._or_null(key), self._or_null(rest), headers)

    def _split(self, text: bytes, separator: str, part: str, line_number: int) -> tuple[bytes, bytes]:
        before, found, after = text.partition(separator.encode())
        if not found:
            raise ToolError(f"line {line_number} has no {part}: expected {separator!r} after the {part}")
        return before, after

    def _or_null(self, content: bytes | None) -> bytes | None:
        if content is None or (self.null_marker is not None and content == self.null_marker.encode()):
            return None
        return content

    def _headers_of(self, text: bytes, line_number: int) -> tuple[Header, ...]:
        marked = self._or_null(text)
        if not marked:
            return ()
        headers: list[Header] = []
        for part in marked.split(self.headers_separator.encode()):
            name, value = self._split(part, self.headers_key_separator, "header value", line_number)
            headers.append((name.decode(errors="replace"), self._or_null(value)))
        return tuple(headers)


class LineSplitter:
    """Splits chunks of input into lines without their ends (`\\n` or `\\r\\n`)."""

    def __init__(self, max_line_bytes: int) -> None:
        self._parts: list[bytes] = []
        """The parts of a line whose end is missing. They are joined once, so a long line costs no more."""
        self._size_bytes = 0
        self._count = 0
        self._max_line_bytes = max_line_bytes

    def lines(self, chunk: bytes) -> list[bytes]:
        """Returns the lines that `chunk` completes; b"" ends the input.

        Raises ToolError if the line is too long that earlier chunks began.
        """
        if self._size_bytes > self._max_line_bytes:
            text = f"line {self._count + 1} is longer than {self._max_line_bytes} bytes"
            raise ToolError(f"{text}; the input must be text")
        if not chunk:
            last = self._take(b"")
            return [last] if last else []
        *whole, rest = chunk.split(b"\n")
        if whole:
            whole[0] = self._take(whole[0])
        self._parts.append(rest)
        self._size_bytes += len(rest)
        self._count += len(whole)
        return [line.removesuffix(b"\r") for line in whole]

    def _take(self, end: bytes) -> bytes:
        """Returns the line that `end` completes."""
        line = b"".join([*self._parts, end])
        self._parts, self._size_bytes = [], 0
        return line


class LineSender:
    """The records that were sent to a topic.

    The key selects the partition as in Kafka. Records without a key fill one partition's batch after another.
    """

    def __init__(self, producer: Producer[bytes, bytes], topic: str, partition: int | None = None) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._pending: deque[BatchDelivery] = deque()
        self.sent_records = 0

    def send(self, records: Sequence[Record], timestamp_ms: int) -> None:
        """Raises KafkaError for these records or for earlier ones."""
        has_keys = any(record.key is not None for record in records)
        has_headers = any(record.headers for record in records)
        delivery = self._producer.send_batch(
            self._topic,
            [record.value for record in records],
            keys=[record.key for record in records] if has_keys else None,
            headers=[record.headers for record in records] if has_headers else None,
            partition=self._partition,
            timestamp=timestamp_ms,
        )
        self._pending.append(delivery)
        while self._pending and self._pending[0].is_done:
            self._count(self._pending.popleft())

    def flush(self) -> None:
        """Waits until all records are acknowledged. Raises KafkaError."""
        while self._pending:
            delivery = self._pending.popleft()
            delivery.result()
            self._count(delivery)

    def _count(self, delivery: BatchDelivery) -> None:
        delivery.stored()  # raises the error of a record that was refused
        self.sent_records += len(delivery)
