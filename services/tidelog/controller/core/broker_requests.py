"""Requests that brokers make for themselves: blocks of producer ids (KIP-730) and controlled shutdown."""

from __future__ import annotations

from typing import Final

from tidelog.controller.core.decision import (
    Context,
    ControllerDecision,
    DecisionSteps,
    NoteShutdown,
    Record,
    Write,
)
from tidelog.controller.core.elections import call_roll, eligible_after, min_isr_without_elr
from tidelog.controller.core.state import ClusterState, StoredPartition
from tidelog.metadata.entries import PartitionStateEntry, ProducerIdBlockEntry
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.controller_api import PRODUCER_ID_BLOCK_SIZE, ProducerIdBlock

_MAX_PRODUCER_ID: Final = 2**63 - 1


def allocate_producer_ids(
    state: ClusterState, context: Context, broker_id: int, broker_epoch: int
) -> ControllerDecision[ProducerIdBlock]:
    check_broker_epoch(state, broker_id, broker_epoch)
    first = state.next_producer_id
    if first > _MAX_PRODUCER_ID - PRODUCER_ID_BLOCK_SIZE:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "All producer ids are allocated.")
    entry = ProducerIdBlockEntry(broker_id, first, PRODUCER_ID_BLOCK_SIZE)
    return ControllerDecision((Write(entry),), ProducerIdBlock(first))


def check_broker_epoch(state: ClusterState, broker_id: int, broker_epoch: int) -> None:
    """Raises KafkaError(BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH) unless this registration is current."""
    broker = state.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {broker_id} is not registered.")
    if broker.broker_epoch != broker_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Broker {broker_id} has epoch {broker.broker_epoch}, not {broker_epoch}.",
        )


def controlled_shutdown(
    state: ClusterState, context: Context, broker_id: int, broker_epoch: int
) -> DecisionSteps[tuple[TopicPartition, ...]]:
    """Moves leadership away from a broker and removes it from ISRs. The reply names the partitions that it
    still leads because no other replica is in sync. The broker may ask again.

    The broker is not elected for the rest of this registration. In the partitions whose ISR it left, the
    leader epoch has grown, so its fetches no longer count and it cannot join the ISR again.
    """
    check_broker_epoch(state, broker_id, broker_epoch)
    records: list[Record] = [NoteShutdown(broker_id, broker_epoch)]
    remaining: list[TopicPartition] = []
    for topic, partition, stored in state.all_partitions():
        yield
        if broker_id not in stored.state.isr:
            continue
        entry = _without(state, context, topic.assignments[partition], stored, broker_id)
        if entry is not None:
            records.append(Write(entry, stored.mod_revision))
        elif stored.state.leader == broker_id:
            remaining.append(TopicPartition(topic.name, partition))
    return ControllerDecision(tuple(records), tuple(remaining))


def _without(
    state: ClusterState,
    context: Context,
    replicas: tuple[int, ...],
    stored: StoredPartition,
    broker_id: int,
) -> PartitionStateEntry | None:
    """Returns the state without the broker, or None if no other replica could lead."""
    before = stored.state
    roll = call_roll(state, replicas, stored)
    successors = [
        r for r in replicas if r in before.isr and r in roll.steady - roll.stopping and r != broker_id
    ]
    if before.leader != broker_id and before.leader in roll.steady:
        leader = before.leader
    elif successors:
        leader = successors[0]
    else:
        return None
    isr = tuple(replica for replica in before.isr if replica in roll.steady and replica != broker_id)
    min_isr = min_isr_without_elr(state, context, before.topic, len(replicas))
    return before._replace(
        leader=leader,
        leader_epoch=before.leader_epoch + 1,
        isr=isr,
        controller_epoch=context.controller_epoch,
        elr=eligible_after(before, isr, roll.suspect, min_isr),
        last_known_leader=-1,
    )
