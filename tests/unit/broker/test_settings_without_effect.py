"""A setting of Kafka that has no effect is stored, described, and logged once."""

from __future__ import annotations

from structlog.testing import capture_logs

from brokerlab.in_memory_broker import BROKER_ID, InMemoryBroker
from tidelog.model.protocol_values import ConfigResourceType
from tidelog.settings.setting_description import ConfigSource
from tidelog.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

NAME = "sasl.kerberos.min.time.before.relogin"


def test_a_dynamic_setting_without_effect_is_described_and_logged_once(lab: InMemoryBroker) -> None:
    own = {str(BROKER_ID): {NAME: "58000"}}
    with capture_logs() as logs:
        lab.update_metadata(broker_configs=own)
        lab.update_metadata(broker_configs={**own, "": {"message.max.bytes": "2000000"}})
    warned = [entry for entry in logs if entry.get("setting") == NAME]
    assert [entry["event"] for entry in warned] == ["a Kafka setting has no effect in tidelog"]
    assert "tidelog has no GSSAPI" in warned[0]["remark"]
    resource = DescribeConfigsResource(ConfigResourceType.BROKER, str(BROKER_ID), [NAME])
    (answer,) = lab.call(DescribeConfigsRequest([resource], True, True), 4).results
    (config,) = answer.configs
    assert (config.value, config.config_source) == ("58000", ConfigSource.DYNAMIC_BROKER_CONFIG)
    assert "no effect in tidelog: tidelog has no GSSAPI" in config.documentation
