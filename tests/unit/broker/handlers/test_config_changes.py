"""Changes of settings that this broker refuses, and changes that it passes on (AlterConfigs and
IncrementalAlterConfigs).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import structlog

from brokerlab.in_memory_broker import BROKER_ID, InMemoryBroker
from brokerlab.secured_broker import new_authority, put_identity
from tidelog.broker.handlers.configs import APPEND, DELETE, PART_LOGGERS, SET, current_level
from tidelog.model.errors import ErrorCode
from tidelog.model.protocol_values import ConfigResourceType
from tidelog.process.structured_log import configure_logging
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import alter_configs as legacy
from tidelog.wire.messages import incremental_alter_configs as incremental

OWN = str(BROKER_ID)
Change = tuple[str, int, str | None]


def accept(request: Any) -> Any:
    """The controller accepts all requests."""
    module = incremental if isinstance(request, incremental.IncrementalAlterConfigsRequest) else legacy
    kind = (
        incremental.IncrementalAlterConfigsResponse if module is incremental else legacy.AlterConfigsResponse
    )
    return kind(
        responses=[
            module.AlterConfigsResourceResponse(0, None, resource.resource_type, resource.resource_name)
            for resource in request.resources
        ]
    )


def change(lab: InMemoryBroker, *resources: tuple[int, str, list[Change]], version: int = 1) -> list[Any]:
    lab.controller.answer = accept
    request = incremental.IncrementalAlterConfigsRequest(
        [
            incremental.AlterConfigsResource(kind, name, [incremental.AlterableConfig(*c) for c in changes])
            for kind, name, changes in resources
        ]
    )
    answers: list[Any] = lab.call(request, version).responses
    return answers


def replace(lab: InMemoryBroker, *resources: tuple[int, str, dict[str, str | None]]) -> list[Any]:
    lab.controller.answer = accept
    request = legacy.AlterConfigsRequest(
        [
            legacy.AlterConfigsResource(kind, name, [legacy.AlterableConfig(*c) for c in configs.items()])
            for kind, name, configs in resources
        ]
    )
    answers: list[Any] = lab.call(request, 2).responses
    return answers


def test_settings_of_topics_are_checked_by_the_controller(lab: InMemoryBroker) -> None:
    (answer,) = change(
        lab, (ConfigResourceType.TOPIC, "none", [("no.such", SET, "x"), ("cleanup.policy", APPEND, "y")])
    )
    assert (answer.error_code, answer.resource_name) == (0, "none")
    ((key, forwarded),) = lab.controller.forwarded
    assert key == ApiKey.INCREMENTAL_ALTER_CONFIGS
    assert (forwarded.api_version, forwarded.client_id, forwarded.host) == (1, "test", "127.0.0.1")
    assert len(forwarded.message.resources[0].configs) == 2
    (answer,) = replace(lab, (ConfigResourceType.TOPIC, "t", {"retention.ms": "soon"}))
    assert answer.error_code == 0
    assert lab.controller.forwarded[1][0] == ApiKey.ALTER_CONFIGS


@pytest.mark.parametrize(
    ("kind", "name", "changes"),
    [
        (ConfigResourceType.TOPIC, "t", [("retention.ms", SET, None)]),
        (ConfigResourceType.TOPIC, "t", [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)]),
        (ConfigResourceType.TOPIC, "t", [("retention.ms", 9, "1")]),
        (ConfigResourceType.BROKER, "2", [("message.max.bytes", SET, "1")]),
        (ConfigResourceType.BROKER, "x", [("message.max.bytes", SET, "1")]),
        (ConfigResourceType.BROKER, OWN, [("log.dirs", SET, "x")]),
        (ConfigResourceType.BROKER, OWN, [("message.max.bytes", SET, "many")]),
        (ConfigResourceType.BROKER, OWN, [("no.such", SET, "x")]),
        (ConfigResourceType.BROKER, "", [("node.id", SET, "1")]),
        (ConfigResourceType.BROKER_LOGGER, OWN, [("root", APPEND, "DEBUG")]),
        (ConfigResourceType.BROKER_LOGGER, OWN, [("root", DELETE, None)]),
        (ConfigResourceType.BROKER_LOGGER, "2", [("root", SET, "DEBUG")]),
        (0, "x", []),
    ],
)
def test_refused_at_once(lab: InMemoryBroker, kind: int, name: str, changes: list[Change]) -> None:
    (answer,) = change(lab, (kind, name, changes))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.error_message
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    assert not lab.controller.forwarded


def test_loggers_are_unknown_to_the_older_request(lab: InMemoryBroker) -> None:
    (answer,) = replace(lab, (ConfigResourceType.BROKER_LOGGER, OWN, {"root": "DEBUG"}))
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_refused_resources_are_not_passed_on(lab: InMemoryBroker) -> None:
    answers = change(
        lab,
        (ConfigResourceType.BROKER, "2", [("message.max.bytes", SET, "1")]),
        (ConfigResourceType.TOPIC, "t", [("retention.ms", SET, "1")]),
        (ConfigResourceType.BROKER, OWN, [("message.max.bytes", SET, "2000000")]),
    )
    assert {answer.resource_name: answer.error_code for answer in answers} == {
        "2": ErrorCode.INVALID_REQUEST,
        "t": 0,
        OWN: 0,
    }
    ((_, forwarded),) = lab.controller.forwarded
    assert [resource.resource_name for resource in forwarded.message.resources] == ["t", OWN]


def test_a_resource_named_twice_is_refused_both_times(lab: InMemoryBroker) -> None:
    twice = (ConfigResourceType.TOPIC, "t", {"retention.ms": "1"})
    answers = replace(lab, twice, twice, (ConfigResourceType.TOPIC, "u", {}))
    assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_REQUEST] * 2 + [0]


def test_broker_settings_are_checked_with_those_in_force(lab: InMemoryBroker) -> None:
    in_force = {"log.cleaner.max.compaction.lag.ms": "1000"}
    lab.update_metadata(broker_configs={OWN: in_force})
    above = [("log.cleaner.min.compaction.lag.ms", SET, "2000")]
    (answer,) = change(lab, (ConfigResourceType.BROKER, OWN, above))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    taken_back = [("log.cleaner.max.compaction.lag.ms", DELETE, None)]
    (answer,) = change(lab, (ConfigResourceType.BROKER, OWN, above + taken_back))
    assert answer.error_code == 0
    # AlterConfigs contains all settings that will be in effect.
    (answer,) = replace(lab, (ConfigResourceType.BROKER, OWN, {"log.cleaner.min.compaction.lag.ms": "2000"}))
    assert answer.error_code == 0


@pytest.mark.parametrize("changes", [[("root", SET, "LOUD")], [("kafka.server", SET, "INFO")]])
def test_unknown_levels_and_loggers(lab: InMemoryBroker, changes: list[Change]) -> None:
    (answer,) = change(lab, (ConfigResourceType.BROKER_LOGGER, OWN, changes))
    assert answer.error_code == ErrorCode.INVALID_CONFIG


def test_this_broker_changes_its_root_loggers_level(
    lab: InMemoryBroker, log_level: Callable[[str], None]
) -> None:
    log_level("info")
    only_checked = incremental.IncrementalAlterConfigsRequest(
        [
            incremental.AlterConfigsResource(
                ConfigResourceType.BROKER_LOGGER, OWN, [incremental.AlterableConfig("root", SET, "ERROR")]
            )
        ],
        validate_only=True,
    )
    (answer,) = lab.call(only_checked, 1).responses
    assert (answer.error_code, current_level()) == (0, "INFO")
    (answer,) = change(lab, (ConfigResourceType.BROKER_LOGGER, OWN, [("root", SET, "TRACE")]))
    assert (answer.error_code, current_level()) == (0, "DEBUG")
    assert not lab.controller.forwarded


@pytest.mark.parametrize("logger", ["root", *PART_LOGGERS])
def test_every_logger_that_is_shown_can_be_changed(
    lab: InMemoryBroker, log_level: Callable[[str], None], logger: str
) -> None:
    log_level("warning")
    (answer,) = change(lab, (ConfigResourceType.BROKER_LOGGER, OWN, [(logger, SET, "DEBUG")]))
    assert (answer.error_code, current_level(logger)) == (0, "DEBUG")
    (answer,) = change(lab, (ConfigResourceType.BROKER_LOGGER, OWN, [(logger, DELETE, None)]))
    assert answer.error_code == (ErrorCode.INVALID_REQUEST if logger == "root" else 0)
    assert current_level(logger) == ("DEBUG" if logger == "root" else "WARN")


def test_a_part_logs_by_its_own_level(
    lab: InMemoryBroker, log_level: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    log_level("warning")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # `configure_logging` replaces them
    output = StringIO()
    configure_logging("json", "warning", output)
    part, other = "tidelog.broker.replication", "tidelog.controller.term"
    levels: list[Change] = [(part, SET, "DEBUG"), ("tidelog.rpc", SET, "ERROR")]
    (answer,) = change(lab, (ConfigResourceType.BROKER_LOGGER, OWN, levels))
    assert answer.error_code == 0
    for name in (f"{part}.leader", other, "tidelog.rpc.peer"):
        structlog.get_logger(name).debug("a detail")
        structlog.get_logger(name).warning("a warning")
    for name in (part, "tidelog.rpc"):
        change(lab, (ConfigResourceType.BROKER_LOGGER, OWN, [(name, DELETE, None)]))
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    assert [(line["logger"], line["event"]) for line in lines] == [
        (f"{part}.leader", "a detail"),
        (f"{part}.leader", "a warning"),
        (other, "a warning"),
    ]


def test_invalid_stored_settings_do_not_change_the_broker(lab: InMemoryBroker) -> None:
    lab.update_metadata(broker_configs={OWN: {"message.max.bytes": "2000000"}})
    lab.update_metadata(broker_configs={OWN: {"log.retention.ms": "0"}})
    assert lab.broker.current_settings.broker.message_max_bytes == 2000000
    assert lab.broker.current_settings.broker.log_retention_ms is None


def test_certificates_that_a_listener_cannot_use_are_refused(lab: InMemoryBroker, tmp_path: Path) -> None:
    put_identity(tmp_path / "broker", new_authority(tmp_path, "ours"), name="localhost")
    keystore = tmp_path / "broker.pem"
    keystore.write_bytes(
        (tmp_path / "broker" / "tls.key").read_bytes() + (tmp_path / "broker" / "tls.crt").read_bytes()
    )
    other = tmp_path / "other.pem"
    other.write_bytes(keystore.read_bytes())
    static = {
        "node.id": OWN,
        "listeners": "PLAINTEXT://:0,SSL://:0",
        "listener.name.ssl.ssl.keystore.location": str(keystore),
    }
    lab.broker.current_settings.replace(BrokerSettings.parse(static))
    name = "listener.name.ssl.ssl.keystore.location"
    for path, code in (
        (other, ErrorCode.NONE),
        (keystore, ErrorCode.NONE),
        (tmp_path / "missing.pem", ErrorCode.INVALID_REQUEST),
    ):
        (answer,) = change(lab, (ConfigResourceType.BROKER, OWN, [(name, SET, str(path))]))
        assert answer.error_code == code
    assert answer.error_message.startswith("listener SSL: ssl.keystore.location: ")
