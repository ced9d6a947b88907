"""`tidelog consume`: prints a topic's records to standard output (kafka-console-consumer, kcat).

With --group it reads as a member of a group, and commits what it has printed.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, BinaryIO, Final

import click

from tidelog.cli.command_line import noted_interruption
from tidelog.cli.data.record_formats import (
    ColumnFormat,
    JsonFormat,
    PrintedRecord,
    RecordFormatter,
    TemplateFormat,
)
from tidelog.cli.output import counted, note
from tidelog.cli.tool_command import (
    ToolCommand,
    ToolError,
    chosen_topic,
    cluster_options,
    connect,
    parse_assignments,
    topic_option,
)
from tidelog.client.admin.offsets import list_offsets
from tidelog.client.admin.topics import ConfigResource, describe_configs
from tidelog.client.cluster import Cluster, Topic
from tidelog.client.core.connection_settings import BOOTSTRAP, SECURITY_PREFIXES, Properties, SettingsError
from tidelog.client.core.consuming.consumer_batch import ConsumerBatch
from tidelog.client.core.settings import parse_consumer_settings
from tidelog.client.errors import StaleMemberError
from tidelog.client.threads.consumer import Consumer
from tidelog.client.threads.topic_reader import POLL_S, TopicReader, consumer_of, reading, sound_records
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ConfigResourceType
from tidelog.model.topics import TopicPartition

MAX_PRINTED_HEADERS: Final = 1_000
"""The number of headers of a record that are printed."""
_STARTS: Final[Mapping[str, int]] = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}
_ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")
_OPTIONS: Final[Mapping[str, str]] = {
    BOOTSTRAP: "--bootstrap-server",
    "group.id": "--group",
    "auto.offset.reset": "--from-beginning",
    "isolation.level": "--isolation-level",
    "request.timeout.ms": "--request-timeout-ms",
}
"""The options that take the place of consumer properties."""
_FORMAT_PROPERTIES: Final[Mapping[str, str]] = {
    "print.timestamp": "prints_timestamp",
    "print.partition": "prints_partition",
    "print.offset": "prints_offset",
    "print.headers": "prints_headers",
    "print.key": "prints_key",
    "print.value": "prints_value",
    "key.separator": "key_separator",
    "line.separator": "line_separator",
    "null.literal": "null_literal",
}
CHUNK_RECORDS: Final = 1_000
"""The most records that are formatted before they are written."""


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """The parts of a record to print, and their separators. The order is that of Kafka's formatter."""

    prints_timestamp: bool = False
    prints_partition: bool = False
    prints_offset: bool = False
    prints_headers: bool = False
    prints_key: bool = False
    prints_value: bool = True
    key_separator: str = "\t"
    line_separator: str = "\n"
    null_literal: str = "null"
    timestamp_type: str = "CreateTime"

    def line_of(self, record: PrintedRecord, partition: int) -> bytes:
        null = self.null_literal.encode()
        parts: list[bytes] = []
        if self.prints_timestamp:
            text = "NO_TIMESTAMP" if record.timestamp < 0 else f"{self.timestamp_type}:{record.timestamp}"
            parts.append(text.encode())
        if self.prints_partition:
            parts.append(f"Partition:{partition}".encode())
        if self.prints_offset:
            parts.append(f"Offset:{record.offset}".encode())
        if self.prints_headers:
            headers = b",".join(
                name.encode() + b":" + (null if value is None else value) for name, value in record.headers
            )
            if record.omitted_headers:
                headers += b",(%d more headers)" % record.omitted_headers
            parts.append(headers or b"NO_HEADERS")
        if self.prints_key:
            parts.append(null if record.key is None else record.key)
        if self.prints_value:
            parts.append(null if record.value is None else record.value)
        return self.key_separator.encode().join(parts) + self.line_separator.encode()


