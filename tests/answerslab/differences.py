"""The answers of tidelog that differ from those of Kafka, with the reasons, from one broker and from three.

The test refuses a difference that is missing here, and an entry without a difference.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from answerslab.questions_places import ANY, COORDINATOR, FOLLOWER, LEADER, NOT_COORDINATOR, ONE_DOWN, OTHER

SAYS_WHY: Final = "tidelog names the fault, where Kafka reports an unknown error or ignores it"
_ANSWERS: Final = "tidelog answers with the error, where Kafka closes the connection or does not answer"
_EMPTY_HOST: Final = "Kafka keeps an ACL with an empty host, which never applies"
_INVENTED: Final = "Kafka invents an id for a topic that it does not create"
_GROUP: Final = "A group needs a name, and Kafka would write markers for one without a name"
_VERSION_4: Final = "Version 4 does not know TRANSACTION_ABORTABLE, which Kafka sends nevertheless"
_NO_TYPE: Final = "Kafka describes nothing; tidelog says that there is no such type"
_NOTHING: Final = "Kafka reports an unknown error for the whole request and no brokers"
LOG_START: Final = "Clients look at the log start offset only after UNKNOWN_PRODUCER_ID"
_NO_TLS: Final = "No listener of this broker uses TLS, so tidelog does not read the file"
_REFUSED: Final = "The change has no effect, or only at the start, and would promise safety, so it is refused"
_ELR: Final = "Kafka keeps min.insync.replicas as a dynamic setting while it has eligible leader replicas"
_ITEMS: Final = "Kafka repeats the error of the request for each item; clients read the error of the request"
_ISOLATION: Final = "Kafka reports an unknown error; tidelog reads uncommitted records"
_RETRIES: Final = "Both errors make the client look for the coordinator again"
_QUORUM: Final = "The controllers of tidelog are no listeners of brokers"
_COORDINATOR: Final = "Coordinators do not look which topics exist; the producer's write fails"
_ONCE: Final = (
    "Kafka describes a group as often as the request names it; clients look for groups by their names"
)
_LOGIN: Final = "A client that has not logged in may not write markers (ADR 0035)"
_NOT_REGISTERED: Final = (
    "A broker that is down is not registered in etcd, so it gets no new replicas and is not listed"
)
_LAST_OF_ISR: Final = (
    "The last in-sync replica stays in the ISR, as in Kafka without eligible leader replicas"
)
_ONLY_COPY: Final = "tidelog does not remove a broker that alone has acknowledged records"
_SHARE_GROUP: Final = "Kafka does not look whether the share group exists and which broker coordinates it"


class Difference(NamedTuple):
    """The answers to one case of an API in some versions, such as `0-3,5`."""

    api: str
    case: str
    versions: str
    reason: str


DIFFERENCES: Final = (
    Difference("AddOffsetsToTxn", "empty group", "0-4", _GROUP),
    Difference("AddPartitionsToTxn", "only verified", "4", _VERSION_4),
    Difference("AddPartitionsToTxn", "unknown topic", "0-5", _COORDINATOR),
    Difference("AlterClientQuotas", "a type twice", "0-1", SAYS_WHY),
    Difference("AlterConfigs", "all brokers", "0-2", _ELR),
    Difference("CreateAcls", "any operation", "1-3", SAYS_WHY),
    Difference("CreateAcls", "any pattern", "1-3", SAYS_WHY),
    Difference("CreateAcls", "any permission", "1-3", SAYS_WHY),
    Difference("CreateAcls", "any type", "1-3", SAYS_WHY),
    Difference("CreateAcls", "empty host", "1-3", _EMPTY_HOST),
    Difference("CreateAcls", "matching pattern", "1-3", SAYS_WHY),
    Difference("CreateAcls", "unknown type", "1-3", _ANSWERS),
    Difference("CreateTopics", "only checked", "7", _INVENTED),
    Difference("CreateTopics", "with a setting, only checked", "7", _INVENTED),
    Difference("DeleteAcls", "unknown operation", "1-3", _ANSWERS),
    Difference("DeleteAcls", "unknown type", "1-3", _ANSWERS),
    Difference("DescribeAcls", "afterwards", "3", _EMPTY_HOST),
    Difference("DescribeAcls", "type that does not exist", "1-3", _NO_TYPE),
    Difference("DescribeAcls", "unknown operation", "1-3", _ANSWERS),
    Difference("DescribeAcls", "unknown pattern", "1-3", _ANSWERS),
    Difference("DescribeAcls", "unknown permission", "1-3", _ANSWERS),
    Difference("DescribeAcls", "unknown type", "1-3", _ANSWERS),
    Difference("DescribeConfigs", "min.insync.replicas", "1-4", _ELR),
    Difference("DescribeGroups", "a group twice", "0-6", _ONCE),
    Difference("DescribeQuorum", "trailing bytes", "2", _QUORUM),
    Difference("DescribeQuorum", "valid", "2", _QUORUM),
    Difference("DescribeUserScramCredentials", "unauthorized", "0", _ITEMS),
    Difference("Fetch", "isolation level that does not exist", "4-18", _ISOLATION),
    Difference("IncrementalAlterConfigs", "dynamic config.providers", "1", _REFUSED),
    Difference("IncrementalAlterConfigs", "dynamic cordoned.log.dirs", "1", _REFUSED),
    Difference("IncrementalAlterConfigs", "dynamic num.recovery.threads.per.data.dir", "1", _REFUSED),
    Difference("IncrementalAlterConfigs", "dynamic principal.builder.class", "1", _REFUSED),
    Difference("IncrementalAlterConfigs", "dynamic sasl.kerberos.principal.to.local.rules", "1", _REFUSED),
    Difference("IncrementalAlterConfigs", "dynamic ssl.endpoint.identification.algorithm", "1", _REFUSED),
    Difference("IncrementalAlterConfigs", "dynamic ssl.keymanager.algorithm", "1", _REFUSED),
    Difference("IncrementalAlterConfigs", "dynamic ssl.keystore.location", "1", _NO_TLS),
    Difference("IncrementalAlterConfigs", "dynamic ssl.keystore.type", "1", _NO_TLS),
    Difference("IncrementalAlterConfigs", "dynamic ssl.provider", "1", _REFUSED),
    Difference("IncrementalAlterConfigs", "dynamic ssl.secure.random.implementation", "1", _REFUSED),
    Difference("IncrementalAlterConfigs", "dynamic ssl.trustmanager.algorithm", "1", _REFUSED),
    Difference("IncrementalAlterConfigs", "dynamic ssl.truststore.location", "1", _NO_TLS),
    Difference("IncrementalAlterConfigs", "dynamic ssl.truststore.type", "1", _NO_TLS),
    Difference("IncrementalAlterConfigs", "operation that does not exist", "0-1", SAYS_WHY),
    Difference("ListOffsets", "isolation level that does not exist", "2-11", _ISOLATION),
    Difference("ListPartitionReassignments", "unauthorized", "0", _ITEMS),
    Difference("Metadata", "null name without id", "12-13", _NOTHING),
    Difference("Produce", "null records", "3-13", _ANSWERS),
    Difference("Produce", "stale producer epoch", "5-13", LOG_START),
    Difference("TxnOffsetCommit", "no coordinator", "0-5", _RETRIES),
    Difference("WriteTxnMarkers", "trailing bytes", "1-2", _LOGIN),
    Difference("WriteTxnMarkers", "unknown partition", "1-2", _LOGIN),
    Difference("WriteTxnMarkers", "unknown topic", "1-2", _LOGIN),
    Difference("WriteTxnMarkers", "valid", "1-2", _LOGIN),
)


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
