"""Every message in every version is decoded to the message that was encoded, to the last byte."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidelog.wire import codec
from tidelog.wire.schema import Message
from wirelab.catalogue import payload_classes, record_classes, versions_of
from wirelab.strategies import messages_of

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


@pytest.mark.parametrize("message", record_classes())
def test_record_keys_and_values_decode_to_equal_messages(message: type[Message]) -> None:
    record_codec = codec.record_codec(message)
    version = random.Random(message.__name__).choice(versions_of(message))

    @_quick
    @given(messages_of(message, version))
    def check(value: Any) -> None:
        assert record_codec.decode(record_codec.encode(value, version)) == value

    check()
