"""Admin requests that the controller decides. They are forwarded unchanged, and answered in their own form if
the controller cannot be reached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brokerlab.in_memory_broker import InMemoryBroker
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import (
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    create_partitions,
    create_topics,
    delete_topics,
    describe_client_quotas,
    elect_leaders,
    incremental_alter_configs,
    list_partition_reassignments,
    unregister_broker,
    update_features,
)

TOPIC_RESOURCE = 2
ENTITY = alter_client_quotas.EntityData("user", "u")

# API, version, request, and the place of its error codes in the response
FORWARDED: list[tuple[ApiKey, int, Any, Callable[[Any], Any]]] = [
    (
        ApiKey.CREATE_TOPICS,
        7,
        create_topics.CreateTopicsRequest(
            [create_topics.CreatableTopic("t"), create_topics.CreatableTopic("u")]
        ),
        lambda answer: {topic.name: topic.error_code for topic in answer.topics},
    ),
    (
        ApiKey.DELETE_TOPICS,
        6,
        delete_topics.DeleteTopicsRequest(
            [delete_topics.DeleteTopicState("t"), delete_topics.DeleteTopicState("u")]
        ),
        lambda answer: {topic.name: topic.error_code for topic in answer.responses},
    ),
    (
        ApiKey.DELETE_TOPICS,
        5,
        delete_topics.DeleteTopicsRequest(topic_names=["t", "u"]),
        lambda answer: {topic.name: topic.error_code for topic in answer.responses},
    ),
    (
        ApiKey.CREATE_PARTITIONS,
        3,
        create_partitions.CreatePartitionsRequest(
            [create_partitions.CreatePartitionsTopic("t", 4), create_partitions.CreatePartitionsTopic("u", 4)]
        ),
        lambda answer: {topic.name: topic.error_code for topic in answer.results},
    ),
    (
        ApiKey.ALTER_CONFIGS,
        2,
        alter_configs.AlterConfigsRequest(
            [alter_configs.AlterConfigsResource(TOPIC_RESOURCE, name) for name in ("t", "u")]
        ),
        lambda answer: {resource.resource_name: resource.error_code for resource in answer.responses},
    ),
    (
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        incremental_alter_configs.IncrementalAlterConfigsRequest(
            [incremental_alter_configs.AlterConfigsResource(TOPIC_RESOURCE, name) for name in ("t", "u")]
        ),
        lambda answer: {resource.resource_name: resource.error_code for resource in answer.responses},
    ),
    (
        ApiKey.ELECT_LEADERS,
        2,
        elect_leaders.ElectLeadersRequest(
            0, [elect_leaders.TopicPartitions("t", [0]), elect_leaders.TopicPartitions("u", [0])]
        ),
        lambda answer: {t.topic: t.partition_result[0].error_code for t in answer.replica_election_results},
    ),
    (
        ApiKey.ALTER_CLIENT_QUOTAS,
        1,
        alter_client_quotas.AlterClientQuotasRequest([alter_client_quotas.RequestEntryData([ENTITY])]),
        lambda answer: answer.entries[0].error_code,
    ),
    (
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        1,
        describe_client_quotas.DescribeClientQuotasRequest(),
        lambda answer: answer.error_code,
    ),
    (
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        1,
        alter_partition_reassignments.AlterPartitionReassignmentsRequest(),
        lambda answer: answer.error_code,
    ),
    (
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        0,
        list_partition_reassignments.ListPartitionReassignmentsRequest(),
        lambda answer: answer.error_code,
    ),
    (
        ApiKey.UNREGISTER_BROKER,
        0,
        unregister_broker.UnregisterBrokerRequest(7),
        lambda answer: answer.error_code,
    ),
    (ApiKey.UPDATE_FEATURES, 2, update_features.UpdateFeaturesRequest(), lambda answer: answer.error_code),
]


@pytest.mark.parametrize(
    ("key", "version", "request_", "codes"), FORWARDED, ids=lambda value: getattr(value, "name", "")
)
@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (KafkaError(ErrorCode.NOT_CONTROLLER), ErrorCode.NOT_CONTROLLER),
        (KafkaError(ErrorCode.UNSUPPORTED_VERSION), ErrorCode.UNSUPPORTED_VERSION),
        (ConnectionError("gone"), ErrorCode.NOT_CONTROLLER),
    ],
    ids=["not-controller", "unsupported", "gone"],
)
def test_no_controller_can_be_reached(
    lab: InMemoryBroker,
    key: ApiKey,
    version: int,
    request_: Any,
    codes: Callable[[Any], Any],
    raised: Exception,
    code: ErrorCode,
) -> None:
    def fail(_: Any) -> Any:
        raise raised

    lab.controller.answer = fail
    answered = codes(lab.call(request_, version))
    assert answered == (dict.fromkeys(("t", "u"), code) if isinstance(answered, dict) else code)
    ((forwarded_key, forwarded),) = lab.controller.forwarded
    assert (forwarded_key, forwarded.message) == (key, request_)
    assert (forwarded.api_version, forwarded.client_id, forwarded.host) == (version, "test", "127.0.0.1")


def test_a_new_topics_settings_are_in_the_response_from_v5_on(lab: InMemoryBroker) -> None:
    topics = [
        create_topics.CreatableTopic(
            "t", 1, 1, configs=[create_topics.CreatableTopicConfig("retention.ms", "5")]
        ),
        create_topics.CreatableTopic("refused", 1, 1),
    ]
    lab.controller.answer = lambda _: create_topics.CreateTopicsResponse(
        topics=[
            create_topics.CreatableTopicResult("t", num_partitions=1, replication_factor=1),
            create_topics.CreatableTopicResult("refused", error_code=ErrorCode.TOPIC_ALREADY_EXISTS),
        ]
    )
    made, refused = lab.call(create_topics.CreateTopicsRequest(topics), 7).topics
    configs = {config.name: config for config in made.configs}
    assert list(configs) == sorted(configs)
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5", 1)
    assert configs["segment.bytes"].config_source == 5
    assert refused.configs == []
    assert lab.call(create_topics.CreateTopicsRequest(topics), 2).topics[0].configs == []
