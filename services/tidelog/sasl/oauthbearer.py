"""OAUTHBEARER (RFC 7628, KIP-255): the client sends a bearer token, which the broker checks.

Only the message is parsed here. `broker/bearer_tokens.py` checks the token.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidelog.sasl import AuthenticationError

MAX_TOKEN_BYTES = 65_536
"""The limit of a client's message. Tokens with many claims have several kB."""
_SEPARATOR = "\x01"
_MESSAGE = re.compile(r"n,(?:a=(?P<authzid>[^,\x01]*))?,\x01(?P<pairs>.*\x01)\x01", re.DOTALL)
_BEARER = re.compile(r"[Bb]earer +([-A-Za-z0-9._~+/]+=*)")


class BearerMessage(NamedTuple):
    """The client's message. An empty `authorization_id` means the token's own user."""

    authorization_id: str
    token: str

    @classmethod
    def parse(cls, message: bytes) -> BearerMessage:
        """Raises AuthenticationError."""
        if len(message) > MAX_TOKEN_BYTES:
            raise AuthenticationError(f"an OAUTHBEARER message of {len(message)} bytes")
        try:
            match = _MESSAGE.fullmatch(message.decode())
        except UnicodeDecodeError:
            raise AuthenticationError("the OAUTHBEARER message is not UTF-8") from None
        if match is None:
            raise AuthenticationError("the OAUTHBEARER message is malformed")
        values = [
            pair.removeprefix("auth=")
            for pair in match["pairs"].split(_SEPARATOR)
            if pair.startswith("auth=")
        ]
        bearer = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
        if bearer is None:
            raise AuthenticationError("the OAUTHBEARER message has no bearer token")
        authorization_id = (match["authzid"] or "").replace("=2C", ",").replace("=3D", "=")
        return cls(authorization_id, bearer[1])

    def encode(self) -> bytes:
        escaped = self.authorization_id.replace("=", "=3D").replace(",", "=2C")
        authzid = f"a={escaped}" if escaped else ""
        return f"n,{authzid},\x01auth=Bearer {self.token}\x01\x01".encode()

    def __repr__(self) -> str:
        return "BearerMessage([hidden])"
