"""PLAIN (RFC 4616): the client sends its user name and password in one message."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final, NamedTuple

from tidelog.sasl import AuthenticationError

MAX_TOKEN_BYTES: Final = 16_384
_SEPARATOR: Final = "\0"
_PARTS: Final = 3


class PlainLogin(NamedTuple):
    """A client's message. An empty `authorization_id` means the user itself."""

    authorization_id: str
    user: str
    password: str

    @classmethod
    def parse(cls, token: bytes) -> PlainLogin:
        """Raises AuthenticationError."""
        if len(token) > MAX_TOKEN_BYTES:
            raise AuthenticationError(f"a PLAIN message of {len(token)} bytes")
        try:
            parts = token.decode().split(_SEPARATOR)
        except UnicodeDecodeError:
            raise AuthenticationError("the PLAIN message is not UTF-8") from None
        if len(parts) != _PARTS:
            raise AuthenticationError("the PLAIN message does not have three parts")
        login = cls(*parts)
        if not login.user or not login.password:
            raise AuthenticationError("the PLAIN message has no user name or no password")
        return login

    def encode(self) -> bytes:
        return _SEPARATOR.join(self).encode()

    def __repr__(self) -> str:
        return f"PlainLogin(user={self.user!r}, [hidden])"


def user_of(login: PlainLogin, passwords: Mapping[str, str]) -> str:
    """Returns the user if the password is right. Raises AuthenticationError.

    The comparison takes the same time for an unknown user as for a wrong password.
    """
    expected = passwords.get(login.user)
    given = login.password.encode()
    is_right = hmac.compare_digest(given, given + b"\0" if expected is None else expected.encode())
    if not is_right:
        raise AuthenticationError("the user name or the password is wrong")
    if login.authorization_id not in ("", login.user):
        raise AuthenticationError("the client requested another authorization id than its own user name")
    return login.user
