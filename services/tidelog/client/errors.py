"""The exceptions of calls without a response. An error in a response is `tidelog.model.errors.KafkaError`."""

from __future__ import annotations

from tidelog.model.errors import TidelogError


class ClientError(TidelogError):
    """No usable response. The message is one sentence that names the broker and, if known, the next step."""


class BadAddressError(ClientError):
    """The bootstrap string is not a list of HOST:PORT."""


class UnreachableError(ClientError):
    """The connection failed."""


class AdvertisedUnreachableError(UnreachableError):
    """A broker answers, but not at the address that it advertises to clients."""


class BrokerGoneError(UnreachableError):
    """A broker that answered before can't be reached any more."""


class ConnectionLostError(ClientError):
    """The connection ended before the response arrived."""


class NoAnswerError(ClientError):
    """The response did not arrive in time."""


class AuthenticationFailedError(ClientError):
    """The broker does not accept the client's login, or requires one."""


class MechanismRefusedError(AuthenticationFailedError):
    """The broker does not accept the SASL mechanism, so that it has not seen the login."""


class NotTrustedError(ClientError):
    """The TLS handshake failed: the broker's certificate is not trusted, or the client's is not."""


class NotKafkaError(ClientError):
    """The server is not a Kafka broker, or it requires TLS."""


class UnsupportedApiError(ClientError):
    """The broker does not serve the API, or not in a version that supports the call."""


class CorruptFetchError(ClientError):
    """The response has a batch with a wrong CRC, or records that their producer damaged."""
