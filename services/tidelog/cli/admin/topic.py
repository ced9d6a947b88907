"""`tidelog topic`: lists, creates, describes, alters and deletes topics (kafka-topics)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import click

from tidelog.cli.output import (
    OutputFormat,
    Shown,
    counted,
    note,
    output_format,
    print_heading,
    print_table,
    say,
)
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
    given_names,
    parse_assignments,
    topic_option,
    topic_options,
)
from tidelog.client.admin.topics import (
    BROKER_DEFAULT,
    ConfigChange,
    ConfigResource,
    alter_configs,
    create_partitions,
    create_topic,
    delete_topic,
    describe_configs,
    describe_topics_settings,
    unconfirmed_topics,
)
from tidelog.client.cluster import Cluster, Topic
from tidelog.client.core.cluster_view import Partition
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import ConfigOperation, ConfigResourceType
from tidelog.model.topics import INTERNAL_TOPICS, SETTINGS_CONFIRMED, topic_id_text
from tidelog.observe.cluster_reader import ClusterReader, existing_topics, leader_sizes
from tidelog.process.command_help import SuggestingGroup
from tidelog.settings.setting import INT_MAX

_DELETING = ("cleanup.policy", "retention.ms", "retention.bytes")
_ALL_CONFIRMED = "The settings of all topics are confirmed."
TOPIC_SIZE_COLUMNS: Final = ("topic", "#partitions", "#replicas", "#records", "#size", "#on disk")


@click.group(cls=SuggestingGroup)
def command() -> None:
    """List, create, describe, alter and delete topics."""


@command.command(
    "list",
    cls=ToolCommand,
    is_watchable=True,
    examples=(
        "tidelog topic list",
        "tidelog topic list --exclude-internal --format json",
        "tidelog topic list --sizes",
    ),
)
@click.option("--exclude-internal", is_flag=True, help="Leave out internal topics.")
@click.option("--sizes", is_flag=True, help="Show the partitions, records and bytes of each topic.")
@cluster_options
def list_topics(exclude_internal: bool, sizes: bool) -> None:
    """List the names of all topics, one in each line.

    With --sizes, "records" is the number of offsets from the earliest to the latest. It includes the offsets
    of compacted records and of the ends of transactions. "size" is the number of bytes of the leaders'
    replicas, and "on disk" that of all replicas.
    """
    with connect() as cluster:
        if sizes:
            print_table(TOPIC_SIZE_COLUMNS, topic_size_rows(cluster, exclude_internal))
            return
        topics = cluster.topics().values()
    names = [topic.name for topic in topics if not (exclude_internal and topic.is_internal)]
    if output_format() is OutputFormat.JSON:
        print_table(("topic",), [(name,) for name in names])
        return
    for name in names:
        click.echo(name)


@command.command(
    "create",
    cls=ToolCommand,
    examples=(
        "tidelog topic create flights --partitions 6",
        "tidelog topic create prices --replication-factor 3 --config cleanup.policy=compact",
    ),
)
@topic_option
@click.option(
    "--partitions",
    type=ProtocolInt(INT_MAX, min=1),
    help="Number of partitions. The default is the broker's num.partitions.",
)
@click.option(
    "--replication-factor",
    type=ProtocolInt(INT16_MAX, min=1),
    help="Replicas of each partition. The default is the broker's default.replication.factor.",
)
@click.option(
    "--replica-assignment",
    metavar="ID:ID,...",
    help="Brokers of each partition, the preferred leader first: `1:2,2:1` means two partitions.",
)
@click.option(
    "--config", "configs", multiple=True, metavar="NAME=VALUE", help="Set a setting of the topic. Repeatable."
)
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic already exists.")
@click.option("--validate-only", is_flag=True, help="Only check whether the topic can be created.")
@cluster_options
def create(
    partitions: int | None,
    replication_factor: int | None,
    replica_assignment: str | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    validate_only: bool,
) -> None:
    """Create a topic."""
    name = chosen_topic()
    if replica_assignment and (partitions or replication_factor):
        raise click.UsageError(
            "--replica-assignment can't be combined with --partitions or --replication-factor."
        )
    assignment = _parse_replica_assignment(replica_assignment) if replica_assignment else None
    settings = parse_assignments("--config", configs)
    with connect() as cluster:
        try:
            created = create_topic(
                cluster,
                name,
                num_partitions=partitions or BROKER_DEFAULT,
                replication_factor=replication_factor or BROKER_DEFAULT,
                assignment=assignment,
                configs=settings,
                validate_only=validate_only,
            )
        except KafkaError as error:
            if if_not_exists and error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                say(f"Topic {name} already exists.", topic=name, is_created=False)
                return
            raise
    done = "could be created" if validate_only else "created"
    counts = ""
    if created.num_partitions > 0:
        partitions_text = counted(created.num_partitions, "partition")
        counts = f": {partitions_text}, replication factor {created.replication_factor}"
    say(
        f"Topic {name} {done}{counts}.",
        topic=name,
        is_created=not validate_only,
        partitions=max(created.num_partitions, 0) or None,
        replication_factor=max(created.replication_factor, 0) or None,
    )


def _parse_replica_assignment(text: str) -> dict[int, list[int]]:
    try:
        return {
            index: [int(broker_id) for broker_id in part.split(":")]
            for index, part in enumerate(text.split(","))
        }
    except ValueError as error:
        raise ToolError(
            f"--replica-assignment {text}: expected broker ids, with `:` between replicas "
            "and `,` between partitions"
        ) from error


@command.command(
    "describe",
    cls=ToolCommand,
    is_watchable=True,
    examples=("tidelog topic describe flights", "tidelog topic describe --under-replicated-partitions"),
)
@topic_options
@click.option("--exclude-internal", is_flag=True, help="Leave out internal topics.")
@click.option(
    "--under-replicated-partitions",
    is_flag=True,
    help="Show only partitions with replicas that are not in sync.",
)
@click.option("--unavailable-partitions", is_flag=True, help="Show only partitions without a leader.")
@cluster_options
def describe(exclude_internal: bool, under_replicated_partitions: bool, unavailable_partitions: bool) -> None:
    """Show the partitions, leaders, replicas and settings of topics. The default is all topics."""
    wanted = [name for part in given_names("topic") for name in part.split(",")]
    only_partitions = under_replicated_partitions or unavailable_partitions
    with connect() as cluster:
        topics = existing_topics(cluster, wanted) if wanted else cluster.topics()
        for topic in topics.values():
            if exclude_internal and topic.is_internal:
                continue
            shown = [
                partition
                for partition in topic.partitions
                if not only_partitions
                or (under_replicated_partitions and partition.is_under_replicated)
                or (unavailable_partitions and partition.is_offline)
            ]
            if not only_partitions:
                _show_topic(topic, _overrides(cluster, topic.name))
            elif shown and output_format() is OutputFormat.JSON:
                print_heading(topic.name, "", topic=topic.name)
            if shown:
                _show_partitions(topic, shown)


def _overrides(cluster: Cluster, name: str) -> dict[str, str | None]:
    """Returns the settings that differ from the brokers' defaults."""
    entries = describe_configs(cluster, ConfigResource(ConfigResourceType.TOPIC, name))
    return {entry.name: entry.value for entry in entries if entry.is_dynamic}


