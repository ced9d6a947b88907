"""The error table agrees with that of kio, which is generated from Kafka's."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode as OracleCode

from tidelog.model.errors import RETRIABLE_ERRORS, ErrorCode, KafkaError


@pytest.mark.parametrize("code", OracleCode, ids=lambda code: code.name)
def test_names_numbers_and_retriability(code: OracleCode) -> None:
    ours = ErrorCode(code.value)
    assert ours.name == code.name.upper()
    assert (ours in RETRIABLE_ERRORS) == code.retriable


def test_codes_have_no_gaps() -> None:
    assert sorted(ErrorCode) == list(range(-1, len(ErrorCode) - 1))


def test_an_error_without_a_message_shows_its_name() -> None:
    plain = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert (str(plain), plain.message, plain.is_retriable) == ("NOT_LEADER_OR_FOLLOWER", None, True)
    told = KafkaError(ErrorCode.INVALID_RECORD, "no key")
    assert (str(told), told.message, told.is_retriable) == ("no key", "no key", False)
