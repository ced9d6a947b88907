"""DescribeQuorum tells who the controllers are, and invents nothing."""

from __future__ import annotations

from clusterlab.controllers import Core
from tidelog.controller.core.decision import ControllerDecision, Write
from tidelog.controller.core.features_and_quorum import describe_quorum
from tidelog.controller.core.state import ChangeSet
from tidelog.metadata.entries import CandidateEntry, ControllerEntry
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    RequestPartitionData,
    RequestTopicData,
)

MakeCore = type[Core]


def test_the_voters_are_the_controllers_and_brokers_are_no_observers(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    entries = (ControllerEntry(11), CandidateEntry(10), CandidateEntry(11), CandidateEntry(12))
    cluster.write(ControllerDecision(tuple(map(Write, entries)), None))
    topics = [
        RequestTopicData("__cluster_metadata", [RequestPartitionData(0), RequestPartitionData(1)]),
        RequestTopicData("t", [RequestPartitionData(0)]),
    ]
    request = DescribeQuorumRequest(topics)
    answer = cluster.request(describe_quorum, request, 2)
    quorum, other = answer.topics[0].partitions
    assert (quorum.leader_id, quorum.leader_epoch) == (11, cluster.context().controller_epoch)
    assert [voter.replica_id for voter in quorum.current_voters] == [10, 11, 12]
    assert {voter.log_end_offset for voter in quorum.current_voters} == {quorum.high_watermark}
    assert quorum.high_watermark == cluster.state.latest_revision > 0
    assert quorum.observers == []
    assert [node.node_id for node in answer.nodes] == [10, 11, 12]
    assert (
        other.error_code == answer.topics[1].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    revision = cluster.state.latest_revision + 1
    cluster.state.apply_removal(CandidateEntry(12).key, revision, ChangeSet())
    again = cluster.request(describe_quorum, request, 2).topics[0].partitions[0]
    assert [voter.replica_id for voter in again.current_voters] == [10, 11]
