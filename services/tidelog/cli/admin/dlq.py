"""`tidelog dlq`: shows the dead letters of share groups, and sends them back (KIP-1191)."""

from __future__ import annotations

import time

import click

from tidelog.cli.output import Shown, add_facts, counted, note, print_table, say
from tidelog.cli.tool_command import ToolCommand, ToolError, cluster_options, connect
from tidelog.client.admin.dead_letters import (
    REDRIVE_GROUP_PREFIX,
    TOPIC_SETTING,
    MissingRecordError,
    Redrive,
    Summary,
    dead_letter_topic,
    dead_letter_topics,
    summarize,
)
from tidelog.client.cluster import Cluster
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.process.command_help import SuggestingGroup

_COLUMNS = ("group", "topic", "reason", "#records", "#redriven", "#oldest|oldest_age_ms")
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


@click.group(cls=SuggestingGroup)
def command() -> None:
    """Show the dead letters of share groups, and send them back."""


@command.command(
    "list", cls=ToolCommand, examples=("tidelog dlq list", "tidelog dlq list --topic orders-dlq")
)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Read this topic. Repeatable.")
@cluster_options
def list_them(topics: tuple[str, ...]) -> None:
    """Count dead letters by group and reason.

    It reads the dead letter topics of all groups completely. "redriven" are the dead letters that were sent
    back, and "oldest" is the age of the oldest other one.
    """
    now_ms = time.time_ns() // 1_000_000
    rows: list[tuple[object, ...]] = []
    with connect() as cluster:
        of_groups = {} if topics else dead_letter_topics(cluster)
        seen: set[str] = set()
        for topic in sorted({*topics, *of_groups.values()}):
            for summary in _summaries(cluster, topic, is_asked_for=topic in topics):
                seen.add(summary.group)
                rows.append(_row(summary, now_ms))
        rows += [(group, topic, None, 0, 0, None) for group, topic in of_groups.items() if group not in seen]
    print_table(_COLUMNS, sorted(rows, key=lambda row: (str(row[0]), str(row[1]))))


def _summaries(cluster: Cluster, topic: str, *, is_asked_for: bool) -> list[Summary]:
    """Returns nothing for the topic of a group that does not exist yet."""
    try:
        return summarize(cluster, topic)
    except KafkaError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not is_asked_for:
            return []
        raise


def _row(summary: Summary, now_ms: int) -> tuple[object, ...]:
    oldest = None
    if summary.oldest_ms is not None:
        age_ms = max(now_ms - summary.oldest_ms, 0)
        oldest = Shown(age(age_ms), age_ms)
    return summary.group, summary.topic, summary.reason, summary.records, summary.redriven, oldest


def age(age_ms: int) -> str:
    """Returns an age in the largest unit of which it has at least two, or in seconds."""
    seconds = max(age_ms, 0) // 1_000
    for length_s, unit in _UNITS:
        if seconds >= 2 * length_s:
            return f"{seconds // length_s} {unit}"
    return f"{seconds} s"


@command.command(
    "redrive",
    cls=ToolCommand,
    examples=("tidelog dlq redrive workers --dry-run", "tidelog dlq redrive workers --limit 100"),
)
@click.argument("group", metavar="GROUP")
@click.option("--topic", metavar="TOPIC", help="The dead letter topic. The default is that of the group.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Send at most N records.")
@click.option("--dry-run", is_flag=True, help="Show what would be sent, and send nothing.")
@click.option(
    "--skip-missing", is_flag=True, help="Leave out dead letters without a copy whose records are deleted."
)
@cluster_options
def redrive(group: str, topic: str | None, limit: int | None, dry_run: bool, skip_missing: bool) -> None:
    """Send the dead letters of a share group back to the partitions from which they came.

    Every record is sent at least once, in order, with its key, value and headers. The consumer group
    tidelog-redrive.GROUP keeps how far a redrive came, so the next one continues there. All groups that read
    the partition get the records again.
    """
    with connect() as cluster:
        name = topic or dead_letter_topic(cluster, group)
        if name is None:
            raise ToolError(f"group '{group}' has no dead letter topic; set {TOPIC_SETTING}, or give --topic")
        work = Redrive(cluster, group, name, limit=limit, is_dry=dry_run, skips_missing=skip_missing)
        try:
            work.run(time.time_ns() // 1_000_000)
        except MissingRecordError as error:
            raise ToolError(f"{error}; --skip-missing leaves such dead letters out") from None
    print_table(
        ("topic", "#partition", "#records"),
        [(*source, count) for source, count in sorted(work.sent.items())],
        name="partitions",
    )
    add_facts(group=group, is_dry_run=dry_run, missing=len(work.missing), records=sum(work.sent.values()))
    total = sum(work.sent.values())
    if work.missing:
        note(f"{counted(len(work.missing), 'dead letter', 'has', 'have')} no copy: the records are gone.")
    if dry_run:
        note(f"{counted(total, 'record')} would be sent back. Nothing was sent.")
    else:
        say(f"{counted(total, 'record')} sent back; {REDRIVE_GROUP_PREFIX}{group} has the progress.")