def _show_topic(topic: Topic, overrides: Mapping[str, str | None]) -> None:
    replication_factor = len(topic.partitions[0].replicas) if topic.partitions else 0
    configs = ",".join(f"{name}={value}" for name, value in overrides.items())
    if output_format() is not OutputFormat.PLAIN:
        print_heading(
            topic.name,
            f"  id {topic_id_text(topic.topic_id)}, {counted(len(topic.partitions), 'partition')}, "
            f"replication factor {replication_factor}{', ' + configs if configs else ''}",
            topic=topic.name,
            topic_id=topic_id_text(topic.topic_id),
            is_internal=topic.is_internal,
            replication_factor=replication_factor,
            configs=overrides,
        )
        return
    click.echo(
        f"Topic: {topic.name}\tTopicId: {topic_id_text(topic.topic_id)}\t"
        f"PartitionCount: {len(topic.partitions)}\tReplicationFactor: {replication_factor}\t"
        f"Configs: {configs}"
    )


def _show_partitions(topic: Topic, partitions: list[Partition]) -> None:
    if output_format() is not OutputFormat.PLAIN:
        rows = [(p.index, _leader(p), p.replicas, p.isr, p.offline_replicas) for p in partitions]
        print_table(("#partition", "#leader", "replicas", "in sync", "offline"), rows, name="partitions")
        return
    for p in partitions:
        click.echo(
            f"\tTopic: {topic.name}\tPartition: {p.index}\tLeader: {_leader(p)}\t"
            f"Replicas: {_ids(p.replicas)}\tIsr: {_ids(p.isr)}"
        )


def _leader(partition: Partition) -> Shown:
    if partition.is_offline:
        return Shown("none", None)
    return Shown(str(partition.leader), partition.leader)


def _ids(broker_ids: tuple[int, ...]) -> str:
    return ",".join(map(str, broker_ids))


@command.command("alter", cls=ToolCommand, examples=("tidelog topic alter flights --partitions 12",))
@topic_option
@click.option(
    "--partitions",
    type=ProtocolInt(INT_MAX, min=1),
    required=True,
    help="The new total number of partitions.",
)
@cluster_options
def alter(partitions: int) -> None:
    """Add partitions to a topic. To change settings, use `tidelog config alter`."""
    name = chosen_topic()
    with connect() as cluster:
        create_partitions(cluster, name, partitions)
    say(
        f"Topic {name} now has {counted(partitions, 'partition')}. "
        "Keys may map to other partitions than before.",
        topic=name,
        partitions=partitions,
    )


