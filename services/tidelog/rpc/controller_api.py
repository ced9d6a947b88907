"""The calls of brokers to the controller: forwarded admin requests, producer id blocks and controlled
shutdown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from tidelog.model.acl import ANONYMOUS
from tidelog.model.topics import TopicPartition
from tidelog.wire.schema import Message

# Number of producer ids in a block, as in Kafka's ProducerIdsBlock.
PRODUCER_ID_BLOCK_SIZE: Final = 1000


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """A client's request that the broker has decoded and authorised, as in Kafka's Envelope (KIP-590)."""

    api_version: int
    message: Message  # the class in tidelog.wire.messages depends on the API
    principal: str = ANONYMOUS
    client_id: str | None = None
    host: str = ""


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """The producer ids from `first` to `first + count - 1`. Each id is in only one block."""

    first: int
    count: int = PRODUCER_ID_BLOCK_SIZE


class ControllerApi(Protocol):
    """The active controller. Every call raises the retriable KafkaError(NOT_CONTROLLER) if the controller is
    not active.
    """

    async def handle(self, api_key: int, request: ForwardedRequest) -> Message:
        """Returns the response to a request, with `throttle_time_ms` 0. Its class depends on the API.

        The controller serves CreateTopics, DeleteTopics, CreatePartitions, AlterConfigs,
        IncrementalAlterConfigs, ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments,
        UpdateFeatures, AlterClientQuotas and DescribeClientQuotas. Other APIs raise
        KafkaError(UNSUPPORTED_VERSION). As in Kafka, the response contains the errors of single topics or
        entities. The call returns when every live broker concerned has applied the change, or after the
        request's `timeout_ms`. After a timeout, the response has REQUEST_TIMED_OUT if the API provides for
        it.
        """
        ...

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> tuple[TopicPartition, ...]:
        """Moves the leaders of a broker that is about to stop, and removes it from every ISR that has other
        members.

        Returns the partitions that the broker still leads because no other replica may lead. The controller
        does not elect this broker epoch again. Raises KafkaError(STALE_BROKER_EPOCH) if the broker has
        registered again.
        """
        ...

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        """Returns a new block, which is stored before the call returns.

        Raises KafkaError(STALE_BROKER_EPOCH) if the broker has registered again.
        """
        ...
