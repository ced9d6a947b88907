"""Leadership goes back to the preferred leaders (the first replicas) when too much of it has strayed.

SPEC D4. The rule is that of Kafka's controller before KRaft, which still had
`leader.imbalance.per.broker.percentage`: broker by broker, over the partitions it is preferred for.
"""

from __future__ import annotations

from tidelog.controller.core.context import Context
from tidelog.controller.core.records import Decision, Record, Write
from tidelog.controller.core.roll_call import call_roll
from tidelog.controller.core.state import ClusterState, StoredPartition
from tidelog.metadata.entries import PartitionStateEntry
from tidelog.rpc.broker_commands import NO_LEADER


def led_by_preferred(
    state: ClusterState, context: Context, replicas: tuple[int, ...], stored: StoredPartition
) -> PartitionStateEntry | None:
    """The state with the first replica as leader, at the next leader epoch; None if it can't lead (it is
    dead, reborn, on its way out or not in the ISR) or leads already.
    """
    before, preferred = stored.state, replicas[0]
    roll = call_roll(state, replicas, stored)
    if before.leader == preferred or preferred not in before.isr:
        return None
    if preferred not in roll.steady or preferred in roll.stopping:
        return None
    return before._replace(
        leader=preferred,
        leader_epoch=before.leader_epoch + 1,
        controller_epoch=context.controller_epoch,
        last_known_leader=NO_LEADER,
    )


def balance_leaders(state: ClusterState, context: Context) -> Decision[int]:
    """Answers how many partitions change leaders. Those under reassignment are left alone."""
    if not context.rules.auto_leader_rebalance_enable:
        return Decision((), 0)
    preferred_count: dict[int, int] = {}
    strayed: dict[int, list[tuple[tuple[int, ...], StoredPartition]]] = {}
    for topic, partition, stored in state.all_partitions():
        replicas = topic.assignments[partition]
        preferred = replicas[0]
        preferred_count[preferred] = preferred_count.get(preferred, 0) + 1
        is_moving = partition in topic.adding or partition in topic.removing
        if stored.state.leader != preferred and not is_moving:
            strayed.setdefault(preferred, []).append((replicas, stored))
    records: list[Record] = []
    for broker_id in sorted(strayed):
        share = len(strayed[broker_id]) * 100 / preferred_count[broker_id]
        if share <= context.rules.leader_imbalance_per_broker_percentage:
            continue
        for replicas, stored in strayed[broker_id]:
            entry = led_by_preferred(state, context, replicas, stored)
            if entry is not None:
                records.append(Write(entry, stored.mod_revision))
    return Decision(tuple(records), len(records))
