"""What an earlier controller left half done is finished when the next one takes over."""

from __future__ import annotations

from tidelog.controller.core.context import Context
from tidelog.controller.core.elections import choose_leader
from tidelog.controller.core.records import ABSENT, Decision, Erase, Record, Write
from tidelog.controller.core.state import ClusterState
from tidelog.metadata import keys
from tidelog.metadata.entries import PartitionStateEntry


def first_state(
    state: ClusterState, context: Context, topic: str, partition: int, replicas: tuple[int, ...]
) -> PartitionStateEntry:
    """Of a partition that never was: every replica alive is in sync, the first of them leads."""
    alive = tuple(replica for replica in replicas if replica in state.brokers)
    elected = choose_leader(replicas, alive or replicas, state.brokers)
    return PartitionStateEntry(topic, partition, elected.leader, 0, elected.isr, context.controller_epoch)


def finish_half_done(state: ClusterState, context: Context) -> Decision[None]:
    """States of partitions that were only announced; keys of topics that are deleted; old notifications."""
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
    records += forget_isr_changes(state)
    return Decision(tuple(records), None)


def forget_isr_changes(state: ClusterState) -> list[Record]:
    """The states they point to have been read, so the notifications can go, unless written anew since."""
    return [Erase(key, mod_revision) for key, mod_revision in state.isr_changes.items()]
