"""The events and effects of a producer's core: what it is told, and what it asks its shell to do."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.client.core.cluster_view import MetadataReceived, PartitionLeader
from tidelog.client.core.producer_batch import ProducerBatch
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition


class PartitionAnswer(NamedTuple):
    """The broker's answer about one batch."""

    error_code: int
    base_offset: int
    log_append_time_ms: int
    message: str | None
    leader: PartitionLeader | None
    """The current leader, if the broker names it in an error."""


class ProduceAnswered(NamedTuple):
    """A response arrived. With acks=0, the shell sends this event when the request is written."""

    request_id: int
    answers: dict[TopicPartition, PartitionAnswer]


class ProduceFailed(NamedTuple):
    """No response arrived. `was_written` says whether the broker may have received the request."""

    request_id: int
    was_written: bool
    reason: str
    is_permanent: bool = False
    """Whether a repetition is useless, as after a refused login."""


class ProducerIdReceived(NamedTuple):
    producer_id: int
    producer_epoch: int


class ProducerIdRefused(NamedTuple):
    error: KafkaError


class MetadataFailed(NamedTuple):
    """No broker answered a Metadata request."""


Event = (
    ProduceAnswered
    | ProduceFailed
    | ProducerIdReceived
    | ProducerIdRefused
    | MetadataReceived
    | MetadataFailed
)


class SendProduce(NamedTuple):
    """Send these batches to the broker, after all earlier requests to it."""

    request_id: int
    node_id: int
    batches: tuple[ProducerBatch, ...]

    @property
    def unfinished(self) -> tuple[ProducerBatch, ...]:
        """The batches to write. The others ended while the request waited for a connection, because of
        `delivery.timeout.ms` or an abort, and have no records any more.
        """
        return tuple(batch for batch in self.batches if not batch.is_done)


class RequestMetadata(NamedTuple):
    """Ask any broker for these topics. It may create those that records wait for."""

    known: tuple[str, ...]
    wanted: tuple[str, ...]


class RequestProducerId(NamedTuple):
    """Send InitProducerId without a transactional id."""


class CompleteBatch(NamedTuple):
    """Tell the callers the outcome of a batch."""

    batch: ProducerBatch


Effect = SendProduce | RequestMetadata | RequestProducerId | CompleteBatch
