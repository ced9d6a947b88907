"""What brokers ask of the controller: forwarded admin requests and producer id blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

from tidelog.model.topics import TopicPartition

# How many producer ids one block holds, as in Kafka's ProducerIdsBlock.
PRODUCER_ID_BLOCK_SIZE: Final = 1000


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """A client's request as the broker decoded and authorised it (the idea of Kafka's Envelope, KIP-590)."""

    api_version: int
    message: Any  # the request dataclass of tidelog.wire.messages.<api>
    principal: str = "User:ANONYMOUS"
    client_id: str | None = None
    host: str = ""


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """Producer ids `first` .. `first + count - 1`, which no one else is ever given."""

    first: int
    count: int = PRODUCER_ID_BLOCK_SIZE


class ControllerApi(Protocol):
    """The active controller. Every call raises KafkaError(NOT_CONTROLLER) while the one called isn't
    (retriable).
    """

    async def handle(self, api_key: int, request: ForwardedRequest) -> Any:
        """The response dataclass of that API (its `throttle_time_ms` left 0). Served:

        CreateTopics, DeleteTopics, CreatePartitions, AlterConfigs, IncrementalAlterConfigs, ElectLeaders,
        AlterPartitionReassignments, ListPartitionReassignments, UpdateFeatures, AlterClientQuotas,
        DescribeClientQuotas. Refusals stand in the response, as in Kafka; anything else raises
        KafkaError(UNSUPPORTED_VERSION). The answer comes once every live broker concerned has applied the
        change, or the request's own time-out has passed (its `timeout_ms`; then REQUEST_TIMED_OUT where the
        API can say it).
        """
        ...

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> tuple[TopicPartition, ...]:
        """Before a broker stops: moves what it leads to others and takes it out of every ISR in which it is
        not alone. Answers what it still leads, for want of another. It is not elected again in this life.
        STALE_BROKER_EPOCH from another life.
        """
        ...

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        """A block of its own, stored before it is answered. STALE_BROKER_EPOCH from a broker that was since
        reborn.
        """
        ...
