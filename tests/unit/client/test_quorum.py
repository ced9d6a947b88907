"""The controllers of a cluster, from the answers of a broker."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from tidelog.client.admin.brokers import Quorum, describe_quorum
from tidelog.client.cluster import BrokerConnection, Cluster
from tidelog.client.errors import ConnectionLostError, NoAnswerError, UnsupportedApiError
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.describe_quorum import (
    DescribeQuorumResponse,
    ReplicaState,
    ResponsePartitionData,
    ResponseTopicData,
)


def told(answer: DescribeQuorumResponse | Exception) -> Quorum:
    connection = Mock(BrokerConnection)
    connection.call.side_effect = [answer]
    return describe_quorum(Mock(Cluster, any_broker=lambda: connection, timeout_s=30.0))


def answer_with(leader: int, voters: list[int], error: int = 0) -> DescribeQuorumResponse:
    states = [ReplicaState(replica_id=voter) for voter in voters]
    partition = ResponsePartitionData(0, error, None, leader, 7, 100, states)
    return DescribeQuorumResponse(0, None, [ResponseTopicData("__cluster_metadata", [partition])])


def test_the_active_controller_and_the_others() -> None:
    found = told(answer_with(2, [3, 1, 2]))
    assert (found, found.active_text) == (Quorum(2, (1, 2, 3)), "2")


def test_without_an_active_controller() -> None:
    assert told(answer_with(-1, [1, 2])).active_text == "none"


@pytest.mark.parametrize(
    "answer",
    [
        answer_with(-1, [], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        DescribeQuorumResponse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None, []),
        NoAnswerError("no answer from h:1 in 30 s"),
        UnsupportedApiError("h:1 does not serve DescribeQuorum"),
    ],
)
def test_an_unknown_controller_is_not_guessed(answer: DescribeQuorumResponse | Exception) -> None:
    found = told(answer)
    assert (found.active_id, found.controller_ids, found.active_text) == (None, (), "unknown")
    assert found.unknown


def test_a_dead_broker_is_an_error() -> None:
    with pytest.raises(ConnectionLostError):
        told(ConnectionLostError("the connection to h:1 was lost"))
