"""`tidelog delete-records`: deletes the oldest records of partitions (kafka-delete-records)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from tidelog.cli.confirmation import asks_first, confirm
from tidelog.cli.group_offsets import parse_datetime
from tidelog.cli.output import counted, print_table
from tidelog.cli.partition_file import parse_partition_rows, read_text_file
from tidelog.cli.protocol_int import ProtocolInt
from tidelog.cli.tool_command import (
    ToolCommand,
    ToolError,
    chosen_topic,
    cluster_options,
    connect,
    topic_option,
)
from tidelog.client.admin.topics import delete_records, list_offsets, places_by_leader
from tidelog.client.cluster import Cluster
from tidelog.model.errors import ErrorCode, meaning_of
from tidelog.model.protocol_values import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    UP_TO_HIGH_WATERMARK,
)
from tidelog.model.topics import TopicPartition
from tidelog.settings.setting import INT_MAX, LONG_MAX

_REASONS: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: "the offset is higher than the latest one",
    ErrorCode.POLICY_VIOLATION: "the topic's cleanup.policy is only compact",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "the topic is internal",
    ErrorCode.REQUEST_TIMED_OUT: "a replica has not deleted the records in time; it will do so later",
}


@click.command(
    cls=ToolCommand,
    examples=(
        "tidelog delete-records flights --partition 0 --offset 5000",
        "tidelog delete-records flights --to-datetime 2026-01-31T08:00:00.000",
        "tidelog delete-records --offset-json-file offsets.json",
    ),
)
@topic_option
@click.option(
    "--partition", type=ProtocolInt(INT_MAX, min=0), help="The partition. --to-datetime means all without it."
)
@click.option(
    "--offset",
    type=ProtocolInt(LONG_MAX, min=UP_TO_HIGH_WATERMARK),
    help="Delete the records before this offset; -1 deletes all.",
)
@click.option(
    "--to-datetime",
    metavar="TIME",
    help="Delete the records before the first one at or after a time: YYYY-MM-DDThh:mm:ss.sss, in UTC unless "
    "it ends with a time zone.",
)
@click.option(
    "--offset-json-file",
    "file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help='Several partitions: {"partitions": [{"topic": "t", "partition": 0, "offset": 9}], "version": 1}.',
)
@asks_first
@cluster_options
def command(
    topic_name: str | None,
    topic_option: str | None,
    partition: int | None,
    offset: int | None,
    to_datetime: str | None,
    file: Path | None,
    bootstrap_server: str,
    request_timeout_ms: int,
) -> None:
    """Delete all records before an offset or a time. They can't be restored.

    On a terminal, it asks first.
    """
    offsets: dict[TopicPartition, int] = {}
    if file is not None:
        if topic_name or topic_option or any(each is not None for each in (partition, offset, to_datetime)):
            raise click.UsageError(
                "Give either --offset-json-file, or a topic and --to-datetime, or a topic, --partition and "
                "--offset."
            )
        source = f"--offset-json-file {file}"
        rows = parse_partition_rows(read_text_file("--offset-json-file", file), source, ("offset",))
        offsets = {place: row["offset"] for place, row in rows.items()}
    else:
        name = chosen_topic(topic_name, topic_option)
        if (offset is None) == (to_datetime is None) or (partition is None and offset is not None):
            raise click.UsageError("Give either --partition and --offset, or --to-datetime.")
        if partition is not None and offset is not None:
            offsets = {TopicPartition(name, partition): offset}
    time_ms = None if to_datetime is None else parse_datetime(to_datetime)
    with connect(bootstrap_server, request_timeout_ms) as cluster:
        if time_ms is not None:
            offsets = _offsets_at(cluster, name, partition, time_ms)
        confirm(_question(offsets))
        results = sorted(delete_records(cluster, offsets).items())
    print_table(
        ("topic", "#partition", "#earliest", "error"),
        [
            (
                *place,
                None if result.error else result.low_watermark,
                _REASONS.get(result.error, meaning_of(result.error)) if result.error else None,
            )
            for place, result in results
        ],
    )
    failed = sum(1 for _, result in results if result.error is not ErrorCode.NONE)
    if failed:
        raise ToolError(f"the records of {counted(failed, 'partition')} were not deleted")


def _question(offsets: Mapping[TopicPartition, int]) -> str:
    if len(offsets) != 1:
        return f"Delete the records of {counted(len(offsets), 'partition')} before these places?"
    ((place, offset),) = offsets.items()
    if offset == UP_TO_HIGH_WATERMARK:
        return f"Delete all records of {place}?"
    return f"Delete the records of {place} before offset {offset}?"


def _offsets_at(
    cluster: Cluster, name: str, partition: int | None, time_ms: int
) -> dict[TopicPartition, int]:
    """Returns the offset of the first record at or after a time, by partition. Where there is none, it is the
    end, as it was before the search, so that no newer record is deleted. Raises KafkaError, ClientError, and
    ToolError if no record of a partition has a known time: they are not older than any time.
    """
    if partition is not None:
        places_by_leader(cluster, [TopicPartition(name, partition)])  # raises KafkaError if it does not exist
    topic = cluster.topic(name)
    wanted = None if partition is None else [partition]
    ends = list_offsets(cluster, topic, LATEST_TIMESTAMP, partitions=wanted)
    found = list_offsets(cluster, topic, time_ms, partitions=wanted)
    older = [index for index in ends if found[index].offset < 0]
    if older:
        newest = list_offsets(cluster, topic, MAX_TIMESTAMP, partitions=older)
        starts = list_offsets(cluster, topic, EARLIEST_TIMESTAMP, partitions=older)
        timeless = [i for i in older if newest[i].timestamp < 0 and starts[i].offset < ends[i].offset]
        if timeless:
            raise ToolError(
                f"the records of {name}-{timeless[0]} have no known time, so it is unknown which of them are "
                "older; nothing was deleted. Give --partition and --offset instead."
            )
    return {
        TopicPartition(name, index): end.offset if found[index].offset < 0 else found[index].offset
        for index, end in ends.items()
    }
