"""Producer ids are handed to brokers in blocks of a thousand, none twice (KIP-730)."""

from __future__ import annotations

from typing import Final

from tidelog.controller.core.context import Context
from tidelog.controller.core.records import Decision, Write
from tidelog.controller.core.state import ClusterState
from tidelog.metadata.entries import ProducerIdBlockEntry
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.controller_api import PRODUCER_ID_BLOCK_SIZE, ProducerIdBlock

_MAX_PRODUCER_ID: Final = 2**63 - 1


def allocate_producer_ids(
    state: ClusterState, context: Context, broker_id: int, broker_epoch: int
) -> Decision[ProducerIdBlock]:
    check_broker_epoch(state, broker_id, broker_epoch)
    first = state.next_producer_id
    if first > _MAX_PRODUCER_ID - PRODUCER_ID_BLOCK_SIZE:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "All producer ids have been handed out.")
    entry = ProducerIdBlockEntry(broker_id, first, PRODUCER_ID_BLOCK_SIZE)
    return Decision((Write(entry),), ProducerIdBlock(first))


def check_broker_epoch(state: ClusterState, broker_id: int, broker_epoch: int) -> None:
    """Raises KafkaError(BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH)."""
    broker = state.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {broker_id} is not registered.")
    if broker.broker_epoch != broker_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Broker {broker_id} has epoch {broker.broker_epoch} by now, not {broker_epoch}.",
        )