@command.command(
    "confirm-settings",
    cls=ToolCommand,
    examples=(
        "tidelog topic confirm-settings",
        "tidelog topic confirm-settings flights prices",
        "tidelog topic confirm-settings --all",
    ),
)
@click.argument("names", metavar="[TOPIC]...", nargs=-1)
@click.option("--all", "takes_all", is_flag=True, help="Confirm the settings of all topics that need it.")
@cluster_options
def confirm_settings(names: tuple[str, ...], takes_all: bool) -> None:
    """Confirm the settings of topics whose settings were lost.

    Nothing is deleted from a topic that was recovered without its settings. Once you have confirmed them,
    retention and compaction follow the settings that the topic has now. Without arguments, the command
    changes nothing: it lists the topics and these settings. 'tidelog config alter --topic TOPIC' changes
    them.
    """
    if names and takes_all:
        raise click.UsageError("Give either topics or --all.")
    with connect() as cluster:
        unconfirmed = unconfirmed_topics(cluster, cluster.topics(names or None))
        for name in names:
            cluster.topic(name)  # reports a missing topic clearly
        if not names and not takes_all:
            _list_unconfirmed(cluster, unconfirmed)
            return
        change = ConfigChange(SETTINGS_CONFIRMED, ConfigOperation.DELETE)
        for name in dict.fromkeys(names or unconfirmed):
            is_unconfirmed = name in unconfirmed
            if is_unconfirmed:
                alter_configs(cluster, ConfigResource(ConfigResourceType.TOPIC, name), [change])
            done = "are confirmed" if is_unconfirmed else "needed no confirmation"
            say(
                f"The settings of topic {name} {done}.",
                is_one_of_many=True,
                topic=name,
                changed=is_unconfirmed,
            )
    if takes_all and not unconfirmed:
        note(_ALL_CONFIRMED)


def _list_unconfirmed(cluster: Cluster, unconfirmed: Sequence[str]) -> None:
    found = describe_topics_settings(cluster, unconfirmed, _DELETING)
    rows = [(topic, *(found.get(topic, {}).get(name) for name in _DELETING)) for topic in unconfirmed]
    print_table(("topic", *_DELETING), rows, name="unconfirmed")
    if unconfirmed:
        note("Nothing is deleted from these topics. The settings above apply once you have confirmed them.")
    else:
        note(_ALL_CONFIRMED)


@command.command(
    "delete",
    cls=ToolCommand,
    examples=("tidelog topic delete flights", "tidelog topic delete --topic flights --if-exists"),
)
@topic_option
@click.option("--if-exists", is_flag=True, help="Succeed if the topic does not exist.")
@asks_first
@cluster_options
def delete(if_exists: bool) -> None:
    """Delete a topic and all its data.

    On a terminal, it asks first. Without one, --yes is needed only for an internal topic.
    """
    name = chosen_topic()
    if name in INTERNAL_TOPICS:
        holds = f"{name} is internal and holds the state of groups or transactions"
        confirm(f"{holds}. Delete it and all its data?", refusal=holds)
    else:
        confirm(f"Delete topic {name} and all its data?")
    with connect() as cluster:
        try:
            delete_topic(cluster, name)
        except KafkaError as error:
            if if_exists and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                say(f"Topic {name} does not exist.", topic=name, is_deleted=False)
                return
            raise
    say(f"Topic {name} deleted.", topic=name, is_deleted=True)


def topic_size_rows(
    cluster: Cluster, excludes_internal: bool
) -> list[tuple[str, int, int, int | None, int | None, int]]:
    """Returns a row for each topic. Raises KafkaError, ClientError.

    Records and size are None if a partition has no leader, because they are unknown then.
    """
    reader = ClusterReader(cluster)
    topics = [topic for topic in cluster.topics().values() if not (excludes_internal and topic.is_internal)]
    earliest, latest = reader.log_starts(topics), reader.high_watermarks(topics)
    on_disk: Counter[str] = Counter()
    led: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    directories = reader.log_dirs(topics)
    for directory in directories:
        for replica in directory.replicas:
            on_disk[replica.place.topic] += replica.size_bytes
    for place, size_bytes in leader_sizes(topics, directories).items():
        led[place.topic] += size_bytes
        seen[place.topic] += 1
    records: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    for place in earliest.keys() & latest.keys():
        records[place.topic] += latest[place] - earliest[place]
        counted[place.topic] += 1
    return [
        (
            topic.name,
            len(topic.partitions),
            max((len(part.replicas) for part in topic.partitions), default=0),
            records[topic.name] if counted[topic.name] == len(topic.partitions) else None,
            led[topic.name] if seen[topic.name] == len(topic.partitions) else None,
            on_disk[topic.name],
        )
        for topic in topics
    ]
