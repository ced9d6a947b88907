"""`__consumer_offsets` and `__transaction_state`, made when somebody first asks for a coordinator.

Settings: Kafka's `GroupCoordinatorService.groupMetadataTopicConfigs` and
`TransactionStateManager.transactionStateTopicConfigs`. Deviation: where nobody set `...replication.factor`,
and there are fewer brokers than its default says, there are as many replicas as brokers; Kafka makes no
topic. One that was set holds, as in Kafka: a cluster that is still coming up must not keep its groups on one
broker for ever.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog
from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from tidelog.rpc.controller_api import ForwardedRequest
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.runtime.broker_settings import BrokerSettings

TIMEOUT_MS: Final = 15_000
_OFFSETS_FACTOR: Final = "offsets.topic.replication.factor"
_TRANSACTIONS_FACTOR: Final = "transaction.state.log.replication.factor"

_log = structlog.get_logger(__name__)


def internal_topic(name: str, settings: BrokerSettings, live_brokers: int) -> CreatableTopic:
    """How it is made, whoever asks for it."""
    if name == GROUP_METADATA_TOPIC:
        count = settings.offsets_topic_num_partitions
        factor = _replication_factor(_OFFSETS_FACTOR, settings, live_brokers)
        configs = {
            "cleanup.policy": "compact",
            "segment.bytes": str(settings.offsets_topic_segment_bytes),
            "compression.type": "producer",
        }
    elif name == TRANSACTION_STATE_TOPIC:
        count = settings.transaction_state_log_num_partitions
        factor = _replication_factor(_TRANSACTIONS_FACTOR, settings, live_brokers)
        configs = {
            "cleanup.policy": "compact",
            "segment.bytes": str(settings.transaction_state_log_segment_bytes),
            "compression.type": "uncompressed",
            "min.insync.replicas": str(min(settings.transaction_state_log_min_isr, factor)),
            "unclean.leader.election.enable": "false",
        }
    else:
        raise ValueError(f"{name} is no internal topic")
    return CreatableTopic(
        name=name,
        num_partitions=count,
        replication_factor=factor,
        configs=[CreatableTopicConfig(key, value) for key, value in configs.items()],
    )


def _replication_factor(name: str, settings: BrokerSettings, live_brokers: int) -> int:
    factor = settings.value_of(name)
    assert isinstance(factor, int)  # both are
    return factor if name in settings.layers.static else min(factor, live_brokers)


class InternalTopics:
    """Makes each of them at most once at a time, however many clients ask."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._making: dict[ShardKind, asyncio.Task[None]] = {}

    def exists(self, kind: ShardKind) -> bool:
        return kind.topic in self._broker.metadata.topics

    async def make(self, kind: ShardKind) -> None:
        """Returns once it is there, or can't be had now (which is logged)."""
        task = self._making.get(kind)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._make(kind), name=f"make-{kind.topic}")
            self._making[kind] = task
            task.add_done_callback(lambda _: self._making.pop(kind, None))
        await asyncio.shield(task)

    async def _make(self, kind: ShardKind) -> None:
        broker = self._broker
        topic = internal_topic(kind.topic, broker.settings, len(broker.metadata.brokers))
        creation = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
        _, version = CreateTopicsRequest.VERSIONS
        try:
            made: CreateTopicsResponse = await broker.controller.handle(
                ApiKey.CREATE_TOPICS, ForwardedRequest(version, creation)
            )
        except (KafkaError, ConnectionError) as error:
            _log.warning("an internal topic can't be made now", topic=kind.topic, reason=str(error))
            return
        for result in made.topics:
            if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                _log.error(
                    "an internal topic can't be made",
                    topic=kind.topic,
                    error=ErrorCode(result.error_code).name,
                    reason=result.error_message,
                )
