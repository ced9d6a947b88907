from __future__ import annotations

import pytest

from tidelog.client.core.connection_settings import SettingsError, parse_settings
from tidelog.client.core.settings import ConsumerSettings, ProducerSettings
from tidelog.records.compression import Compression


def test_names_and_defaults_are_kafkas() -> None:
    settings = parse_settings(ProducerSettings, {"linger.ms": 20, "compression.type": "zstd", "acks": -1})
    assert settings.linger_ms == 20
    assert settings.compression is Compression.ZSTD
    assert settings.required_acks == -1
    assert settings.batch_size == 16_384
    assert settings.max_block_ms == 60_000
    assert settings.connections_max_idle_ms == 540_000
    consumer = parse_settings(
        ConsumerSettings, {"enable.auto.commit": False, "isolation.level": "read_committed"}
    )
    assert not consumer.enable_auto_commit
    assert consumer.isolation == 1
    assert consumer.max_poll_records == 500
    assert consumer.group_protocol == "consumer"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"linger": 5}, r"linger is not a setting"),
        ({"linger.ms": "soon"}, r"linger\.ms"),
        ({"acks": 1}, r"needs acks=all"),
        ({"retries": 0}, r"needs retries"),
        ({"max.in.flight.requests.per.connection": 6}, r"at most 5"),
        ({"delivery.timeout.ms": 10}, r"delivery\.timeout\.ms must be at least"),
        ({"transactional.id": "x", "enable.idempotence": False}, r"needs enable\.idempotence"),
    ],
)
def test_settings_that_cannot_be_right_are_refused(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        parse_settings(ProducerSettings, given)
