"""The error table agrees with that of kio, which is generated from Kafka's, and each code becomes a sentence
with the name of the item.
"""

from __future__ import annotations

import re

import pytest
from kio.schema.errors import ErrorCode as OracleCode

from tidelog.client.errors import group_error_of, request_error, topic_error_of
from tidelog.model.errors import RETRIABLE_ERRORS, ErrorCode, KafkaError, meaning_of

CODE_NAME = re.compile(r"\b[A-Z]+_[A-Z_]+\b")


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


@pytest.mark.parametrize("code", list(ErrorCode), ids=lambda code: code.name)
def test_each_code_has_a_meaning_that_continues_a_sentence(code: ErrorCode) -> None:
    meaning = meaning_of(code)
    assert len(meaning.split()) > 1
    assert not CODE_NAME.search(meaning)
    assert meaning[0].islower()
    assert not meaning.endswith((".", " "))


@pytest.mark.parametrize("code", [code for code in ErrorCode if code], ids=lambda code: code.name)
def test_each_error_names_its_item_without_a_bare_code(code: ErrorCode) -> None:
    errors: list[KafkaError] = [
        request_error(code, "topic 't' partition 0"),
        topic_error_of(code, "t"),
        group_error_of(code, "t"),
        request_error(code, "fetch of 't'-0"),
    ]
    for error in errors:
        assert error.code is code
        assert "'t'" in str(error)
        assert not CODE_NAME.search(str(error))


def test_a_broker_that_explains_a_code_is_quoted() -> None:
    assert str(request_error(ErrorCode.POLICY_VIOLATION, "topic 't'", "too many")) == "topic 't': too many"


@pytest.mark.parametrize("code", [-2, 999])
def test_a_code_that_kafka_does_not_have(code: int) -> None:
    error = request_error(code, "topic 't'")
    assert error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert str(error) == f"topic 't': the broker answered with the unknown error code {code}"
