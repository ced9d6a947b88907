"""The answers of tidelog's clusters of three that differ from those of Kafka, with the reasons."""

from __future__ import annotations

from typing import Final

from answerslab.differences import LOG_START, SAYS_WHY, Difference
from answerslab.questions_places import ANY, COORDINATOR, FOLLOWER, LEADER, NOT_COORDINATOR, ONE_DOWN, OTHER

_NOT_REGISTERED: Final = (
    "A broker that is down is not registered in etcd, so it gets no new replicas and is not listed"
)
_LAST_OF_ISR: Final = (
    "The last in-sync replica stays in the ISR, as in Kafka without eligible leader replicas"
)
_ONLY_COPY: Final = "tidelog does not remove a broker that alone has acknowledged records"
_SHARE_GROUP: Final = "Kafka does not look whether the share group exists and which broker coordinates it"


def _down(api: str, case: str, versions: str, reason: str) -> Difference:
    return Difference(api, f"{ANY} {ONE_DOWN}: {case}", versions, reason)


DIFFERENCES_OF_PLACES: Final = (
    _down("AlterPartitionReassignments", "cancelled", "0-1", _NOT_REGISTERED),
    _down("AlterPartitionReassignments", "to the broker that is down", "0-1", _NOT_REGISTERED),
    _down("CreatePartitions", "assigned to the broker that is down and another", "0-3", _NOT_REGISTERED),
    _down("CreateTopics", "assigned to the broker that is down and another", "2-7", _NOT_REGISTERED),
    _down("CreateTopics", "more replicas than live brokers", "2-7", _NOT_REGISTERED),
    _down("DescribeCluster", "fenced brokers", "2", _NOT_REGISTERED),
    Difference("DescribeShareGroupOffsets", f"{COORDINATOR}: valid", "0-1", _SHARE_GROUP),
    Difference("DescribeShareGroupOffsets", f"{NOT_COORDINATOR}: valid", "0-1", _SHARE_GROUP),
    _down("DescribeTopicPartitions", "valid", "0", _LAST_OF_ISR),
    _down("ListPartitionReassignments", "all", "0", _NOT_REGISTERED),
    _down("ListPartitionReassignments", "to the broker that is down", "0", _NOT_REGISTERED),
    _down("Metadata", "valid", "1-13", _LAST_OF_ISR),
    Difference("Produce", f"{LEADER} {ONE_DOWN}: too few replicas", "5-13", LOG_START),
    *(
        Difference("ShareFetch", f"{place}: unknown topic", "1-2", SAYS_WHY)
        for place in (LEADER, FOLLOWER, OTHER)
    ),
    _down("UnregisterBroker", "broker that is down", "0", _ONLY_COPY),
    _down("UnregisterBroker", "broker that is gone", "0", _ONLY_COPY),
)
