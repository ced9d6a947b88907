"""Encoders and decoders of all messages. The codec makes one pair for each message and version, at its first
use.

A decoder takes (buffer, position) and returns (message, end position). It copies strings; `bytes` and
`records` are views into the buffer. An encoder takes a message and returns the chunks of its body: bytes, and
between them each `records` value as it was passed.

Decoders of requests enforce the API's limit of elements (`api_keys.py`). An encoder or decoder in steps
is a generator, so that its caller can do other work in the middle of a large response.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable, Generator
from functools import cache
from typing import Any, Generic, TypeAlias, TypeVar

from tidelog.wire.api_keys import api_spec, max_elements
from tidelog.wire.decoder_source import write_decoder
from tidelog.wire.encoder_source import write_encoder
from tidelog.wire.malformed import MalformedMessageError, UnsupportedVersionError
from tidelog.wire.schema import Buffer, Message

__all__ = [
    "Decoder",
    "Encoder",
    "MalformedMessageError",
    "RecordCodec",
    "StepDecoder",
    "StepEncoder",
    "UnsupportedVersionError",
    "decoder",
    "encoder",
    "record_codec",
    "request_class",
    "request_decoder",
    "request_encoder",
    "response_class",
    "response_decoder",
    "response_decoder_in_steps",
    "response_encoder",
    "response_encoder_in_steps",
]

# `Any`: messages have only the base `Message`, and each handler and caller uses the class of its own API. The
# chunks of an encoder are bytes and `Records`.
Decoder: TypeAlias = Callable[[Buffer, int], tuple[Any, int]]
Encoder: TypeAlias = Callable[[Any], list[Any]]
StepEncoder: TypeAlias = Callable[[Any], Generator[None, None, list[Any]]]
StepDecoder: TypeAlias = Callable[[Buffer, int], Generator[None, None, tuple[Any, int]]]

_INT16 = struct.Struct(">h")


@cache
def decoder(message: type[Message], version: int) -> Decoder:
    """Returns the decoder of a message in a version. Raises UnsupportedVersionError. For any bytes, the
    decoder raises no other error than MalformedMessageError.
    """
    _require(message, version)
    return write_decoder(message, version).compile("decode", message, version)


@cache
def encoder(message: type[Message], version: int) -> Encoder:
    """Returns the encoder of a message in a version. Raises UnsupportedVersionError.

    The encoder leaves out the fields that the version does not have. It raises TypeError or AttributeError
    for None in a field that is not nullable in the version, and struct.error for a number out of range.
    """
    _require(message, version)
    return write_encoder(message, version).compile("encode", message, version)


def _require(message: type[Message], version: int) -> None:
    first, last = message.VERSIONS
    if not first <= version <= last:
        raise UnsupportedVersionError(message.__name__, version)


def request_class(api_key: int) -> type[Message]:
    """Returns the dataclass of an API's request. Imports its module at the first use."""
    return _message_class(api_key, "Request")


def response_class(api_key: int) -> type[Message]:
    return _message_class(api_key, "Response")


def _message_class(api_key: int, suffix: str) -> type[Message]:
    spec = api_spec(api_key)
    module = importlib.import_module(f"tidelog.wire.messages.{spec.module}")
    found: type[Message] = getattr(module, spec.name + suffix)
    return found


@cache
def request_decoder(api_key: int, version: int) -> Decoder:
    """Returns the decoder of an API's request, which refuses a request with too many elements. Raises
    UnsupportedVersionError for an API or version that Kafka 4.3 does not serve.
    """
    message = request_class(api_key)
    _require(message, version)
    return write_decoder(message, version, max_elements(api_key)).compile("decode", message, version)


def request_encoder(api_key: int, version: int) -> Encoder:
    return encoder(request_class(api_key), version)


def response_decoder(api_key: int, version: int) -> Decoder:
    return decoder(response_class(api_key), version)


@cache
def response_decoder_in_steps(api_key: int, version: int) -> StepDecoder:
    """Returns a generator function that decodes an API's response as `response_decoder` does."""
    message = response_class(api_key)
    _require(message, version)
    return write_decoder(message, version, in_steps=True).compile("decode", message, version, " in steps")


def response_encoder(api_key: int, version: int) -> Encoder:
    """Returns the encoder of an API's response, without the header. A `records` value becomes a chunk of its
    own and is not copied; an empty one becomes no chunk.
    """
    return encoder(response_class(api_key), version)


@cache
def response_encoder_in_steps(api_key: int, version: int) -> StepEncoder:
    """Returns a generator function that encodes an API's response as `response_encoder` does."""
    message = response_class(api_key)
    _require(message, version)
    return write_encoder(message, version, in_steps=True).compile("encode", message, version, " in steps")


M = TypeVar("M", bound=Message)


class RecordCodec(Generic[M]):
    """Encodes and decodes the keys and values of internal topics and the data of the consumer protocol. An
    int16 precedes the body.

    The int16 of a value is its version. The int16 of a coordinator's key is the kind of the record (API_KEY
    in the definition), and its body has version 0. Source: Kafka's MessageUtil.
    """

    def __init__(self, message: type[M]) -> None:
        self.message = message
        self.prefix: int | None = (
            getattr(message, "API_KEY", None) if message.__name__.endswith("Key") else None
        )

    def encode(self, message: M, version: int | None = None) -> bytes:
        """Encodes the message in `version`, or in the latest one. A key has only one version."""
        if version is None:
            version = self.message.VERSIONS[1]
        prefix = version if self.prefix is None else self.prefix
        return b"".join((_INT16.pack(prefix), *encoder(self.message, version)(message)))

    def decode(self, data: Buffer, *, newer_as_newest: bool = False) -> M:
        """Returns the message in `data`. Raises UnsupportedVersionError if the prefix is another kind or
        version, and MalformedMessageError if the bytes are not a message.

        With `newer_as_newest`, a version above the latest known one is decoded as the latest one, and the
        bytes after it are ignored, as the consumer protocol requires.
        """
        if len(data) < _INT16.size:
            raise MalformedMessageError(
                f"{self.message.__name__}: {len(data)} bytes are too short for a version"
            )
        prefix: int = _INT16.unpack_from(data, 0)[0]
        first, last = self.message.VERSIONS
        if self.prefix is None:
            version = last if newer_as_newest and prefix > last else prefix
        elif prefix == self.prefix:
            version = first
        else:
            raise UnsupportedVersionError(f"{self.message.__name__} (kind {self.prefix})", prefix)
        message: M = decoder(self.message, version)(data, _INT16.size)[0]
        return message


_record_codecs: dict[type[Message], RecordCodec[Any]] = {}  # each of the class under which it is stored


def record_codec(message: type[M]) -> RecordCodec[M]:
    """Returns the codec of a class of tidelog.wire.messages.records."""
    made = _record_codecs.get(message)
    if made is None:
        made = _record_codecs[message] = RecordCodec(message)
    return made


def record_kind(key: Buffer) -> int:
    """Returns the int16 before the key of a coordinator's record, which is the kind of the record. Raises
    MalformedMessageError.
    """
    if len(key) < _INT16.size:
        raise MalformedMessageError(f"a record key of {len(key)} bytes is too short for a kind")
    kind: int = _INT16.unpack_from(key, 0)[0]
    return kind
