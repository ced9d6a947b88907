"""What an earlier controller left half done is finished when the next one takes over (SPEC D6)."""

from __future__ import annotations

from tidelog.controller.core.context import Context
from tidelog.controller.core.records import ABSENT, Decision, Erase, Record, Write
from tidelog.controller.core.state import ClusterState
from tidelog.metadata import keys
from tidelog.metadata.entries import PartitionStateEntry
from tidelog.rpc.broker_commands import NO_LEADER


def first_state(
    state: ClusterState, context: Context, topic: str, partition: int, replicas: tuple[int, ...]
) -> PartitionStateEntry:
    """Of a partition that never was: every replica that is there to stay is in sync, the first of them
    leads.
    """
    present = tuple(r for r in replicas if r in state.brokers and r not in state.stopping)
    leader = present[0] if present else NO_LEADER
    return PartitionStateEntry(topic, partition, leader, 0, present or replicas, context.controller_epoch)


def finish_half_done(state: ClusterState, context: Context) -> Decision[None]:
    """States of partitions that were only announced; keys of topics that are deleted; old notifications.

    Elections, changes of the ELR and reassignments need nothing here: `settle_partitions` and
    `advance_reassignments` find what is left of them in the state itself.
    """
    records: list[Record] = []
    for topic in state.topics.values():
        stored = state.partitions.get(topic.name, {})
        for partition, replicas in enumerate(topic.assignments):
            if partition not in stored:
                records.append(Write(first_state(state, context, topic.name, partition, replicas), ABSENT))
    for name, stored in state.partitions.items():
        known = len(state.topics[name].assignments) if name in state.topics else 0
        records += [Erase(keys.partition_state(name, index)) for index in sorted(stored) if index >= known]
    records += [Erase(keys.topic_config(name)) for name in state.topic_configs if name not in state.topics]
    return Decision(tuple(records), None)


def forget_isr_changes(state: ClusterState, context: Context) -> Decision[None]:
    """The states they point to have been read, so the notifications can go, unless written anew since."""
    records = [Erase(key, mod_revision) for key, mod_revision in state.isr_changes.items()]
    return Decision(tuple(records), None)
