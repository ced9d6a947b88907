"""The search for brokers and topics."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from brokerlab.scripted_broker import ScriptedBroker
from tidelog.client.address import Address
from tidelog.client.cluster import Cluster
from tidelog.client.errors import AdvertisedUnreachableError, BrokerGoneError, UnreachableError
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def answering(*answers: MetadataResponse) -> ScriptedBroker:
    """Returns Metadata responses in turn, and then always the last one."""
    left = list(answers)

    def metadata(request: Any, version: int) -> MetadataResponse:
        return left.pop(0) if len(left) > 1 else left[0]

    return ScriptedBroker({ApiKey.METADATA: metadata})


def one_topic(code: int = 0, leader: int = 1) -> MetadataResponse:
    partitions = [] if code else [MetadataResponsePartition(0, i, leader, 0, [1], [1]) for i in (1, 0)]
    return MetadataResponse(topics=[MetadataResponseTopic(code, "t", partitions=partitions)])


def test_the_first_address_that_answers_is_used() -> None:
    with answering(MetadataResponse(cluster_id="c")) as broker:
        bootstrap = f"127.0.0.1:{closed_port()},{broker.bootstrap}"
        with Cluster(bootstrap) as cluster:
            assert cluster.describe().cluster_id == "c"


def test_an_error_names_all_addresses_that_do_not_answer() -> None:
    ports = closed_port(), closed_port()
    with pytest.raises(
        UnreachableError, match=rf"no broker answers: .*:{ports[0]}: .*:{ports[1]}: connection refused"
    ):
        Cluster(f"127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}")


def test_a_broker_that_advertises_a_wrong_address() -> None:
    port = closed_port()
    with (
        answering(MetadataResponse(brokers=[MetadataResponseBroker(3, "127.0.0.1", port)])) as broker,
        Cluster(broker.bootstrap) as cluster,
    ):
        with pytest.raises(
            AdvertisedUnreachableError, match=f"broker 3 advertises .*:{port}, which can't be reached: "
        ):
            cluster.broker(3)
        with pytest.raises(KafkaError, match="no live broker 4"):
            cluster.broker(4)


def test_a_broker_that_answered_another_client_is_gone() -> None:
    port = closed_port()
    with (
        answering(MetadataResponse(brokers=[MetadataResponseBroker(3, "127.0.0.1", port)])) as broker,
        Cluster(broker.bootstrap) as cluster,
    ):
        cluster.note_reached([Address("127.0.0.1", port)])
        with pytest.raises(BrokerGoneError, match="broker 3 no longer answers: "):
            cluster.broker(3)


def test_a_topic_is_waited_for_until_it_has_leaders() -> None:
    answers = one_topic(ErrorCode.LEADER_NOT_AVAILABLE), one_topic(leader=-1), one_topic()
    with answering(*answers) as broker, Cluster(broker.bootstrap) as cluster:
        assert [p.index for p in cluster.topic("t").partitions] == [0, 1]


def test_a_missing_topic_is_not_created_unless_asked_for() -> None:
    unknown = one_topic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    with answering(unknown, unknown, one_topic()) as broker, Cluster(broker.bootstrap) as cluster:
        with pytest.raises(KafkaError, match="topic 't' does not exist"):
            cluster.topic("t")
        assert cluster.topic("t", creates=True).name == "t"
        assert [r.allow_auto_topic_creation for r in broker.requests_of(MetadataRequest)] == [
            False,
            True,
            True,
        ]


def test_an_illegal_name_is_explained() -> None:
    answer = MetadataResponse(topics=[MetadataResponseTopic(ErrorCode.INVALID_TOPIC_EXCEPTION, "a b")])
    with (
        answering(answer) as broker,
        Cluster(broker.bootstrap) as cluster,
        pytest.raises(KafkaError, match="'a b' contains"),
    ):
        cluster.topic("a b")
