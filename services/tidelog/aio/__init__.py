"""The Kafka client on asyncio: `from tidelog.aio import Producer`. docs/python-client.md is its guide."""

from __future__ import annotations

from tidelog.client.shell.delivery import Delivery, RecordMetadata
from tidelog.client.shell.producer import Producer, ProducerInterceptor

__all__ = ["Delivery", "Producer", "ProducerInterceptor", "RecordMetadata"]
