"""Which brokers a partition's replicas are put on: round robin, as Kafka's `AdminUtils` does it.

The first replicas go round the brokers from a random start, so that leaders are spread evenly. The other
replicas follow at a distance that grows by one each round, so that the followers of one broker's leaders are
spread over all others. Racks are not looked at yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.controller.core.context import Chance
from tidelog.model.errors import ErrorCode, KafkaError


def place_replicas(
    brokers: Sequence[int],
    partition_count: int,
    replication_factor: int,
    chance: Chance,
    *,
    first_partition: int = 0,
) -> tuple[tuple[int, ...], ...]:
    """The replicas of `partition_count` partitions from `first_partition` on, preferred leaders first.

    `brokers` are those alive, in order of id. Raises KafkaError(INVALID_REPLICATION_FACTOR) if there are
    too few.
    """
    count = len(brokers)
    if replication_factor > count:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor "
            f"of {replication_factor} cannot be reached because only {count} broker(s) are registered.",
        )
    start, distance = chance.below(count), chance.below(count)
    placed = []
    for partition in range(first_partition, first_partition + partition_count):
        if partition and partition % count == 0:
            distance += 1
        leader = (start + partition) % count
        followers = (
            (leader + 1 + (distance + number) % (count - 1)) % count
            for number in range(replication_factor - 1)
        )
        placed.append((brokers[leader], *(brokers[index] for index in followers)))
    return tuple(placed)
