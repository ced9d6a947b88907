from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from brokerlab.in_memory_broker import BROKER_ID, OTHER_BROKER_ID, InMemoryBroker
from tidelog.broker.handlers.configs import DescribeConfigsHandler
from tidelog.broker.requests.request import RequestContext
from tidelog.model.errors import ErrorCode
from tidelog.model.protocol_values import ConfigResourceType
from tidelog.settings.setting import SettingType
from tidelog.settings.setting_description import ConfigSource, describe_topic
from tidelog.settings.topic_settings import TOPIC_SETTINGS
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)


def result(
    lab: InMemoryBroker,
    kind: int,
    name: str,
    *keys: str,
    version: int = 4,
    synonyms: bool = True,
    docs: bool = False,
) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(kind, name, list(keys) or None)
    response = lab.call(DescribeConfigsRequest([resource], synonyms, docs), version)
    (only,) = response.results
    assert (only.resource_type, only.resource_name) == (kind, name)
    return only


def describe(
    lab: InMemoryBroker, kind: int, name: str, *keys: str, **options: object
) -> dict[str, DescribeConfigsResourceResult]:
    answered = result(lab, kind, name, *keys, **options)  # type: ignore[arg-type]
    assert (answered.error_code, answered.error_message) == (0, None)
    return {config.name: config for config in answered.configs}


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_topic_has_all_settings_in_all_versions(lab: InMemoryBroker, version: int) -> None:
    lab.add_topic("t", configs={"retention.ms": "1000"})
    configs = describe(lab, ConfigResourceType.TOPIC, "t", version=version)
    assert configs.keys() == {name for name, setting in TOPIC_SETTINGS.items() if not setting.is_internal}
    own = configs["retention.ms"]
    assert (own.value, own.config_source, own.read_only, own.is_sensitive) == (
        "1000",
        ConfigSource.DYNAMIC_TOPIC_CONFIG,
        False,
        False,
    )
    assert (configs["segment.bytes"].value, configs["segment.bytes"].config_source) == (
        "1073741824",
        ConfigSource.DEFAULT_CONFIG,
    )
    assert own.config_type == (SettingType.LONG if version >= 3 else 0)


