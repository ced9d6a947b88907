"""The records and bytes of topics, with a few requests to each broker."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tidelog.client.admin.brokers import describe_log_dirs
from tidelog.client.admin.offsets import offsets_of_topics
from tidelog.client.cluster import Cluster
from tidelog.model.protocol_values import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

TOPIC_SIZE_COLUMNS: Final = ("topic", "#partitions", "#replicas", "#records", "#size", "#on disk")


def topic_size_rows(
    cluster: Cluster, excludes_internal: bool
) -> list[tuple[str, int, int, int | None, int | None, int]]:
    """Returns a row for each topic. Raises KafkaError, ClientError.

    Records and size are None if a partition has no leader, because they are unknown then.
    """
    brokers = {broker.broker_id for broker in cluster.describe().brokers}
    topics = [topic for topic in cluster.topics().values() if not (excludes_internal and topic.is_internal)]
    earliest = offsets_of_topics(cluster, topics, EARLIEST_TIMESTAMP)
    latest = offsets_of_topics(cluster, topics, LATEST_TIMESTAMP)
    leaders = {(topic.name, part.index): part.leader for topic in topics for part in topic.partitions}
    on_disk: Counter[str] = Counter()
    led: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for directory in describe_log_dirs(cluster, brokers, topics):
        for replica in directory.replicas:
            on_disk[replica.place.topic] += replica.size_bytes
            if not replica.is_future and leaders.get(replica.place) == directory.broker_id:
                led[replica.place.topic] += replica.size_bytes
                seen[replica.place.topic] += 1
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
