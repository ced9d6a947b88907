"""Puts a Fetch answer together: small ranges are read into it, larger ones leave by sendfile."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import structlog
from tidelog.broker.page_cache import is_resident
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.fetch import FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint, PartitionData

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.log.file_range import FileRange

INLINE_RANGE_BYTES: Final = 32 * 1024
"""A range up to this size is read into the answer if it is in memory: cheaper than a sendfile of its own."""
INLINE_ANSWER_BYTES: Final = 64 * 1024
"""So many bytes of an answer are read at most; beyond it even small ranges leave by sendfile, so that
waiting answers take no memory.
"""

MOVED: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
)
"""Errors that come with the leader that this broker knows of."""

_log = structlog.get_logger(__name__)


class AnswerRecords:
    """How the ranges of one answer go into it."""

    __slots__ = ("_inline_left",)

    def __init__(self) -> None:
        self._inline_left = INLINE_ANSWER_BYTES

    def of(self, file_range: FileRange) -> bytes | FileRange | None:
        """The bytes of a small range, which is released, or the range for `sendfile`. None: it can't be read
        (KAFKA_STORAGE_ERROR).
        """
        size = file_range.length
        if (
            size > INLINE_RANGE_BYTES
            or size > self._inline_left
            or not is_resident(file_range.fileno(), file_range.position + size - 1)
        ):
            return file_range
        self._inline_left -= size
        try:
            return file_range.read()
        except OSError as error:
            _log.error("records can't be read", range=repr(file_range), reason=str(error))
            return None
        finally:
            file_range.release()


class FetchAnswer:
    """`topics` is the answer's list of topics."""

    __slots__ = ("_records", "_topics")

    def __init__(self) -> None:
        self._topics: dict[object, FetchableTopicResponse] = {}
        self._records = AnswerRecords()

    @property
    def topics(self) -> list[FetchableTopicResponse]:
        return list(self._topics.values())

    def add(self, topic: str, topic_id: uuid.UUID, data: PartitionData, file_range: FileRange | None) -> None:
        """The topic is named as the request did, by name or by id."""
        if file_range is not None:
            records = self._records.of(file_range)
            if records is None:
                data.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            else:
                data.records = records  # of a range the encoder needs only its len()
        key: object = topic or topic_id.int
        of_topic = self._topics.get(key)
        if of_topic is None:
            of_topic = self._topics[key] = FetchableTopicResponse(topic, topic_id, [])
        of_topic.partitions.append(data)


def current_leader(broker: Broker, topic: str, partition: int) -> LeaderIdAndEpoch | None:
    """What a client that came to the wrong place is told; None if nothing is known of the partition."""
    known = broker.leader_of(topic, partition)
    return None if known is None else LeaderIdAndEpoch(*known)


def node_endpoints(
    broker: Broker, topics: Iterable[FetchableTopicResponse], listener_name: str
) -> list[NodeEndpoint]:
    """The addresses of the leaders that the answer names (KIP-951), so that a client needn't ask for them."""
    leaders = {part.current_leader.leader_id for t in topics for part in t.partitions if part.current_leader}
    return [
        NodeEndpoint(node.broker_id, endpoint.host, endpoint.port, node.rack)
        for node, endpoint in broker.metadata.nodes(leaders, listener_name)
    ]
