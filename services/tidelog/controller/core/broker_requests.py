"""The requests that concern one broker: blocks of producer ids (KIP-730), controlled shutdown, and
UnregisterBroker (KIP-631), which removes a dead broker from the cluster's state.

A live broker's registration is its lease, which ends when it stops, so nothing has to be removed to make the
cluster forget that it was alive. What stays behind are its own settings and its places in the ISRs and ELRs
of partitions without a leader. As in Kafka, the replicas that are assigned to it stay assigned; a
reassignment moves them. Unlike Kafka, the controller refuses to unregister a live broker, which would
register again at once, and a broker that alone has all acknowledged records of a partition.
"""

from __future__ import annotations

from typing import Final

from tidelog.controller.core.decision import (
    Context,
    ControllerDecision,
    DecisionSteps,
    Erase,
    NoteShutdown,
    Record,
    Steps,
    Write,
)
from tidelog.controller.core.elections import call_roll, eligible_after, min_isr_without_elr
from tidelog.controller.core.state import ClusterState, written
from tidelog.metadata.entries import (
    ProducerIdBlockEntry,
    broker_config_key,
    settled_suspect_key,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import PartitionState
from tidelog.rpc.controller_api import PRODUCER_ID_BLOCK_SIZE, ProducerIdBlock
from tidelog.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

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
    for partition in state.all_partitions():
        yield
        if broker_id not in partition.isr:
            continue
        after = _shut_down(state, context, partition, broker_id)
        if after is not None:
            records.append(written(after))
        elif partition.leader == broker_id:
            remaining.append(TopicPartition(partition.topic, partition.partition))
    return ControllerDecision(tuple(records), tuple(remaining))


def _shut_down(
    state: ClusterState, context: Context, before: PartitionState, broker_id: int
) -> PartitionState | None:
    """Returns the state without the broker, or None if no other replica could lead."""
    replicas = before.replicas
    roll = call_roll(state, before)
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
        last_known_elr=(),
    )


def unregister_broker(
    state: ClusterState, context: Context, request: UnregisterBrokerRequest, api_version: int
) -> DecisionSteps[UnregisterBrokerResponse]:
    """Refuses with BROKER_ID_NOT_REGISTERED, with INVALID_REQUEST if the broker is alive, and with
    ELIGIBLE_LEADERS_NOT_AVAILABLE if it alone has acknowledged records.
    """
    try:
        records = yield from _removal(state, context, request.broker_id)
    except KafkaError as error:
        return ControllerDecision(
            (), UnregisterBrokerResponse(error_code=error.code, error_message=str(error))
        )
    return ControllerDecision(tuple(records), UnregisterBrokerResponse(error_message=None))


def _removal(state: ClusterState, context: Context, broker_id: int) -> Steps[list[Record]]:
    if broker_id in state.brokers:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Broker {broker_id} is alive; stop it before you unregister it.",
        )
    keys = [broker_config_key(str(broker_id)), settled_suspect_key(broker_id)]
    records: list[Record] = [Erase(key) for key in keys if state.revision_of(key)]
    is_known = bool(records)
    for partition in state.all_partitions():
        yield
        if broker_id not in partition.replicas:
            continue
        is_known = True
        left = without_broker(partition, broker_id)
        if left is not None:
            records.append(written(left._replace(controller_epoch=context.controller_epoch)))
    if not is_known:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered"
        )
    return records


def without_broker(before: PartitionState, broker_id: int) -> PartitionState | None:
    """Returns the state of a partition without the broker, or None if the broker has no place in it."""
    isr = tuple(replica for replica in before.isr if replica != broker_id)
    elr = tuple(replica for replica in before.elr if replica != broker_id)
    last_known = tuple(replica for replica in before.last_known_elr if replica != broker_id)
    after = before._replace(isr=isr, elr=elr, last_known_elr=last_known)
    if after == before:
        return None
    if not isr and not elr and (before.isr or before.elr or not last_known):
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            f"Only broker {broker_id} has all acknowledged records of {before.topic}-{before.partition}. "
            "Start it again, elect another leader uncleanly, or delete the topic.",
        )
    return after
