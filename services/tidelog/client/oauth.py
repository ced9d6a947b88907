"""Logins with OAUTHBEARER: with a token that a tool requests from an identity provider by client credentials,
or with one that a user has.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Final, NamedTuple

from tidelog.process.direct_requests import open_directly
from tidelog.sasl import OAUTHBEARER, AuthenticationError
from tidelog.sasl.login import ClientTokens
from tidelog.sasl.oauthbearer import BearerMessage

TOKEN_TIMEOUT_S: Final = 30.0
MAX_RESPONSE_BYTES: Final = 1024 * 1024
REUSED_UNTIL: Final = 0.8
"""The part of a token's lifetime during which it is used for further connections."""


class _Cached(NamedTuple):
    token: str
    reusable_until_s: float


class OAuthLogin:
    """A client of an identity provider. One object is used for all connections of a tool."""

    mechanism: Final = OAUTHBEARER

    def __init__(self, endpoint_url: str, client_id: str, client_secret: str, scope: str) -> None:
        self.user = client_id
        self._endpoint_url = endpoint_url
        self._secret = client_secret
        self._scope = scope
        self._cached: _Cached | None = None

    def __repr__(self) -> str:
        return f"OAuthLogin({self.user!r}, [hidden])"

    def tokens(self, nonce: str) -> ClientTokens:
        """Begins an exchange, and requests a token if there is none. Raises AuthenticationError."""
        cached = self._cached
        if cached is None or time.monotonic() > cached.reusable_until_s:
            cached = self._cached = self._request()
        return _BearerTokens(cached.token)

    def _request(self) -> _Cached:
        form = {"grant_type": "client_credentials"}
        if self._scope:
            form["scope"] = self._scope
        user, secret = (urllib.parse.quote_plus(text) for text in (self.user, self._secret))
        request = urllib.request.Request(
            self._endpoint_url,
            urllib.parse.urlencode(form).encode(),
            {"Authorization": "Basic " + base64.b64encode(f"{user}:{secret}".encode()).decode()},
        )
        try:
            with open_directly(request, TOKEN_TIMEOUT_S) as response:
                answer = json.loads(response.read(MAX_RESPONSE_BYTES))
            token, lifetime_s = str(answer["access_token"]), float(answer.get("expires_in", 0))
        except urllib.error.HTTPError as error:
            error.close()
            step = ""
            if place := error.headers.get("Location"):
                step = f"; the secret is not sent to {place}: set sasl.oauthbearer.token.endpoint.url to it"
            raise AuthenticationError(
                f"{self._endpoint_url} gives no token to {self.user}: HTTP status {error.code}{step}"
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise AuthenticationError(f"{self._endpoint_url} gives no token: {error}") from None
        return _Cached(token, time.monotonic() + REUSED_UNTIL * lifetime_s)


class TokenLogin(NamedTuple):
    """The login of the holder of a bearer token. `user` is the name in the token."""

    user: str
    token: str

    @property
    def mechanism(self) -> str:
        return OAUTHBEARER

    def __repr__(self) -> str:
        return f"TokenLogin({self.user!r}, [hidden])"

    def tokens(self, nonce: str) -> ClientTokens:
        """Begins an exchange. A connection that authenticates again sends the same token."""
        return _BearerTokens(self.token)


class _BearerTokens:
    def __init__(self, token: str) -> None:
        self._token = token

    def first(self) -> bytes:
        return BearerMessage("", self._token).encode()

    def reply(self, challenge: bytes) -> bytes | None:
        if challenge:
            raise AuthenticationError("the broker does not accept the token")
        return None
