"""Creates `__consumer_offsets`, `__transaction_state` and `__share_group_state` when they are first needed.

The configs are those of Kafka's `GroupCoordinatorService.groupMetadataTopicConfigs`,
`TransactionStateManager.transactionStateTopicConfigs` and
`ShareCoordinatorService.shareGroupStateTopicConfigs`. There is one deviation. If `...replication.factor` is
not set and there are fewer brokers than its default, the topic gets as many replicas as there are brokers;
Kafka does not create it. A factor that is set holds as in Kafka: a cluster that is still starting must not
keep its groups on one broker for ever.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

import structlog

from tidelog.broker.cluster.view import CurrentSettings, MetadataView
from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import (
    GROUP_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    effective_min_in_sync_replicas,
)
from tidelog.rpc.controller_api import ControllerApi, ForwardedRequest
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

TIMEOUT_MS: Final = 15_000
_REPLICATION_FACTORS: Final = {
    GROUP_METADATA_TOPIC: "offsets.topic.replication.factor",
    TRANSACTION_STATE_TOPIC: "transaction.state.log.replication.factor",
    SHARE_GROUP_STATE_TOPIC: "share.coordinator.state.topic.replication.factor",
}

_log = structlog.get_logger(__name__)


def internal_topic(name: str, settings: BrokerSettings, live_brokers: int) -> CreatableTopic:
    """Returns the creation of an internal topic, with its partitions, replicas and configs."""
    if name not in _REPLICATION_FACTORS:
        raise ValueError(f"{name} is not an internal topic")
    factor = _replication_factor(_REPLICATION_FACTORS[name], settings, live_brokers)
    if name == GROUP_METADATA_TOPIC:
        count = settings.offsets_topic_num_partitions
        configs = {
            "cleanup.policy": "compact",
            "segment.bytes": str(settings.offsets_topic_segment_bytes),
            "compression.type": "producer",
        }
    elif name == TRANSACTION_STATE_TOPIC:
        count = settings.transaction_state_log_num_partitions
        configs = {
            "cleanup.policy": "compact",
            "segment.bytes": str(settings.transaction_state_log_segment_bytes),
            "compression.type": "uncompressed",
            "min.insync.replicas": str(
                effective_min_in_sync_replicas(settings.transaction_state_log_min_isr, factor)
            ),
            "unclean.leader.election.enable": "false",
        }
    else:
        count = settings.share_coordinator_state_topic_num_partitions
        configs = {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "unclean.leader.election.enable": "false",
            "segment.bytes": str(settings.share_coordinator_state_topic_segment_bytes),
            "compression.type": "producer",
            "min.insync.replicas": str(
                effective_min_in_sync_replicas(settings.share_coordinator_state_topic_min_isr, factor)
            ),
        }
    return CreatableTopic(
        name=name,
        num_partitions=count,
        replication_factor=factor,
        configs=[CreatableTopicConfig(key, value) for key, value in configs.items()],
    )


def _replication_factor(name: str, settings: BrokerSettings, live_brokers: int) -> int:
    factor = settings.value_of(name)
    assert isinstance(factor, int)  # all are
    return factor if name in settings.layers.static else min(factor, live_brokers)


class InternalTopics:
    """Creates each internal topic at most once at a time, however many clients ask."""

    def __init__(self, settings: CurrentSettings, metadata: MetadataView, controller: ControllerApi) -> None:
        self._settings = settings
        self._metadata = metadata
        self._controller = controller
        self._making: dict[ShardKind, asyncio.Task[None]] = {}

    def exists(self, kind: ShardKind) -> bool:
        """Returns whether this broker's metadata has the topic."""
        return kind.topic in self._metadata.topics

    async def make(self, kind: ShardKind) -> None:
        """Returns when the topic exists or its creation has failed. A failure is logged."""
        task = self._making.get(kind)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._make(kind), name=f"make-{kind.topic}")
            self._making[kind] = task
            task.add_done_callback(lambda _: self._making.pop(kind, None))
        await asyncio.shield(task)

    async def _make(self, kind: ShardKind) -> None:
        topic = internal_topic(kind.topic, self._settings.broker, len(self._metadata.brokers))
        creation = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
        _, version = CreateTopicsRequest.VERSIONS
        try:
            answer = await self._controller.handle(ApiKey.CREATE_TOPICS, ForwardedRequest(version, creation))
            made = cast("CreateTopicsResponse", answer)
        except (KafkaError, ConnectionError) as error:
            _log.warning(
                "the controller cannot be asked to create an internal topic now",
                topic=kind.topic,
                reason=str(error),
            )
            return
        for result in made.topics:
            if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                _log.error(
                    "the controller refused to create an internal topic",
                    topic=kind.topic,
                    error=ErrorCode(result.error_code).name,
                    reason=result.error_message,
                )
