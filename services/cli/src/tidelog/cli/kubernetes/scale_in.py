"""Brokers that an upgrade would take away: what they hold, and what is to be said of it. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from tidelog.client.rebalance_plan import Assignment


def leaving_brokers(existing: Iterable[int], staying: Collection[int]) -> tuple[int, ...]:
    return tuple(sorted(set(existing) - set(staying)))


def replicas_held(assignment: Assignment, brokers: Collection[int]) -> dict[int, int]:
    """Broker -> how many replicas; those without any are left out."""
    return dict(
        sorted(Counter(b for replicas in assignment.values() for b in replicas if b in brokers).items())
    )


def refusal(held: dict[int, int], leaving: Collection[int]) -> str:
    ids = ",".join(map(str, sorted(leaving)))
    counts = ", ".join(f"broker {broker} {count}" for broker, count in held.items())
    return (
        f"brokers {ids} would go with {sum(held.values())} replicas on them ({counts}): "
        f"run 'tidelog rebalance --without {ids} --execute' first, or set scaleIn.drain=true; "
        "nothing was changed"
    )
