"""Every message in every version is decoded to the message that was encoded, to the last byte."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerlab.counted_work import calls_of
from brokerlab.messages import messages_of, payload_classes, record_classes, versions_of
from tidelog.kernel.steps import all_at_once
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from tidelog.wire.schema import Message

EXAMPLES = 8
_quick = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


def _every_version(messages: list[type[Message]]) -> list[Any]:
    return [pytest.param(m, v, id=f"{m.__name__}-{v}") for m in messages for v in versions_of(m)]


@pytest.mark.parametrize(("message", "version"), _every_version(payload_classes() + record_classes()))
def test_encoded_messages_decode_to_equal_messages(message: type[Message], version: int) -> None:
    encode, decode = codec.encoder(message, version), codec.decoder(message, version)

    @_quick
    @given(messages_of(message, version), st.binary(max_size=3))
    def check(value: Any, around: bytes) -> None:
        body = b"".join(encode(value))
        buffer = around + body + around
        decoded, end = decode(buffer, len(around))
        assert decoded == value
        assert end == len(around) + len(body)
        assert decode(memoryview(bytearray(buffer)), len(around)) == (decoded, end)
        assert b"".join(encode(decoded)) == body

    check()


RESPONSES = [message for message in payload_classes() if message.__name__.endswith("Response")]


@pytest.mark.parametrize("message", RESPONSES)
def test_responses_are_decoded_and_encoded_in_steps_as_at_once(message: type[Message]) -> None:
    api_key: Any = getattr(message, "API_KEY")  # noqa: B009 - only the classes of APIs have it
    version = random.Random(message.__name__).choice(versions_of(message))
    encode = codec.response_encoder_in_steps(api_key, version)
    decode = codec.response_decoder_in_steps(api_key, version)

    @_quick
    @given(messages_of(message, version), st.binary(max_size=3), st.integers(1, 9))
    def check(value: Any, around: bytes, missing: int) -> None:
        body = b"".join(all_at_once(encode(value)))
        assert body == b"".join(codec.encoder(message, version)(value))
        buffer = around + body + around
        assert all_at_once(decode(buffer, len(around))) == (value, len(around) + len(body))
        if body:
            with pytest.raises(codec.MalformedMessageError):
                all_at_once(decode(body[:-missing], 0))

    check()


@pytest.mark.parametrize("version", [7, 9])
def test_no_step_of_a_decoder_grows_with_the_response(version: int) -> None:
    def most_calls(count: int) -> int:
        response = OffsetFetchResponse()
        if version < 8:
            partitions = [OffsetFetchResponsePartition(number) for number in range(count)]
            response.topics = [OffsetFetchResponseTopic("t", partitions)]
        else:
            of_group = [OffsetFetchResponsePartitions(number) for number in range(count)]
            topics = [OffsetFetchResponseTopics("t", partitions=of_group)]
            response.groups = [OffsetFetchResponseGroup("g", topics)]
        body = b"".join(codec.response_encoder(ApiKey.OFFSET_FETCH, version)(response))
        steps = codec.response_decoder_in_steps(ApiKey.OFFSET_FETCH, version)(body, 0)
        return max(calls_of(lambda: next(steps, None)) for _ in range(2 * count))

    assert most_calls(500) <= most_calls(5) + 5


@pytest.mark.parametrize("message", record_classes())
def test_record_keys_and_values_decode_to_equal_messages(message: type[Message]) -> None:
    record_codec = codec.record_codec(message)
    version = random.Random(message.__name__).choice(versions_of(message))

    @_quick
    @given(messages_of(message, version))
    def check(value: Any) -> None:
        assert record_codec.decode(record_codec.encode(value, version)) == value

    check()
