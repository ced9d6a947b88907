"""One connection: the negotiation of versions, and each way in which a response can fail to arrive."""

from __future__ import annotations

import socket
import struct
import threading
from typing import Any

import pytest

from brokerlab.scripted_broker import ScriptedBroker, served_apis
from tidelog.client.address import Address
from tidelog.client.connection import BrokerConnection
from tidelog.client.errors import (
    ConnectionLostError,
    NoAnswerError,
    NotKafkaError,
    UnreachableError,
    UnsupportedApiError,
)
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import response_encoder
from tidelog.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from tidelog.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse


def connect(broker: ScriptedBroker, timeout_s: float = 10.0) -> BrokerConnection:
    return BrokerConnection(Address("127.0.0.1", broker.port), timeout_s=timeout_s)


def test_the_newest_common_version_is_used() -> None:
    seen: list[int] = []

    def metadata(request: Any, version: int) -> MetadataResponse:
        seen.append(version)
        return MetadataResponse(cluster_id="c")

    rows = [ApiVersion(ApiKey.METADATA, 2, 9), ApiVersion(ApiKey.API_VERSIONS, 0, 3)]
    answers = {
        ApiKey.METADATA: metadata,
        ApiKey.API_VERSIONS: lambda request, version: ApiVersionsResponse(0, rows),
    }
    with ScriptedBroker(answers) as broker, connect(broker) as connection:
        assert connection.call(MetadataRequest(), MetadataResponse).cluster_id == "c"
        connection.call(MetadataRequest(), MetadataResponse, at_most=5)
        with pytest.raises(UnsupportedApiError, match="Metadata 2 to 9, but this command needs 10"):
            connection.call(MetadataRequest(), MetadataResponse, at_least=10)
        with pytest.raises(UnsupportedApiError, match="does not serve ListOffsets"):
            connection.call(ListOffsetsRequest(), ListOffsetsResponse)
        assert connection.call(MetadataRequest(), MetadataResponse).cluster_id == "c"  # still usable
    assert seen == [9, 5, 9]


def test_a_broker_that_knows_only_older_api_versions_is_asked_again() -> None:
    asked: list[int] = []

    def api_versions(request: Any, version: int) -> ApiVersionsResponse | bytes:
        asked.append(version)
        if version <= 2:
            return ApiVersionsResponse(0, served_apis())
        rows = [ApiVersion(ApiKey.API_VERSIONS, 0, 2)]
        body = b"".join(response_encoder(18, 0)(ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, rows)))
        return struct.pack(">ii", len(body) + 4, len(asked)) + body

    with ScriptedBroker({ApiKey.API_VERSIONS: api_versions}) as broker, connect(broker) as connection:
        assert ApiKey.PRODUCE in connection.served
    assert asked == [5, 2]


def test_a_refused_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(UnreachableError, match=rf"127\.0\.0\.1:{port}: connection refused"):
        BrokerConnection(Address("127.0.0.1", port))


def test_a_name_server_that_is_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    look_ups = []

    def fail(host: str, *arguments: int) -> list[object]:
        if arguments[-1] & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "not an IP address")
        look_ups.append(host)
        if len(look_ups) < 3:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", closed_port))]

    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed_port = listener.getsockname()[1]
    monkeypatch.setattr("socket.getaddrinfo", fail)
    monkeypatch.setattr("tidelog.client.shell.connection.LOOK_UP_BACKOFF_S", 0.001)
    with pytest.raises(UnreachableError, match="connection refused"):
        BrokerConnection(Address("broker-1", 9092))
    assert len(look_ups) == 3


def test_a_silent_name_server_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> list[object]:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr("socket.getaddrinfo", fail)
    monkeypatch.setattr("tidelog.client.shell.connection.LOOK_UP_AGAIN_FOR_S", 0.02)
    monkeypatch.setattr("tidelog.client.shell.connection.LOOK_UP_BACKOFF_S", 0.001)
    with pytest.raises(UnreachableError, match="broker-1:9092: the name server does not answer"):
        BrokerConnection(Address("broker-1", 9092))


def test_an_unknown_host() -> None:
    with pytest.raises(UnreachableError, match=r"no-such-host\.invalid:9092: the host name is unknown"):
        BrokerConnection(Address("no-such-host.invalid", 9092))


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x15\x03\x03\x00\x02\x02\x46",
        b"\0\0\0\x05\0\0\0\x01\0",
        b"\xff" * 8,
    ],
)
def test_the_server_is_not_a_kafka_broker(reply: bytes) -> None:
    with (
        ScriptedBroker({ApiKey.API_VERSIONS: lambda request, version: reply}) as broker,
        pytest.raises(NotKafkaError, match=rf"127\.0\.0\.1:{broker.port}"),
    ):
        connect(broker)


def test_the_broker_closes() -> None:
    with (
        ScriptedBroker({ApiKey.METADATA: lambda request, version: None}) as broker,
        connect(broker) as connection,
    ):
        with pytest.raises(ConnectionLostError, match="closed the connection"):
            connection.call(MetadataRequest(), MetadataResponse)
        assert connection.is_closed


def test_no_answer_in_time() -> None:
    release = threading.Event()

    def silent(request: Any, version: int) -> None:
        release.wait(30)

    with ScriptedBroker({ApiKey.METADATA: silent}) as broker, connect(broker, 0.2) as connection:
        with pytest.raises(NoAnswerError, match=r"in 0\.2 s"):
            connection.call(MetadataRequest(), MetadataResponse)
        release.set()
        assert connection.is_closed


def test_responses_to_other_requests_are_rejected() -> None:
    stale = struct.pack(">ii", 4 + 30, 77) + bytes(30)
    with (
        ScriptedBroker({ApiKey.METADATA: lambda request, version: stale}) as broker,
        connect(broker) as connection,
        pytest.raises(NotKafkaError),
    ):
        connection.call(MetadataRequest(), MetadataResponse)
