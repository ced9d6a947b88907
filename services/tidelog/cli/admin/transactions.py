"""`tidelog transactions`: lists, describes and ends transactions, and finds and aborts hanging ones
(kafka-transactions).
"""

from __future__ import annotations

import time
from typing import Final

import click

from tidelog.cli.output import counted, note, print_heading, print_table, say
from tidelog.cli.tool_command import (
    INT16_MAX,
    ProtocolInt,
    ToolCommand,
    ToolError,
    asks_first,
    chosen_topic,
    cluster_options,
    confirm,
    connect,
    given_name,
    given_names,
    named_option,
    topic_option,
)
from tidelog.client.admin.groups import (
    ANY_DURATION,
    ONGOING,
    TRANSACTION_STATES,
    describe_transaction,
    fence_producer,
    list_transactions,
)
from tidelog.client.admin.transactions import (
    HangingSearch,
    PartitionProducer,
    abort_transaction,
    describe_producers,
    find_hanging,
)
from tidelog.client.cluster import Cluster
from tidelog.kernel.instants import MINUTE_MS
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.observe.availability import named
from tidelog.observe.cluster_reader import existing_topics
from tidelog.observe.number_texts import iso_time
from tidelog.process.command_help import SuggestingGroup
from tidelog.settings.setting import INT_MAX, LONG_MAX

DEFAULT_MAX_TRANSACTION_TIMEOUT_MIN: Final = 15
_NS_PER_MS: Final = 1_000_000
_ID: Final = "transactional-id"
_GIVE_ID: Final = "Give a transactional id, or --transactional-id TRANSACTIONAL_ID."


@click.group(cls=SuggestingGroup)
def command() -> None:
    """List, describe and end transactions, and find and abort hanging ones."""


@command.command(
    "list",
    cls=ToolCommand,
    is_watchable=True,
    examples=("tidelog transactions list", "tidelog transactions list --running-longer-than-ms 60000"),
)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(TRANSACTION_STATES, case_sensitive=False),
    help="Show only transactions in this state. Repeatable.",
)
@click.option(
    "--running-longer-than-ms",
    type=ProtocolInt(LONG_MAX, min=0),
    help="Show only transactions that have been open for longer than this time.",
)
@cluster_options
def list_them(states: tuple[str, ...], running_longer_than_ms: int | None) -> None:
    """List transactional ids with their producers and states."""
    duration_ms = ANY_DURATION if running_longer_than_ms is None else running_longer_than_ms
    with connect() as cluster:
        found = list_transactions(cluster, list(states), duration_ms)
    print_table(
        ("transactional id", "#coordinator", "#producer id", "state"),
        [(row.transactional_id, row.coordinator_id, row.producer_id, row.state) for row in found],
    )


@command.command("describe", cls=ToolCommand, examples=("tidelog transactions describe orders-writer",))
@named_option(_ID, "A transactional id", is_repeatable=True)
@cluster_options
def describe() -> None:
    """Show the state, age and partitions of transactional ids."""
    chosen = given_names(_ID)
    if not chosen:
        raise click.UsageError(_GIVE_ID)
    with connect() as cluster:
        for name in chosen:
            found = describe_transaction(cluster, name)
            is_open = found.start_time_ms >= 0
            age_ms = max(0, int(time.time() * 1000) - found.start_time_ms)
            since = f", begun {age_ms} ms ago" if is_open else ""
            print_heading(
                name,
                f"  {found.state}{since}, producer {found.producer_id} epoch {found.producer_epoch},"
                f" timeout {found.timeout_ms} ms",
                transactional_id=name,
                state=found.state,
                age_ms=age_ms if is_open else None,
                producer_id=found.producer_id,
                producer_epoch=found.producer_epoch,
                timeout_ms=found.timeout_ms,
            )
            print_table(("topic", "#partition"), sorted(found.partitions), name="partitions")


