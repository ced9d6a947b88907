"""GetTelemetrySubscriptions, PushTelemetry, and the settings of subscriptions (KIP-714)."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from brokerlab.in_memory_broker import InMemoryBroker
from tidelog.kernel.instants import MonotonicMs
from tidelog.metadata.entries import ClientMetricsEntry
from tidelog.metrics.families import Families
from tidelog.metrics.generated.metrics_pb2 import MetricsData
from tidelog.model.errors import ErrorCode
from tidelog.rpc.broker_commands import SecurityUpdate
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.api_versions import ApiVersionsRequest
from tidelog.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tidelog.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from tidelog.wire.messages.list_config_resources import ListConfigResourcesRequest
from tidelog.wire.messages.push_telemetry import PushTelemetryRequest

ON = {"tidelog.client.metrics.enable": "true", "telemetry.max.bytes": "5000"}
CLIENT_METRICS = 16
TELEMETRY = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}


@pytest.fixture
def receiver(make_broker: Callable[..., InMemoryBroker]) -> InMemoryBroker:
    lab = make_broker(ON)
    entry = ClientMetricsEntry("all", {"metrics": "*", "interval.ms": "1000"})
    lab.update_metadata(security=SecurityUpdate(1, (entry,)))
    return lab


def test_the_apis_are_listed_only_if_there_is_a_receiver(
    lab: InMemoryBroker, receiver: InMemoryBroker
) -> None:
    for broker, expected in ((lab, set()), (receiver, TELEMETRY)):
        answer = broker.call(ApiVersionsRequest("probe", "1.0"), 5)
        assert {row.api_key for row in answer.api_keys} & TELEMETRY == expected


def test_a_client_pushes_what_it_was_asked_for(receiver: InMemoryBroker) -> None:
    told = receiver.call(GetTelemetrySubscriptionsRequest(), 0)
    assert told.error_code == ErrorCode.NONE
    assert told.client_instance_id != UUID(int=0)
    assert (told.push_interval_ms, told.telemetry_max_bytes) == (1000, 5000)
    assert (told.requested_metrics, told.accepted_compression_types) == (["*"], [4, 3, 1, 2])
    receiver.clock.advance(1000)
    data = MetricsData()
    data.resource_metrics.add().scope_metrics.add().metrics.add(name="a").gauge.data_points.add(as_double=1)
    push = PushTelemetryRequest(
        told.client_instance_id, told.subscription_id, metrics=data.SerializeToString()
    )
    assert receiver.call(push, 0).error_code == ErrorCode.NONE
    assert receiver.call(push, 0).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    families = Families()
    telemetry = receiver.broker.client_telemetry
    assert telemetry is not None
    telemetry.collect(families, MonotonicMs(receiver.clock.monotonic_ms()))
    (sample,) = next(family for family in families if family.name == "kafka_client_a").samples
    assert (sample.labels["client_instance_id"], sample.value) == (str(told.client_instance_id), 1.0)


@pytest.mark.parametrize(
    ("push", "error"),
    [
        ({"metrics": b"\xff\xff"}, ErrorCode.INVALID_RECORD),
        ({"metrics": bytes(5001)}, ErrorCode.TELEMETRY_TOO_LARGE),
        ({"compression_type": 9}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"subscription_id": 1}, ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
        ({"client_instance_id": UUID(int=0)}, ErrorCode.INVALID_REQUEST),
        ({"metrics": b""}, ErrorCode.NONE),
    ],
)
def test_refused_pushes(receiver: InMemoryBroker, push: dict[str, object], error: ErrorCode) -> None:
    told = receiver.call(GetTelemetrySubscriptionsRequest(), 0)
    receiver.clock.advance(1000)
    fields = {"client_instance_id": told.client_instance_id, "subscription_id": told.subscription_id, **push}
    assert receiver.call(PushTelemetryRequest(**fields), 0).error_code == error  # type: ignore[arg-type]


def test_subscriptions_are_listed_and_described(receiver: InMemoryBroker) -> None:
    (found,) = receiver.call(ListConfigResourcesRequest(), 0).config_resources
    assert found.resource_name == "all"
    wanted = ListConfigResourcesRequest([CLIENT_METRICS])
    (listed,) = receiver.call(wanted, 1).config_resources
    assert (listed.resource_name, listed.resource_type) == ("all", CLIENT_METRICS)
    asked = DescribeConfigsRequest([DescribeConfigsResource(CLIENT_METRICS, "all", None)])
    (described,) = receiver.call(asked, 4).results
    assert {config.name: (config.value, config.config_source) for config in described.configs} == {
        "metrics": ("*", 7),
        "interval.ms": ("1000", 7),
        "match": ("", 5),
    }
