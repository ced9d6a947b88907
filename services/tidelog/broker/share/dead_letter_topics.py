"""Finds the dead letter topics of share groups, checks that they may be used, and creates them on demand.

The rules are those of KIP-1191 and Kafka's `ShareGroupDLQValidator`. Whoever may write to a topic of a group
can bring its records into the group's dead letter topic. Therefore the administrator decides by the prefix,
and by a setting of the topic, which topics may be used.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

import structlog

from tidelog.broker.cluster.current_settings import CurrentSettings
from tidelog.broker.cluster.metadata_view import MetadataView
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.broker_commands import TopicState
from tidelog.rpc.controller_api import ControllerApi, ForwardedRequest
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

TIMEOUT_MS: Final = 15_000
BROKERS_DEFAULT: Final = -1
CONFIGS: Final = {
    "errors.deadletterqueue.group.enable": "true",
    # The timestamp is the time of the copy, whatever log.message.timestamp.type says.
    "message.timestamp.type": "CreateTime",
}
"""The configs of a topic that is created on demand, as in Kafka."""

_log = structlog.get_logger(__name__)


class DeadLetterTopics:
    """The dead letter topics of all groups. Each is created at most once at a time."""

    def __init__(self, settings: CurrentSettings, metadata: MetadataView, controller: ControllerApi) -> None:
        self._settings = settings
        self._metadata = metadata
        self._controller = controller
        self._creating: dict[str, asyncio.Task[None]] = {}

    async def find(self, name: str) -> TopicState:
        """Returns a topic to which dead letters may be written. Creates it if that is allowed.

        Raises KafkaError with the reason, and ConnectionError if no controller can be reached.
        """
        settings = self._settings.broker
        prefix = settings.errors_deadletterqueue_topic_name_prefix
        if name.startswith("__") or not name.startswith(prefix):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"the name of the dead letter topic {name} must start with {prefix} "
                "(errors.deadletterqueue.topic.name.prefix), and not with __",
            )
        if name not in self._metadata.topics:
            if not settings.errors_deadletterqueue_auto_create_topics_enable:
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"the dead letter topic {name} does not exist, and "
                    "errors.deadletterqueue.auto.create.topics.enable is false",
                )
            await self._created(name)
        topic = self._metadata.topics.get(name)
        if topic is None:
            raise KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"the dead letter topic {name} is not known to this broker yet",
            )
        topic_settings = self._settings.topic(topic.configs)
        if not topic_settings.errors_deadletterqueue_group_enable:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"a dead letter topic must have errors.deadletterqueue.group.enable=true, and {name} has not",
            )
        return topic

    def max_message_bytes(self, topic: TopicState) -> int:
        """Returns the size that a batch for the topic may have."""
        return self._settings.topic(topic.configs).max_message_bytes

    async def _created(self, name: str) -> None:
        task = self._creating.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._create(name), name=f"create-{name}")
            self._creating[name] = task
            task.add_done_callback(lambda _: self._creating.pop(name, None))
        await asyncio.shield(task)

    async def _create(self, name: str) -> None:
        topic = CreatableTopic(
            name=name,
            num_partitions=BROKERS_DEFAULT,
            replication_factor=BROKERS_DEFAULT,
            configs=[CreatableTopicConfig(key, value) for key, value in CONFIGS.items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
        _, version = CreateTopicsRequest.VERSIONS
        answer = await self._controller.handle(ApiKey.CREATE_TOPICS, ForwardedRequest(version, request))
        for result in cast("CreateTopicsResponse", answer).topics:
            error = ErrorCode(result.error_code)
            if error is ErrorCode.NONE:
                _log.info("created a dead letter topic", topic=name)
            elif error is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise KafkaError(
                    error,
                    f"the controller refused to create the dead letter topic {name}: {result.error_message}",
                )