def with_properties(given: RecordFormat, properties: tuple[str, ...]) -> RecordFormat:
    """Applies properties of Kafka's tool, such as `print.key=true`. Raises ToolError."""
    for text in properties:
        name, equals, value = text.partition("=")
        field = _FORMAT_PROPERTIES.get(name)
        if not equals or field is None:
            raise ToolError(
                f"--property {text}: expected one of {', '.join(_FORMAT_PROPERTIES)}, as in print.key=true"
            )
        if name.startswith("print."):
            if value not in ("true", "false"):
                raise ToolError(f"--property {text}: expected true or false")
            change: dict[str, Any] = {field: value == "true"}  # of the field's type
        else:
            change = {field: value}
        given = replace(given, **change)
    return given


@click.command(
    cls=ToolCommand,
    prints_data=False,
    examples=(
        "tidelog consume flights --from-beginning --max-messages 10",
        "tidelog consume flights --partition 0 --offset -5 -f '%p %o %k %v\\n'",
        "tidelog consume flights --group billing --from-beginning --format json",
        "tidelog consume flights --group billing --consumer-property group.protocol=classic",
    ),
)
@topic_option
@click.option("--from-beginning", is_flag=True, help="Start at the first record instead of the end.")
@click.option("--partition", type=click.IntRange(min=0), help="Read only this partition.")
@click.option(
    "--offset",
    metavar="OFFSET",
    help="Start at earliest, latest, an offset, or -N for N records before the end (with --partition).",
)
@click.option("--max-messages", type=click.IntRange(min=1), help="Stop after this number of records.")
@click.option("--timeout-ms", type=click.IntRange(min=1), help="Stop when no record arrives for this time.")
@click.option(
    "--isolation-level", type=click.Choice(_ISOLATION_LEVELS), default="read_uncommitted", show_default=True
)
@click.option(
    "--group",
    metavar="GROUP",
    help="Read as a member of this group, from its committed offsets, and commit what was printed. The "
    "protocol is that of KIP-848, or with --consumer-property group.protocol=classic the older one.",
)
@click.option(
    "--consumer-property",
    "--command-property",
    "consumer_properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the consumer by Kafka's name, such as max.partition.fetch.bytes=65536. Repeatable.",
)
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["json", "plain", "table"]),
    default="plain",
    show_default=True,
    help="json prints an object in each line, table aligned columns.",
)
@click.option(
    "-f",
    "template",
    metavar="TEMPLATE",
    help="Print each record by a template as in kcat: %t topic, %p partition, %o offset, %k key, %v value, "
    "%h headers, %T timestamp, \\n the end of a line.",
)
@click.option("--print-key", "prints_key", is_flag=True)
@click.option("--print-offset", "prints_offset", is_flag=True)
@click.option("--print-partition", "prints_partition", is_flag=True)
@click.option("--print-timestamp", "prints_timestamp", is_flag=True)
@click.option("--print-headers", "prints_headers", is_flag=True)
@click.option(
    "--key-separator",
    default="\t",
    show_default="a tab",
    metavar="TEXT",
    help="Separator between the parts of a record.",
)
@click.option(
    "--property",
    "--formatter-property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="A formatter property of Kafka's tool, such as print.timestamp=true. Repeatable.",
)
@cluster_options
def command(
    from_beginning: bool,
    partition: int | None,
    offset: str | None,
    max_messages: int | None,
    timeout_ms: int | None,
    isolation_level: str,
    key_separator: str,
    properties: tuple[str, ...],
    group: str | None,
    consumer_properties: tuple[str, ...],
    output_format: str,
    template: str | None,
    **prints: Any,  # the flags of RecordFormat
) -> None:
    """Print a topic's records as they arrive. Press Ctrl-C to stop."""
    name = chosen_topic()
    record_format = with_properties(RecordFormat(key_separator=key_separator, **prints), properties)
    if template is not None and output_format != "plain":
        raise click.UsageError("Give either -f or --format.")
    if group is not None and (partition is not None or offset):
        raise click.UsageError("--group reads from committed offsets: give neither --partition nor --offset.")
    start = _start(from_beginning, offset, partition)
    settings: Properties = {
        "isolation.level": isolation_level,
        "allow.auto.create.topics": False,  # a topic that is deleted meanwhile stays deleted
        **_given_settings(consumer_properties),
    }
    if group is not None:
        reset = "earliest" if from_beginning else "latest"
        settings = {**settings, "group.id": group, "auto.offset.reset": reset}
    commits = _commits(settings)
    formatter: RecordFormatter = record_format
    if template is not None:
        formatter = TemplateFormat(template, name, null=_null_of(record_format, properties))
    elif output_format == "json":
        formatter = JsonFormat(name)
    elif output_format == "table":
        formatter = ColumnFormat()
    shows_headers = record_format.prints_headers or output_format == "json" or "%h" in (template or "")
    max_headers = MAX_PRINTED_HEADERS if shows_headers else 0
    with connect() as cluster:
        topic = cluster.topic(name)
        if formatter is record_format and record_format.prints_timestamp:
            formatter = replace(record_format, timestamp_type=_timestamp_type(cluster, name))
        printer = RecordPrinter(
            formatter, sys.stdout.buffer, max_messages=max_messages, max_headers=max_headers
        )
        if group is not None:
            print_with_group(cluster, name, settings, printer, timeout_ms, commits=commits)
        else:
            positions = starting_positions(cluster, topic, partition, start)
            with (
                contextlib.suppress(KeyboardInterrupt),
                reading(cluster, name, positions, settings) as reader,
            ):
                print_until_done(reader, printer, timeout_ms)
    note(f"{counted(printer.printed, 'record')} read from {name}.")