@command.command(
    "force-terminate", cls=ToolCommand, examples=("tidelog transactions force-terminate orders-writer",)
)
@named_option(_ID, "The transactional id", is_repeatable=False)
@asks_first
@cluster_options
def force_terminate() -> None:
    """Abort the open transaction of a transactional id, in all of its partitions.

    Its producer is fenced: it can no longer write, and fails at its next call until it starts again.
    On a terminal, it asks first.
    """
    chosen = given_name(_ID)
    if not chosen:
        raise click.UsageError(_GIVE_ID)
    with connect() as cluster:
        found = describe_transaction(cluster, chosen)
        if found.state != ONGOING:
            raise ToolError(
                f"transactional id '{chosen}' has no transaction to abort: it is in {found.state}"
            )
        confirm(f"Abort the transaction of {chosen} and fence its producer?")
        fence_producer(cluster, chosen, found.timeout_ms)
    say(
        f"The transaction of {chosen} was aborted, and its producer is fenced.",
        transactional_id=chosen,
        producer_id=found.producer_id,
        partitions=[str(place) for place in sorted(found.partitions)],
    )


@command.command(
    "describe-producers",
    cls=ToolCommand,
    examples=("tidelog transactions describe-producers flights --partition 0",),
)
@topic_option
@click.option("--partition", type=ProtocolInt(INT_MAX, min=0), required=True, help="The partition.")
@cluster_options
def describe_them(partition: int) -> None:
    """Show the producers that the leader of a partition remembers."""
    place = TopicPartition(chosen_topic(), partition)
    with connect() as cluster:
        producers = describe_producers(cluster, [place])
    print_table(
        (
            "#producer id", "#epoch", "#coordinator epoch", "#last sequence", "last timestamp",
            "#transaction start",
        ),
        [
            (
                producer.producer_id,
                producer.producer_epoch,
                producer.coordinator_epoch,
                producer.last_sequence,
                iso_time(producer.last_timestamp_ms),
                producer.start_offset if producer.is_in_transaction else None,
            )
            for producer in producers
        ],
    )  # fmt: skip


@command.command(
    "find-hanging",
    cls=ToolCommand,
    examples=(
        "tidelog transactions find-hanging",
        "tidelog transactions find-hanging --topic flights --partition 0",
    ),
)
@click.option("--broker-id", type=click.IntRange(min=0), help="Search the partitions of this broker.")
@click.option("--topic", metavar="TOPIC", help="Search this topic. The default is all topics.")
@click.option("--partition", type=ProtocolInt(INT_MAX, min=0), help="Search this partition of the topic.")
@click.option(
    "--max-transaction-timeout",
    "max_timeout_min",
    type=click.IntRange(min=0),
    default=DEFAULT_MAX_TRANSACTION_TIMEOUT_MIN,
    show_default=True,
    help="Minutes that a transaction may last: the brokers' transaction.max.timeout.ms.",
)
@cluster_options
def find_them(broker_id: int | None, topic: str | None, partition: int | None, max_timeout_min: int) -> None:
    """Find transactions that are open in a partition although their coordinator does not know them.

    They hold back readers with isolation.level=read_committed until `tidelog transactions abort` ends them.
    """
    if partition is not None and topic is None:
        raise click.UsageError("--partition requires --topic.")
    now_ms = time.time_ns() // _NS_PER_MS
    with connect() as cluster:
        places, leaderless = _places(cluster, broker_id, topic, partition)
        found = find_hanging(
            cluster, places, now_ms=now_ms, max_transaction_timeout_ms=max_timeout_min * MINUTE_MS
        )
    print_table(
        (
            "topic", "#partition", "#producer id", "#epoch", "#coordinator epoch", "#start offset",
            "last timestamp", "#minutes",
        ),
        [
            (
                *producer.place,
                producer.producer_id,
                producer.producer_epoch,
                producer.coordinator_epoch,
                producer.start_offset,
                iso_time(producer.last_timestamp_ms),
                (now_ms - producer.last_timestamp_ms) // MINUTE_MS,
            )
            for producer in found.hanging
        ],
    )  # fmt: skip
    if not found.hanging and not found.unjudged:
        note(f"No transaction hangs in {counted(len(places), 'partition')}.")
    _fail_if_incomplete(found, leaderless)


