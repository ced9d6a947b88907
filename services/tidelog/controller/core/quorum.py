"""DescribeQuorum (KIP-595, KIP-836): the controllers as the voters for one elected role.

tidelog has no log of metadata that brokers replicate: all controllers read the same metadata store, and the
one that holds the key `/controller` is active. So the voters are the controllers that have a lease now, the
leader is the active one, the epoch is the controller epoch, and there are no observers. Every controller's
log ends at the store's revision, because a standby reads the whole store when it is elected. The times of
standbys are unknown (-1).
"""

from __future__ import annotations

from typing import Final

from tidelog.controller.core.decision import Context, ControllerDecision
from tidelog.controller.core.state import ClusterState
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Node,
    ReplicaState,
    ResponsePartitionData,
    ResponseTopicData,
)

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_PARTITION: Final = 0
_UNKNOWN_TIME: Final = -1


def describe_quorum(
    state: ClusterState, context: Context, request: DescribeQuorumRequest, api_version: int
) -> ControllerDecision[DescribeQuorumResponse]:
    """Describes the only quorum. Other partitions get UNKNOWN_TOPIC_OR_PARTITION."""
    topics = []
    is_described = False
    for topic in request.topics:
        partitions = []
        for asked in topic.partitions:
            if topic.topic_name == METADATA_TOPIC and asked.partition_index == METADATA_PARTITION:
                is_described = True
                partitions.append(_quorum(state, context))
            else:
                partitions.append(
                    ResponsePartitionData(
                        asked.partition_index,
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        "There is no quorum for this partition",
                    )
                )
        topics.append(ResponseTopicData(topic.topic_name, partitions))
    # The controllers have no listener for Kafka's protocol: brokers forward requests to them.
    nodes = [Node(controller_id) for controller_id in _voters(state)] if is_described else []
    return ControllerDecision((), DescribeQuorumResponse(error_message=None, topics=topics, nodes=nodes))


def _voters(state: ClusterState) -> list[int]:
    return sorted({state.active_controller_id, *state.controllers})


def _quorum(state: ClusterState, context: Context) -> ResponsePartitionData:
    leader = state.active_controller_id
    return ResponsePartitionData(
        partition_index=METADATA_PARTITION,
        error_message=None,
        leader_id=leader,
        leader_epoch=context.controller_epoch,
        high_watermark=state.latest_revision,
        current_voters=[
            ReplicaState(
                replica_id=controller_id,
                log_end_offset=state.latest_revision,
                last_fetch_timestamp=context.now_ms if controller_id == leader else _UNKNOWN_TIME,
                last_caught_up_timestamp=context.now_ms if controller_id == leader else _UNKNOWN_TIME,
            )
            for controller_id in _voters(state)
        ],
    )
