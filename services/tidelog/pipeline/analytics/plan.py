"""The proposed reassignment, based on the cluster's assignment or on the metrics alone. The module does no
I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.client.rebalance_plan import (
    Assignment,
    Move,
    PartitionKey,
    PlanError,
    after_moves,
    plan_moves,
)
from tidelog.pipeline.analytics.load_plan import copied_bytes, plan_by_load
from tidelog.pipeline.analytics.skew import BrokerLoad, PartitionLoad, broker_loads, over_mean

BY_LOAD: Final = "load"
BY_COUNT: Final = "count"


@dataclass(frozen=True, slots=True)
class Proposal:
    """`refused` is the reason why there is no plan. `left_out` counts partitions whose replicas are not all
    known.
    """

    moves: tuple[Move, ...]
    before: tuple[BrokerLoad, ...]
    after: tuple[BrokerLoad, ...]
    copied_bytes: float
    left_out: int
    refused: str | None = None

    def unevenness(self, name: str) -> tuple[float, float]:
        """Returns the load of the most loaded broker over the mean, before and after. `name` is a field of
        BrokerLoad.
        """
        before, after = (
            over_mean([float(getattr(load, name)) for load in loads]) for loads in (self.before, self.after)
        )
        return before, after


def told_assignment(loads: Iterable[PartitionLoad]) -> tuple[dict[PartitionKey, tuple[int, ...]], int]:
    """Returns the assignment of partitions whose replicas are all known, and the number of the other
    partitions.
    """
    found: dict[PartitionKey, tuple[int, ...]] = {}
    left_out = 0
    for load in loads:
        if load.holders and len(load.holders) == load.replicas:
            found[load.key] = load.holders
        else:
            left_out += 1
    return found, left_out


def propose(
    loads: Collection[PartitionLoad],
    racks: Mapping[int, str | None],
    *,
    assignment: Assignment | None = None,
    leaving: Collection[int] = (),
    way: str = BY_LOAD,
) -> Proposal:
    """Proposes a plan. `assignment` is the cluster's assignment, or None to use the metrics. `racks` names
    the live brokers.
    """
    left_out = 0
    if assignment is None:
        assignment, left_out = told_assignment(loads)
    by_key = {load.key: load for load in loads}
    refused = None
    moves: list[Move] = []
    try:
        if way == BY_LOAD:
            moves = plan_by_load(assignment, racks, by_key, leaving)
        else:
            moves = plan_moves(assignment, racks, leaving)
    except PlanError as error:
        refused = str(error)
    after = after_moves(assignment, moves)
    return Proposal(
        tuple(moves),
        tuple(broker_loads(assignment, by_key, racks)),
        tuple(broker_loads(after, by_key, racks)),
        copied_bytes(moves, by_key),
        left_out,
        refused,
    )
