"""The Kafka client for threads: `from tidelog.client import Producer`. `tidelog.aio` is the one for asyncio.

The modules beside `core`, `shell` and `threads` are mostly the admin functions, which block.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tidelog.client.core.consuming.consumer_batch import ConsumerBatch
    from tidelog.client.core.consuming.consumer_events import AcknowledgeType
    from tidelog.client.core.consuming.records import ConsumerRecord, DeserializationError, SharedRecord
    from tidelog.client.shell.consuming.callbacks import ConsumerHealth
    from tidelog.client.shell.producing.delivery import BatchDelivery, Delivery, RecordMetadata, StoredRange
    from tidelog.client.threads.admin import Admin
    from tidelog.client.threads.consumer import Consumer, ShareConsumer
    from tidelog.client.threads.producer import Producer
    from tidelog.model.topics import TopicPartition

__all__ = [
    "AcknowledgeType",
    "Admin",
    "BatchDelivery",
    "Consumer",
    "ConsumerBatch",
    "ConsumerHealth",
    "ConsumerRecord",
    "Delivery",
    "DeserializationError",
    "Producer",
    "RecordMetadata",
    "ShareConsumer",
    "SharedRecord",
    "StoredRange",
    "TopicPartition",
]

_MODULES: Final = {
    "AcknowledgeType": "tidelog.client.core.consuming.consumer_events",
    "Admin": "tidelog.client.threads.admin",
    "Consumer": "tidelog.client.threads.consumer",
    "ConsumerBatch": "tidelog.client.core.consuming.consumer_batch",
    "ConsumerHealth": "tidelog.client.shell.consuming.callbacks",
    "ConsumerRecord": "tidelog.client.core.consuming.records",
    "BatchDelivery": "tidelog.client.shell.producing.delivery",
    "StoredRange": "tidelog.client.shell.producing.delivery",
    "Delivery": "tidelog.client.shell.producing.delivery",
    "DeserializationError": "tidelog.client.core.consuming.records",
    "Producer": "tidelog.client.threads.producer",
    "RecordMetadata": "tidelog.client.shell.producing.delivery",
    "ShareConsumer": "tidelog.client.threads.consumer",
    "SharedRecord": "tidelog.client.core.consuming.records",
    "TopicPartition": "tidelog.model.topics",
}


def __getattr__(name: str) -> Any:
    """Imports a class when it is first used, because most commands need none of them."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)