def test_synonyms_and_documentation_if_requested(make_broker: Callable[..., InMemoryBroker]) -> None:
    lab = make_broker({"message.max.bytes": "3000000"})
    lab.add_topic("t", configs={"max.message.bytes": "4000000"})
    with_all = describe(lab, ConfigResourceType.TOPIC, "t", "max.message.bytes", docs=True)[
        "max.message.bytes"
    ]
    assert [(s.name, s.value, s.source) for s in with_all.synonyms] == [
        ("max.message.bytes", "4000000", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ("message.max.bytes", "3000000", ConfigSource.STATIC_BROKER_CONFIG),
        ("message.max.bytes", "1048588", ConfigSource.DEFAULT_CONFIG),
    ]
    assert with_all.documentation
    without = describe(lab, ConfigResourceType.TOPIC, "t", "max.message.bytes", synonyms=False)[
        "max.message.bytes"
    ]
    assert (without.synonyms, without.documentation) == ([], None)


def test_only_the_requested_settings_and_all_for_an_empty_list(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    assert describe(lab, ConfigResourceType.TOPIC, "t", "cleanup.policy", "no.such").keys() == {
        "cleanup.policy"
    }
    request = DescribeConfigsRequest([DescribeConfigsResource(ConfigResourceType.TOPIC, "t", [])])
    assert len(lab.call(request, 4).results[0].configs) > 30


def test_this_broker(make_broker: Callable[..., InMemoryBroker]) -> None:
    lab = make_broker({"num.partitions": "6"})
    configs = describe(lab, ConfigResourceType.BROKER, str(BROKER_ID))
    assert (configs["num.partitions"].value, configs["num.partitions"].read_only) == ("6", True)
    assert configs["num.partitions"].config_source == ConfigSource.STATIC_BROKER_CONFIG
    assert not configs["message.max.bytes"].read_only


def test_dynamic_broker_settings_and_those_of_all_brokers(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    lab.update_metadata(
        broker_configs={
            "": {"message.max.bytes": "2000000"},
            str(BROKER_ID): {"message.max.bytes": "2000001"},
        }
    )
    assert {name: c.value for name, c in describe(lab, ConfigResourceType.BROKER, "").items()} == {
        "message.max.bytes": "2000000"
    }
    own = describe(lab, ConfigResourceType.BROKER, str(BROKER_ID), "message.max.bytes")["message.max.bytes"]
    assert (own.value, own.config_source) == ("2000001", ConfigSource.DYNAMIC_BROKER_CONFIG)
    assert describe(lab, ConfigResourceType.TOPIC, "t")["max.message.bytes"].value == "2000001"
    assert lab.broker.hosted.leader_replica("t", 0).settings.max_message_bytes == 2000001


def test_the_root_logger(lab: InMemoryBroker, log_level: Callable[[str], None]) -> None:
    log_level("warning")
    (root,) = describe(lab, ConfigResourceType.BROKER_LOGGER, str(BROKER_ID), "root").values()
    assert (root.name, root.value, root.config_source) == ("root", "WARN", 6)
    assert not describe(lab, ConfigResourceType.BROKER_LOGGER, str(BROKER_ID), "kafka.server")


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (ConfigResourceType.TOPIC, "none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ConfigResourceType.TOPIC, "b@d", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (ConfigResourceType.TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (ConfigResourceType.BROKER, "2", ErrorCode.INVALID_REQUEST),
        (ConfigResourceType.BROKER, "x", ErrorCode.INVALID_REQUEST),
        (ConfigResourceType.BROKER_LOGGER, "", ErrorCode.INVALID_REQUEST),
        (ConfigResourceType.GROUP, "", ErrorCode.INVALID_REQUEST),
        (0, "x", ErrorCode.INVALID_REQUEST),
        (99, "x", ErrorCode.INVALID_REQUEST),
    ],
)
def test_resources_without_settings_here(lab: InMemoryBroker, kind: int, name: str, code: ErrorCode) -> None:
    answered = result(lab, kind, name)
    assert (answered.error_code, answered.configs) == (code, [])


def test_an_invalid_resource_does_not_affect_the_others(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    resources = [DescribeConfigsResource(ConfigResourceType.TOPIC, name, None) for name in ("none", "t")]
    bad, good = lab.call(DescribeConfigsRequest(resources), 4).results
    assert (bad.error_code, good.error_code) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)


def test_many_topics_in_one_request(lab: InMemoryBroker) -> None:
    names = [f"t{number}" for number in range(120)]
    for number, name in enumerate(names):
        lab.add_topic(name, configs={"retention.ms": str(number % 2)}, leader=OTHER_BROKER_ID)
    keys = [None, ["retention.ms"]]
    resources = [
        DescribeConfigsResource(ConfigResourceType.TOPIC, name, keys[i % 3 == 0])
        for i, name in enumerate(names)
    ]
    results = lab.call(DescribeConfigsRequest(resources), 4).results
    assert [result.resource_name for result in results] == names
    for number, result in enumerate(results):
        values = {config.name: config.value for config in result.configs}
        assert values["retention.ms"] == str(number % 2)
        assert len(values) == 1 if number % 3 == 0 else len(values) > 30


def test_topics_share_what_they_do_not_override(lab: InMemoryBroker) -> None:
    """Thousands of topics with different overrides must be described, encoded and freed in little time."""
    handler = DescribeConfigsHandler(lab.broker.current_settings, lab.broker.metadata)
    overrides = [{"retention.ms": "1"}, {"retention.ms": "2", "cleanup.policy": "compact"}, {}]
    for number, configs in enumerate(overrides):
        lab.add_topic(f"t{number}", configs=configs)
    resources = [
        DescribeConfigsResource(ConfigResourceType.TOPIC, f"t{n}", None) for n in range(len(overrides))
    ]
    response = handler.handle(DescribeConfigsRequest(resources, True, True), cast(RequestContext, None))
    assert isinstance(response, DescribeConfigsResponse)
    made = {id(config) for found in response.results for config in found.configs}
    assert len(made) == len(response.results[2].configs) + 3
    for found, configs in zip(response.results, overrides, strict=True):
        described = describe_topic(lab.broker.current_settings.broker, configs)
        assert [(c.name, c.value, c.config_source) for c in found.configs] == [
            (d.name, d.value, d.source) for d in described
        ]
