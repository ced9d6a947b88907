"""Checks a requested assignment of replicas, and compares it with the current one. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

from tidelog.client.reassignments import Reassignment
from tidelog.client.rebalance_plan import Assignment, Move, PartitionKey, PlanError


class Progress(Enum):
    """The state of a requested move."""

    FINISHED = "finished"
    MOVING = "moving"
    DIFFERENT = "different"
    """No move is running, and the replicas are not the requested ones."""
    MISSING = "missing"
    """The partition does not exist."""


def requested_moves(current: Assignment, wanted: Assignment, brokers: Collection[int]) -> list[Move]:
    """Returns the moves to the wanted replicas, also for partitions that have them already.

    `brokers` are the live ones. Raises PlanError if a partition or broker does not exist, or if replicas are
    missing or repeated.
    """
    moves: list[Move] = []
    for (topic, partition), replicas in sorted(wanted.items()):
        place = f"{topic}-{partition}"
        if (topic, partition) not in current:
            raise PlanError(f"partition {place} does not exist")
        if not replicas:
            raise PlanError(f"{place} has no replicas")
        if len(set(replicas)) < len(replicas):
            raise PlanError(f"{place} has two replicas on the same broker")
        unknown = sorted(set(replicas) - set(brokers))
        if unknown:
            raise PlanError(f"{place} has a replica on broker {unknown[0]}, which is not alive")
        moves.append(Move(topic, partition, tuple(current[topic, partition]), tuple(replicas)))
    return moves


def running_moves(under_way: Mapping[PartitionKey, Reassignment]) -> list[Move]:
    """Returns the running moves from the replicas before to those of the target."""
    return [
        Move(
            topic,
            partition,
            tuple(broker for broker in move.replicas if broker not in move.adding),
            tuple(broker for broker in move.replicas if broker not in move.removing),
        )
        for (topic, partition), move in sorted(under_way.items())
    ]


def progress_of(
    wanted: Assignment, current: Assignment, under_way: Collection[PartitionKey]
) -> dict[PartitionKey, Progress]:
    """Returns the state of each requested move."""
    found: dict[PartitionKey, Progress] = {}
    for key, replicas in sorted(wanted.items()):
        if key not in current:
            found[key] = Progress.MISSING
        elif key in under_way:
            found[key] = Progress.MOVING
        elif tuple(current[key]) == tuple(replicas):
            found[key] = Progress.FINISHED
        else:
            found[key] = Progress.DIFFERENT
    return found