def _fail_if_incomplete(found: HangingSearch, leaderless: list[TopicPartition]) -> None:
    """Raises ToolError if partitions were not searched, or if transactions could not be judged."""
    gaps: list[str] = []
    if leaderless:
        gaps.append(f"these partitions have no leader and were not searched: {named(leaderless)}")
    if found.unjudged:
        open_ones = named([f"producer {each.producer_id} in {each.place}" for each in found.unjudged])
        gaps.append(
            f"no coordinator of {named(found.unread_shards)} could be asked, so these transactions may hang, "
            f"or a coordinator may still end them: {open_ones}"
        )
    if gaps:
        raise ToolError("; ".join(gaps))


def _places(
    cluster: Cluster, broker_id: int | None, topic: str | None, partition: int | None
) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """Returns the partitions to search, and those that have no leader. A named partition is searched."""
    if topic is not None and partition is not None:
        return [TopicPartition(topic, partition)], []
    live = {broker.broker_id for broker in cluster.describe().brokers}
    if broker_id is not None and broker_id not in live:
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"the cluster has no live broker {broker_id}")
    topics = cluster.topics() if topic is None else existing_topics(cluster, [topic])
    led: list[TopicPartition] = []
    leaderless: list[TopicPartition] = []
    for found in topics.values():
        for part in found.partitions:
            if broker_id is None or broker_id in part.replicas:
                (led if part.leader in live else leaderless).append(TopicPartition(found.name, part.index))
    return led, leaderless


@command.command(
    "abort",
    cls=ToolCommand,
    examples=(
        "tidelog transactions abort flights --partition 0 --start-offset 1234",
        "tidelog transactions abort flights --partition 0 --producer-id 4000 --producer-epoch 3 "
        "--coordinator-epoch 0",
    ),
)
@topic_option
@click.option("--partition", type=ProtocolInt(INT_MAX, min=0), required=True, help="The partition.")
@click.option(
    "--start-offset",
    type=click.IntRange(min=0),
    help="The first offset of the transaction, which find-hanging shows.",
)
@click.option(
    "--producer-id", type=ProtocolInt(LONG_MAX, min=0), help="The producer, instead of --start-offset."
)
@click.option("--producer-epoch", type=ProtocolInt(INT16_MAX, min=0), help="The producer's epoch.")
@click.option("--coordinator-epoch", type=ProtocolInt(INT_MAX, min=-1), help="The epoch of the coordinator.")
@asks_first
@cluster_options
def abort(
    partition: int,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
) -> None:
    """Abort a hanging transaction in one partition.

    Abort only what `tidelog transactions find-hanging` shows: the coordinator ends other transactions. A
    broker refuses clients without a login, unless it has no authorizer and listens only on this machine.
    On a terminal, it asks first.
    """
    place = TopicPartition(chosen_topic(), partition)
    names = (producer_id, producer_epoch, coordinator_epoch)
    if start_offset is None and None in names:
        raise click.UsageError(
            "Give --start-offset, or --producer-id, --producer-epoch and --coordinator-epoch."
        )
    if start_offset is not None and names != (None, None, None):
        raise click.UsageError("--start-offset identifies the transaction; give no producer.")
    with connect() as cluster:
        if start_offset is not None:
            found = _starting_at(describe_producers(cluster, [place]), place, start_offset)
            names = (found.producer_id, found.producer_epoch, found.coordinator_epoch)
        known_id, known_epoch, known_coordinator = names
        assert known_id is not None
        assert known_epoch is not None
        assert known_coordinator is not None
        confirm(f"Abort the transaction of producer {known_id} in {place}?")
        abort_transaction(cluster, place, known_id, known_epoch, known_coordinator)
    say(f"The transaction of producer {known_id} in {place} was aborted.")


def _starting_at(
    producers: list[PartitionProducer], place: TopicPartition, start_offset: int
) -> PartitionProducer:
    for producer in producers:
        if producer.is_in_transaction and producer.start_offset == start_offset:
            return producer
    raise ToolError(
        f"no open transaction of {place} starts at offset {start_offset}; "
        "'tidelog transactions describe-producers' shows the open ones"
    )
