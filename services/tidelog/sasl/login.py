"""The client's side of SASL: a login, and its exchange of tokens."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tidelog.sasl import PLAIN
from tidelog.sasl.jaas import LoginModule
from tidelog.sasl.plain import PlainLogin
from tidelog.sasl.scram import MECHANISM_BY_NAME, ClientExchange

LOGIN_MECHANISMS = (PLAIN, *MECHANISM_BY_NAME)
"""The mechanisms with which tidelog's own clients log in."""


class ClientTokens(Protocol):
    """The client's side of one exchange."""

    def first(self) -> bytes: ...

    def reply(self, challenge: bytes) -> bytes | None:
        """Returns the next token, or None if the exchange is complete. Raises AuthenticationError."""
        ...


class ClientLogin(Protocol):
    """A login of a client with one mechanism."""

    @property
    def mechanism(self) -> str: ...

    @property
    def user(self) -> str: ...

    def tokens(self, nonce: str) -> ClientTokens:
        """Begins an exchange. Raises AuthenticationError if a token cannot be obtained."""
        ...


class SaslLogin(NamedTuple):
    """A user's login. `is_token` means that the user is the id of a delegation token."""

    mechanism: str
    user: str
    password: str
    is_token: bool = False

    @classmethod
    def from_module(cls, mechanism: str, module: LoginModule) -> SaslLogin:
        """Returns the login of a login module. Raises ValueError if an option is missing."""
        for name in ("username", "password"):
            if not module.options.get(name):
                raise ValueError(f"the login module has no option {name}")
        is_token = module.options.get("tokenauth", "").lower() == "true"
        return cls(mechanism, module.options["username"], module.options["password"], is_token)

    def tokens(self, nonce: str) -> ClientTokens:
        """Begins an exchange. `nonce` is random text without commas, for SCRAM."""
        return _PlainTokens(self) if self.mechanism == PLAIN else _ScramTokens(self, nonce)

    def __repr__(self) -> str:
        return f"SaslLogin({self.mechanism!r}, {self.user!r}, [hidden])"


class _PlainTokens:
    def __init__(self, login: SaslLogin) -> None:
        self._login = login

    def first(self) -> bytes:
        return PlainLogin("", self._login.user, self._login.password).encode()

    def reply(self, challenge: bytes) -> bytes | None:
        return None


class _ScramTokens:
    def __init__(self, login: SaslLogin, nonce: str) -> None:
        mechanism = MECHANISM_BY_NAME[login.mechanism]
        self._exchange = ClientExchange(mechanism, login.user, login.password, nonce, is_token=login.is_token)
        self._is_last = False

    def first(self) -> bytes:
        return self._exchange.first

    def reply(self, challenge: bytes) -> bytes | None:
        if self._is_last:
            self._exchange.check(challenge)
            return None
        self._is_last = True
        return self._exchange.reply(challenge)
