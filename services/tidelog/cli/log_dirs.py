"""`tidelog log-dirs`: shows the sizes of log directories and of their replicas (kafka-log-dirs)."""

from __future__ import annotations

import click

from tidelog.cli.output import print_table
from tidelog.cli.rebalance import parse_ids
from tidelog.cli.tool_command import ToolCommand, ToolError, cluster_options, connect
from tidelog.client.admin.brokers import UNKNOWN_BYTES, LogDir, describe_log_dirs
from tidelog.client.cluster import topic_error_of
from tidelog.model.errors import ErrorCode, meaning_of


@click.command(
    cls=ToolCommand,
    is_watchable=True,
    examples=(
        "tidelog log-dirs",
        "tidelog log-dirs --describe --topic-list flights --broker-list 1,2",
    ),
)
@click.option("--broker-list", metavar="ID,...", help="Show only these brokers.")
@click.option("--topic-list", metavar="TOPIC,...", help="Show only replicas of these topics.")
@click.option("--describe", "shows_replicas", is_flag=True, help="Show each replica.")
@cluster_options
def command(
    broker_list: str | None,
    topic_list: str | None,
    shows_replicas: bool,
    bootstrap_server: str,
    request_timeout_ms: int,
) -> None:
    """Show the size, replicas and lag of each broker's log directories, or of each replica.

    Sizes are in bytes. The lag of a replica is the number of records that it misses.
    """
    brokers = parse_ids("--broker-list", broker_list)
    names = [name.strip() for name in (topic_list or "").split(",") if name.strip()]
    with connect(bootstrap_server, request_timeout_ms) as cluster:
        live = {broker.broker_id for broker in cluster.describe().brokers}
        missing = [broker for broker in brokers if broker not in live]
        if missing:
            raise ToolError(
                f"--broker-list {broker_list}: the cluster has no live broker {missing[0]}; "
                "'tidelog cluster describe' shows the brokers"
            )
        topics = cluster.topics(names) if names else None
        for name in names:
            if topics is not None and name not in topics:
                raise topic_error_of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
        found = describe_log_dirs(cluster, brokers or live, None if topics is None else topics.values())
    if shows_replicas:
        _show_replicas(found)
    else:
        _show_directories(found)


def _show_replicas(found: list[LogDir]) -> None:
    print_table(
        ("#broker", "directory", "topic", "#partition", "#size", "#lag", "state"),
        [
            (
                directory.broker_id,
                directory.path,
                *replica.place,
                replica.size_bytes,
                replica.lag,
                "future" if replica.is_future else None,
            )
            for directory in found
            for replica in directory.replicas
        ],
    )


def _show_directories(found: list[LogDir]) -> None:
    print_table(
        ("#broker", "directory", "#replicas", "#size", "#max lag", "#volume", "#usable", "error"),
        [
            (
                directory.broker_id,
                directory.path,
                len(directory.replicas),
                directory.size_bytes,
                directory.max_lag,
                _known(directory.total_bytes),
                _known(directory.usable_bytes),
                None if directory.error is ErrorCode.NONE else meaning_of(directory.error),
            )
            for directory in found
        ],
    )


def _known(size_bytes: int) -> int | None:
    return None if size_bytes == UNKNOWN_BYTES else size_bytes
