"""DescribeQuorum v0 to v2: describes the controller as if it were a KRaft quorum, for Kafka's tools and
dashboards.

Deviation: there is no Raft quorum, because the metadata store holds the metadata. The response shows the
elected controller as the only voter and the other brokers as observers. Log end offset and high watermark are
the number of metadata changes that this broker has received.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    ReplicaState,
    ResponsePartitionData,
    ResponseTopicData,
)

if TYPE_CHECKING:
    from tidelog.broker.controller_connection import ControllerConnection
    from tidelog.broker.metadata_view import MetadataView
    from tidelog.broker.request import RequestContext
    from tidelog.timing.clock import Clock

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_PARTITION: Final = 0


class DescribeQuorumHandler:
    """Answers DescribeQuorum."""

    def __init__(self, metadata: MetadataView, controller: ControllerConnection, clock: Clock) -> None:
        self._metadata = metadata
        self._controller = controller
        self._clock = clock

    def handle(self, request: DescribeQuorumRequest, context: RequestContext) -> DescribeQuorumResponse:
        is_known = False
        topics = []
        for topic in request.topics:
            partitions = []
            for asked in topic.partitions:
                if topic.topic_name == METADATA_TOPIC and asked.partition_index == METADATA_PARTITION:
                    is_known = True
                    partitions.append(self._quorum())
                else:
                    partitions.append(
                        ResponsePartitionData(
                            asked.partition_index,
                            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                            "There is no quorum for this partition",
                        )
                    )
            topics.append(ResponseTopicData(topic.topic_name, partitions))
        return DescribeQuorumResponse(
            error_message=None, topics=topics, nodes=self._nodes() if is_known else []
        )

    def _quorum(self) -> ResponsePartitionData:
        metadata = self._metadata
        leader = self._controller.id_for_clients
        now_ms = self._clock.wall_ms()
        states = {
            broker_id: ReplicaState(
                replica_id=broker_id,
                log_end_offset=metadata.version,
                last_fetch_timestamp=now_ms,
                last_caught_up_timestamp=now_ms,
            )
            for broker_id in {leader, *metadata.brokers}
        }
        return ResponsePartitionData(
            partition_index=METADATA_PARTITION,
            error_message=None,
            leader_id=leader,
            leader_epoch=metadata.controller_epoch,
            high_watermark=metadata.version,
            current_voters=[states.pop(leader)],
            observers=list(states.values()),
        )

    def _nodes(self) -> list[Node]:
        """Returns the address of the voter."""
        leader = self._metadata.brokers.get(self._controller.id_for_clients)
        if leader is None:
            return []
        listeners = [
            Listener(endpoint.listener_name, endpoint.host, endpoint.port) for endpoint in leader.endpoints
        ]
        return [Node(leader.broker_id, listeners)]
