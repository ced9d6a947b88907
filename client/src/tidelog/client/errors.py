"""What keeps a call from its answer. An answer that is a refusal is `tidelog.model.errors.KafkaError`."""

from __future__ import annotations


class ClientError(Exception):
    """No usable answer; the message is one sentence that names the broker and, if it can, the next step."""


class BadAddressError(ClientError):
    """The bootstrap string is no list of HOST:PORT."""


class UnreachableError(ClientError):
    """No connection could be made."""


class AdvertisedUnreachableError(UnreachableError):
    """A broker was found, but not at the address that it tells clients to use."""


class ConnectionLostError(ClientError):
    """The connection ended before the answer was there."""


class NoAnswerError(ClientError):
    """The answer did not come in time."""


class NotKafkaError(ClientError):
    """What answers is no Kafka broker, or wants TLS."""


class UnsupportedApiError(ClientError):
    """The broker does not serve the API, or no version of it that can do what was asked."""
