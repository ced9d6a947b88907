"""Checks brokers that an upgrade would remove. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from tidelog.cli.output import counted
from tidelog.client.admin.reassignments import Assignment


def leaving_brokers(existing: Iterable[int], staying: Collection[int]) -> tuple[int, ...]:
    return tuple(sorted(set(existing) - set(staying)))


def replicas_held(assignment: Assignment, brokers: Collection[int]) -> dict[int, int]:
    """Returns the number of replicas of each broker that holds any."""
    return dict(
        sorted(Counter(b for replicas in assignment.values() for b in replicas if b in brokers).items())
    )


def refusal(held: dict[int, int], leaving: Collection[int]) -> str:
    ids = ",".join(map(str, sorted(leaving)))
    counts = ", ".join(f"broker {broker} {count}" for broker, count in held.items())
    return (
        f"brokers {ids} would be removed with {counted(sum(held.values()), 'replica')} ({counts}): "
        f"run 'tidelog rebalance --without {ids} --execute' first, or set scaleIn.drain=true; "
        "nothing was changed"
    )
