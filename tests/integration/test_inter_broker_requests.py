"""Requests that only brokers may send are refused on the listeners of clients."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from brokerlab.broker_process import BrokerProcess, free_port
from brokerlab.clients import produce_values
from brokerlab.raw_client import RawClient

pytestmark = pytest.mark.integration
CLUSTER_AUTHORIZATION_FAILED = 31


def test_a_client_cannot_fetch_as_a_follower(start_broker: Callable[..., BrokerProcess]) -> None:
    """Two such requests once acknowledged a record that no other replica had."""
    port, brokers_port = free_port(), free_port()
    broker = start_broker(
        {
            "listeners": f"PLAINTEXT://127.0.0.1:{port},BROKERS://127.0.0.1:{brokers_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKERS:PLAINTEXT",
            "inter.broker.listener.name": "BROKERS",
        },
        port=port,
    )
    produce_values(broker.bootstrap, "t", [b"x"])

    def code_over(address: str) -> int:
        with RawClient(address) as client:
            metadata = client.call("metadata", 12, topics=None, include_topic_authorized_operations=False)
            (topic,) = [found for found in metadata.topics if found.name == "t"]
            partition = {"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1000}
            answer = client.call(
                "fetch",
                16,
                max_wait=0,
                min_bytes=1,
                replica_state={"replica_id": 2, "replica_epoch": 1},
                topics=[{"topic_id": topic.topic_id or uuid.UUID(int=0), "partitions": [partition]}],
                forgotten_topics_data=[],
            )
            return int(answer.error_code)

    assert code_over(broker.bootstrap) == CLUSTER_AUTHORIZATION_FAILED
    assert code_over(f"127.0.0.1:{brokers_port}") != CLUSTER_AUTHORIZATION_FAILED
