"""The Kafka client on asyncio. docs/python-client.md is its guide."""

from __future__ import annotations

from tidelog.aio import exceptions
from tidelog.client.core.consuming.consumer_batch import ConsumerBatch
from tidelog.client.core.consuming.consumer_events import AcknowledgeType
from tidelog.client.core.consuming.records import ConsumerRecord, DeserializationError, SharedRecord
from tidelog.client.shell.consuming.callbacks import ConsumerHealth
from tidelog.client.shell.consuming.consumer import Consumer
from tidelog.client.shell.consuming.share_consumer import ShareConsumer
from tidelog.client.shell.producing.accumulator import ProducerInterceptor
from tidelog.client.shell.producing.delivery import BatchDelivery, Delivery, RecordMetadata, StoredRange
from tidelog.client.shell.producing.producer import Producer
from tidelog.client.shell.producing.transactions import GroupMetadata
from tidelog.client.threads.admin import AsyncAdmin as Admin
from tidelog.model.topics import TopicPartition

__all__ = [
    "AcknowledgeType",
    "Admin",
    "GroupMetadata",
    "BatchDelivery",
    "Consumer",
    "ConsumerBatch",
    "ConsumerHealth",
    "ConsumerRecord",
    "Delivery",
    "DeserializationError",
    "Producer",
    "ProducerInterceptor",
    "RecordMetadata",
    "ShareConsumer",
    "SharedRecord",
    "StoredRange",
    "TopicPartition",
    "exceptions",
]
