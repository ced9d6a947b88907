"""OAUTHBEARER (RFC 7628, KIP-255): the client sends a bearer token, which the broker checks.

Only the message and the claims are parsed here. `broker/net/bearer_tokens.py` checks the token.
"""

from __future__ import annotations

import base64
import json
import math
import re
from typing import Any, NamedTuple

from tidelog.kernel.instants import WallMs
from tidelog.sasl import AuthenticationError

MAX_TOKEN_BYTES = 65_536
"""The limit of a client's message. Tokens with many claims have several kB."""
_SEPARATOR = "\x01"
_MESSAGE = re.compile(r"n,(?:a=(?P<authzid>[^,\x01]*))?,\x01(?P<pairs>.*\x01)\x01", re.DOTALL)
_BEARER = re.compile(r"[Bb]earer +([-A-Za-z0-9._~+/]+=*)")
_JWT = re.compile(r"[-\w]+\.([-\w]+)\.[-\w]*", re.ASCII)
USER_CLAIM = "sub"
"""The claim with the user's name, unless `sasl.oauthbearer.sub.claim.name` names another one."""
_LAST_EXPIRY_S = 2**53


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


class TokenClaims(NamedTuple):
    """The claims of a bearer token that its holder needs. Nobody has checked its signature."""

    user: str
    expires_ms: WallMs

    @classmethod
    def read(cls, token: str, user_claim: str = USER_CLAIM) -> TokenClaims:
        """Raises AuthenticationError, whose message does not contain the token."""
        match = _JWT.fullmatch(token) if len(token) <= MAX_TOKEN_BYTES else None
        if match is None:
            raise AuthenticationError("it is not a JSON Web Token")
        text = match[1]
        try:
            claims: Any = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        except (ValueError, RecursionError):
            raise AuthenticationError("its claims are not JSON") from None
        user = claims.get(user_claim) if isinstance(claims, dict) else None
        if not isinstance(user, str) or not user:
            raise AuthenticationError(f"it has no claim {user_claim} with a name")
        expires_s = claims.get("exp")
        is_number = isinstance(expires_s, int | float) and not isinstance(expires_s, bool)
        if not is_number or not math.isfinite(expires_s) or not 0 <= expires_s <= _LAST_EXPIRY_S:
            raise AuthenticationError("it has no claim exp with a time")
        return cls(user, WallMs(int(expires_s * 1000)))
