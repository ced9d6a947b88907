"""Reads a topic as a member of a group, and commits what was printed."""

from __future__ import annotations

from tidelog.cli.interruption import noted_interruption
from tidelog.cli.output import counted, note
from tidelog.cli.record_printing import RecordPrinter, print_until_done
from tidelog.client.cluster import Cluster
from tidelog.client.core.settings import Properties
from tidelog.client.errors import StaleMemberError
from tidelog.client.threads.consumer import Consumer
from tidelog.client.threads.topic_reader import TopicReader, consumer_of
from tidelog.model.topics import TopicPartition


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
