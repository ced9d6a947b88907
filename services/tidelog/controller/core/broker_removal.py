"""UnregisterBroker (KIP-631): removes a dead broker from the cluster's state.

A live broker's registration is its lease, which ends when it stops, so nothing has to be removed to make the
cluster forget that it was alive. What stays behind are its own settings and its places in the ISRs and ELRs
of partitions without a leader. As in Kafka, the replicas that are assigned to it stay assigned; a
reassignment moves them.

Unlike Kafka, the controller refuses to remove a live broker, which would register again at once, and a broker
that alone has all acknowledged records of a partition.
"""

from __future__ import annotations

from tidelog.controller.core.decision import (
    Context,
    ControllerDecision,
    DecisionSteps,
    Erase,
    Record,
    Steps,
    Write,
)
from tidelog.controller.core.state import ClusterState, StoredPartition
from tidelog.metadata.entries import PartitionStateEntry, broker_config_key, settled_suspect_key
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import NO_LEADER
from tidelog.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


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
    for topic, partition, stored in state.all_partitions():
        yield
        if broker_id not in topic.assignments[partition]:
            continue
        is_known = True
        left = _without(stored, broker_id)
        if left is not None:
            entry = left._replace(controller_epoch=context.controller_epoch)
            records.append(Write(entry, stored.mod_revision))
    if not is_known:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered"
        )
    return records


def _without(stored: StoredPartition, broker_id: int) -> PartitionStateEntry | None:
    """Returns the state of a partition without the broker, or None if the broker has no place in it."""
    before = stored.state
    isr = tuple(replica for replica in before.isr if replica != broker_id)
    elr = tuple(replica for replica in before.elr if replica != broker_id)
    last_known = NO_LEADER if before.last_known_leader == broker_id else before.last_known_leader
    after = before._replace(isr=isr, elr=elr, last_known_leader=last_known)
    if after == before:
        return None
    if not isr and not elr and (before.isr or before.elr or last_known == NO_LEADER):
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            f"Only broker {broker_id} has all acknowledged records of {before.topic}-{before.partition}. "
            "Start it again, elect another leader uncleanly, or delete the topic.",
        )
    return after