def _given_settings(properties: tuple[str, ...]) -> dict[str, str]:
    """Returns the settings of --consumer-property. Raises ToolError for those that an option sets."""
    given = parse_assignments("--consumer-property", properties)
    for name in given:
        option = "--command-config" if name.startswith(SECURITY_PREFIXES) else _OPTIONS.get(name)
        if option is not None:
            raise ToolError(f"--consumer-property {name}: use {option} instead")
    return given


def _commits(settings: Properties) -> bool:
    """Returns whether a member commits. Raises ToolError if a setting is unknown or not valid."""
    try:
        return parse_consumer_settings(settings).enable_auto_commit
    except SettingsError as error:
        raise ToolError(f"--consumer-property: {error}") from None


def _start(from_beginning: bool, offset: str | None, partition: int | None) -> str:
    """Returns the chosen start. Raises click.UsageError if the options contradict each other."""
    if from_beginning and offset:
        raise click.UsageError("Give either --from-beginning or --offset.")
    start = "earliest" if from_beginning else offset or "latest"
    if start not in _STARTS and partition is None:
        raise click.UsageError(
            "--offset OFFSET requires --partition, because each partition has its own offsets."
        )
    return start


def _null_of(record_format: RecordFormat, properties: tuple[str, ...]) -> bytes:
    """Returns what a template prints for null: as in kcat nothing, unless null.literal was given."""
    is_given = any(text.startswith("null.literal=") for text in properties)
    return record_format.null_literal.encode() if is_given else b""


def _timestamp_type(cluster: Cluster, topic: str) -> str:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    (entry,) = describe_configs(cluster, resource, ["message.timestamp.type"])
    return entry.value or "CreateTime"


def starting_positions(cluster: Cluster, topic: Topic, partition: int | None, start: str) -> dict[int, int]:
    """Returns the first offset to read of each partition. Raises ToolError, KafkaError, ClientError."""
    if partition is not None and partition >= len(topic.partitions):
        raise ToolError(
            f"topic '{topic.name}' has partitions 0 to {len(topic.partitions) - 1}, not {partition}"
        )
    wanted = None if partition is None else [partition]
    if start in _STARTS:
        found = list_offsets(cluster, topic, _STARTS[start], partitions=wanted)
        return {index: at.offset for index, at in found.items()}
    try:
        number = int(start)
    except ValueError as error:
        raise ToolError(f"--offset {start}: expected earliest, latest or a number") from error
    assert partition is not None
    end = list_offsets(cluster, topic, LATEST_TIMESTAMP, partitions=wanted)[partition].offset
    beginning = list_offsets(cluster, topic, EARLIEST_TIMESTAMP, partitions=wanted)[partition].offset
    if number < 0:
        return {partition: max(beginning, end + number)}
    if not beginning <= number <= end:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"topic '{topic.name}' partition {partition} has no offset {number}",
        )
    return {partition: number}


