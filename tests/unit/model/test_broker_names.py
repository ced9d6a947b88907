"""A broker has one name in the settings: its id in decimal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterlab.controllers import Core
from tidelog.broker.handlers.configs import check_broker_name
from tidelog.controller.core.config_changes import incremental_alter_configs
from tidelog.model.brokers import MAX_BROKER_ID, parse_broker_id
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

BROKER = 4
OTHER_FORMS = [
    "01",
    "001",
    "0" * 4000 + "1",
    "9" * 5000,
    "00",
    "+1",
    "-1",
    "-0",
    " 1",
    "1\n",
    "1_0",
    "\u0661",  # ARABIC-INDIC DIGIT ONE
    "\u00b2",  # SUPERSCRIPT TWO
    "1.0",
    str(MAX_BROKER_ID + 1),
]


@given(st.integers(0, MAX_BROKER_ID))
def test_an_id_in_decimal_is_a_name(broker_id: int) -> None:
    assert parse_broker_id(str(broker_id)) == broker_id


@given(st.one_of(st.text(max_size=12), st.text("0123456789_+- ", max_size=12)))
def test_every_name_is_the_only_one_of_its_broker(name: str) -> None:
    found = parse_broker_id(name)
    assert found is None or str(found) == name


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_other_forms_are_refused(name: str) -> None:
    assert parse_broker_id(name) is None
    with pytest.raises(KafkaError) as raised:
        check_broker_name(name, 1)
    assert raised.value.code is ErrorCode.INVALID_REQUEST

    cluster = Core()
    change = AlterableConfig("log.retention.ms", 0, "5000")
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(BROKER, name, [change])])
    (response,) = cluster.request(incremental_alter_configs, request).responses
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert len(response.error_message or "") < 200
    assert not cluster.state.broker_configs


def test_the_default_and_existing_ids_are_names() -> None:
    check_broker_name("1", 1)
    cluster = Core()
    change = AlterableConfig("log.retention.ms", 0, "5000")
    request = IncrementalAlterConfigsRequest(
        [AlterConfigsResource(BROKER, name, [change]) for name in ("", "0", "1", str(MAX_BROKER_ID))]
    )
    assert {r.error_code for r in cluster.request(incremental_alter_configs, request).responses} == {0}
