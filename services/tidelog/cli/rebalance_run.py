"""Executes a plan with a throttle (KIP-73) and a limit of concurrent moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from tidelog.cli.output import counted
from tidelog.cli.tool_command import ToolError
from tidelog.client.admin.reassignments import (
    Move,
    alter_reassignments,
    elect_preferred_leaders,
    list_reassignments,
)
from tidelog.client.admin.topics import (
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ResourceType,
    alter_configs,
    describe_configs,
)
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.model.errors import KafkaError

LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
POLL_INTERVAL_S: Final = 1.0
AT_ONCE: Final = 50

T = TypeVar("T")


def throttled_replicas(moves: Iterable[Move]) -> dict[str, tuple[str, str]]:
    """Returns for each topic the values of its two throttle settings: for existing and for new replicas."""
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for move in moves:
        if not move.adding:
            continue
        leaders.setdefault(move.topic, []).extend(f"{move.partition}:{broker}" for broker in move.before)
        followers.setdefault(move.topic, []).extend(f"{move.partition}:{broker}" for broker in move.adding)
    return {topic: (",".join(leaders[topic]), ",".join(followers[topic])) for topic in leaders}


def set_throttle(cluster: Cluster, moves: Sequence[Move], bytes_per_s: int) -> None:
    """Raises KafkaError, ClientError."""
    brokers = sorted({broker for move in moves for broker in (*move.before, *move.after) if move.adding})
    alive = {broker.broker_id for broker in cluster.describe().brokers}
    for broker in brokers:
        if broker in alive:
            resource = ConfigResource(ResourceType.BROKER, str(broker))
            _set(cluster, resource, {LEADER_RATE: str(bytes_per_s), FOLLOWER_RATE: str(bytes_per_s)})
    for topic, (leaders, followers) in throttled_replicas(moves).items():
        resource = ConfigResource(ResourceType.TOPIC, topic)
        _set(cluster, resource, {LEADER_REPLICAS: leaders, FOLLOWER_REPLICAS: followers})


def remove_throttle(cluster: Cluster, topics: Iterable[str]) -> int:
    """Removes the throttle from all live brokers and these topics, and returns how many had one.

    Raises KafkaError, ClientError.
    """
    count = 0
    resources = [
        (ConfigResource(ResourceType.BROKER, str(broker.broker_id)), (LEADER_RATE, FOLLOWER_RATE))
        for broker in cluster.describe().brokers
    ]
    for topic in topics:
        names = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
        resources.append((ConfigResource(ResourceType.TOPIC, topic), names))
    for resource, names in resources:
        found = describe_configs(cluster, resource, list(names))
        changes = [ConfigChange(entry.name, ConfigOperation.DELETE) for entry in found if entry.is_dynamic]
        if changes:
            alter_configs(cluster, resource, changes)
            count += 1
    return count


def _set(cluster: Cluster, resource: ConfigResource, values: Mapping[str, str]) -> None:
    changes = [ConfigChange(name, ConfigOperation.SET, value) for name, value in values.items()]
    alter_configs(cluster, resource, changes)


def carry_out(
    cluster: Cluster,
    moves: Sequence[Move],
    *,
    throttle_bytes_per_s: int | None,
    at_once: int,
    timeout_s: float,
    tell: Callable[[str], None],
) -> None:
    """Executes the moves until the last replica is in sync, and removes the throttle.

    Raises ToolError at the timeout (the moves continue), KafkaError, ClientError.
    """
    deadline_s = time.monotonic() + timeout_s
    if throttle_bytes_per_s is not None:
        set_throttle(cluster, moves, throttle_bytes_per_s)
    waiting = list(moves)
    said = -1
    while True:
        under_way = _asked(lambda: list_reassignments(cluster), deadline_s)
        room = at_once - len(under_way)
        if waiting and room > 0:
            batch, waiting = waiting[:room], waiting[room:]
            wanted = {(move.topic, move.partition): move.after for move in batch}
            _asked(partial(alter_reassignments, cluster, wanted), deadline_s)
            continue
        left = len(waiting) + len(under_way)
        if left != said:
            tell(
                f"{len(moves) - min(left, len(moves))} of "
                f"{counted(len(moves), 'partition', 'is', 'are')} finished"
            )
            said = left
        if not left:
            break
        if time.monotonic() > deadline_s:
            raise ToolError(
                f"{counted(left, 'partition', 'is', 'are')} not finished after {timeout_s:g} s. "
                "Started moves continue: "
                "'tidelog rebalance --verify' shows them and finally removes the throttle"
            )
        time.sleep(POLL_INTERVAL_S)
    if throttle_bytes_per_s is not None:
        remove_throttle(cluster, sorted({move.topic for move in moves}))
    elect_preferred_leaders(cluster)


def _asked(question: Callable[[], T], deadline_s: float) -> T:
    """Repeats a request, because brokers and controllers may change while replicas move."""
    while True:
        try:
            return question()
        except (ClientError, KafkaError) as error:
            if (isinstance(error, KafkaError) and not error.is_retriable) or time.monotonic() > deadline_s:
                raise
            time.sleep(POLL_INTERVAL_S)