class RecordPrinter:
    """Prints up to `max_messages` records, None for no limit, with up to `max_headers` headers each."""

    def __init__(
        self,
        record_format: RecordFormatter,
        output: BinaryIO,
        *,
        max_messages: int | None = None,
        max_headers: int | None = None,
    ) -> None:
        self._format = record_format
        self._output = output
        if isinstance(record_format, ColumnFormat):
            output.write(ColumnFormat.HEADING)
        self._max_messages = max_messages
        self._max_headers = max_headers
        self.printed = 0
        self.unfinished: dict[TopicPartition, int] = {}
        """The offset after the printed records of a batch that was not printed completely."""

    @property
    def is_done(self) -> bool:
        return self.printed == self._max_messages

    def print_batch(self, batch: ConsumerBatch[bytes, bytes]) -> None:
        """Raises CorruptFetchError for records that their producer damaged."""
        left = None if self._max_messages is None else self._max_messages - self.printed
        records = islice(sound_records(batch, max_headers=self._max_headers), left)
        line_of, partition = self._format.line_of, batch.partition
        self.unfinished = {batch.place: batch.start_offset}
        before = self.printed
        while chunk := list(islice(records, CHUNK_RECORDS)):
            self._output.write(b"".join([line_of(record, partition) for record in chunk]))
            self._output.flush()
            self.printed += len(chunk)
            self.unfinished[batch.place] = chunk[-1].offset + 1
        if self.printed - before == len(batch):
            self.unfinished = {}


def print_until_done(
    reader: TopicReader,
    printer: RecordPrinter,
    idle_ms: int | None,
    *,
    is_joining: Callable[[], bool] = lambda: False,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> None:
    """Prints records until the printer is done, or until none arrives for `idle_ms`, or if interrupted.

    The time of a rebalance does not count. Raises KafkaError, ClientError.
    """
    wait_s = POLL_S if idle_ms is None else min(POLL_S, idle_ms / 1000)
    last_seen_s = time.monotonic()
    while not printer.is_done and not is_interrupted():
        batch = reader.poll(wait_s)
        if batch is not None:
            printer.print_batch(batch)
        if batch is not None or is_joining():
            last_seen_s = time.monotonic()
        elif idle_ms is not None and (time.monotonic() - last_seen_s) * 1000 >= idle_ms:
            return


def print_with_group(
    cluster: Cluster,
    topic: str,
    settings: Properties,
    printer: RecordPrinter,
    idle_ms: int | None,
    *,
    commits: bool,
) -> None:
    """Prints the records of the partitions that the group gives to this member.

    With `commits`, it commits the positions of all partitions at the end, also after Ctrl-C and SIGTERM, as
    Kafka's tool does. Records that could not be printed are not committed. Raises KafkaError, ClientError.
    """
    with consumer_of(cluster, settings) as consumer, noted_interruption() as interruption:
        try:
            consumer.subscribe([topic])
            print_until_done(
                TopicReader(consumer, cluster, topic),
                printer,
                idle_ms,
                is_joining=lambda: consumer.health().state == "joining",
                is_interrupted=interruption.is_set,
            )
        finally:
            try:
                if commits:
                    _commit(cluster, consumer, topic, printer)
            finally:
                consumer.close(commits=False)


def _commit(cluster: Cluster, consumer: Consumer[bytes, bytes], topic: str, printer: RecordPrinter) -> None:
    owned = set(consumer.assignment())
    positions = {**_positions(consumer), **printer.unfinished}
    offsets = {place: offset for place, offset in positions.items() if place in owned}
    try:
        if topic in cluster.topics([topic]):
            consumer.commit(offsets)
        else:  # a commit would wait for a topic of this name
            note(f"Topic {topic} was deleted, so no offsets were committed.")
    except KeyboardInterrupt:
        places = ", ".join(map(str, sorted(offsets)))
        printed = f"{counted(printer.printed, 'record', 'was', 'were')} printed"
        note(f"{printed}, but the offsets of these partitions were not committed: {places}.")
        raise


def _positions(consumer: Consumer[bytes, bytes]) -> dict[TopicPartition, int]:
    try:
        return consumer.positions()
    except StaleMemberError:  # the output was blocked for long, so other members have the partitions
        return {}
