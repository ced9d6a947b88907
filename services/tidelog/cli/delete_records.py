"""`tidelog delete-records`: deletes the oldest records of partitions (kafka-delete-records)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

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
from tidelog.client.admin import UP_TO_HIGH_WATERMARK, delete_records
from tidelog.model.error_meanings import meaning_of
from tidelog.model.errors import ErrorCode
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
        "tidelog delete-records --offset-json-file offsets.json",
    ),
)
@topic_option
@click.option("--partition", type=ProtocolInt(INT_MAX, min=0), help="The partition.")
@click.option(
    "--offset",
    type=ProtocolInt(LONG_MAX, min=UP_TO_HIGH_WATERMARK),
    help="Delete the records before this offset; -1 deletes all.",
)
@click.option(
    "--offset-json-file",
    "file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help='Several partitions: {"partitions": [{"topic": "t", "partition": 0, "offset": 9}], "version": 1}.',
)
@cluster_options
def command(
    topic_name: str | None,
    topic_option: str | None,
    partition: int | None,
    offset: int | None,
    file: Path | None,
    bootstrap_server: str,
    request_timeout_ms: int,
) -> None:
    """Delete all records before an offset. They can't be restored."""
    if file is not None:
        if topic_name or topic_option or partition is not None or offset is not None:
            raise click.UsageError("Give either --offset-json-file, or a topic, --partition and --offset.")
        source = f"--offset-json-file {file}"
        rows = parse_partition_rows(read_text_file("--offset-json-file", file), source, ("offset",))
        offsets: dict[TopicPartition, int] = {place: row["offset"] for place, row in rows.items()}
    else:
        name = chosen_topic(topic_name, topic_option)
        if partition is None or offset is None:
            raise click.UsageError("Give --partition and --offset.")
        offsets = {TopicPartition(name, partition): offset}
    with connect(bootstrap_server, request_timeout_ms) as cluster:
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
