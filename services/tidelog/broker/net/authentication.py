"""Authentication of the connections of SASL listeners, before they may send other requests.

A connection goes through the phases of this table. Each connection has its own `ConnectionAuthentication`;
the connections of a listener share an `Authenticator`.

| phase | requests that are served | next phase |
|---|---|---|
| `HANDSHAKE` | ApiVersions, SaslHandshake | `TOKENS` after a handshake with an enabled mechanism |
| `TOKENS` | SaslAuthenticate | `DONE` after the last token, `FAILED` after a false one |
| `DONE` | all; SaslHandshake only if the session may expire (KIP-368) | `TOKENS` after another handshake |
| `FAILED` | none; the connection is closed after the delayed response | |

A connection that authenticates again also sends other requests until its session expires.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, defaultdict
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import structlog

from tidelog.broker.net.connection import ClosedByProtocolError
from tidelog.broker.security.audit import AUDIT
from tidelog.metadata.entries import DELEGATION_TOKEN_PREFIX, scram_credential_key
from tidelog.model.acl import Principal, user_principal
from tidelog.model.errors import ErrorCode
from tidelog.sasl import OAUTHBEARER, PLAIN, AuthenticationError
from tidelog.sasl.delegation_tokens import TOKEN_ITERATIONS, token_credential
from tidelog.sasl.oauthbearer import BearerMessage
from tidelog.sasl.plain import PlainLogin, user_of
from tidelog.sasl.scram import (
    MECHANISM_BY_NAME,
    NONCE_BYTES,
    ClientFirst,
    ScramCredential,
    ScramMechanism,
    ServerExchange,
    decoy_credential,
)
from tidelog.settings.sasl_settings import MIN_RECEIVE_BYTES, plan_sasl
from tidelog.settings.setting import Password
from tidelog.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from tidelog.broker.cluster.view import CurrentSettings, MetadataView
    from tidelog.broker.net.bearer_tokens import BearerTokens
    from tidelog.broker.net.connection import Connection
    from tidelog.kernel.clock import Clock
    from tidelog.metadata.entries import ScramCredentialEntry
    from tidelog.settings.broker_settings import BrokerSettings

MAX_LOGGED_NAME_CHARS: Final = 64
MAX_TOKEN_CREDENTIALS: Final = 10_000
"""The credentials of delegation tokens that a listener remembers, because each costs milliseconds."""
MIN_REAUTHENTICATION_INTERVAL_S: Final = 1.0
"""A connection may authenticate again once per second (KIP-368)."""

_log = structlog.get_logger(__name__)


class Login(NamedTuple):
    """The result of a complete exchange. `lifetime_ms` is the rest of the credential's own lifetime, or None
    if it has no end. `is_token` is whether the credential is a delegation token.
    """

    principal: Principal
    lifetime_ms: int | None = None
    is_token: bool = False


class Step(NamedTuple):
    """The answer to a client's token, and the login if it was the last token."""

    token: bytes
    login: Login | None = None


class TokenExchange(Protocol):
    """The server's side of one exchange of a mechanism."""

    def preparation(self, token: bytes) -> Awaitable[None] | None:
        """Returns what has to be awaited before `take`, or None."""
        ...

    def take(self, token: bytes) -> Step:
        """Returns the next step. Raises AuthenticationError."""
        ...


def _named(error: AuthenticationError, user: str) -> AuthenticationError:
    """Returns the error with the name that the client gave, for the audit log."""
    return AuthenticationError(f"{error} (user {user[:MAX_LOGGED_NAME_CHARS]!r})")


class _PlainExchange:
    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    def preparation(self, token: bytes) -> None:
        return None

    def take(self, token: bytes) -> Step:
        login = PlainLogin.parse(token)
        try:
            user = user_of(login, self._authenticator.plan.plain_passwords)
        except AuthenticationError as error:
            raise _named(error, login.user) from None
        return Step(b"", Login(user_principal(user)))


class _ScramExchange:
    def __init__(self, authenticator: Authenticator, mechanism: ScramMechanism) -> None:
        self._authenticator = authenticator
        self._mechanism = mechanism
        self._exchange: ServerExchange | None = None
        self._first: ClientFirst
        self._credential: ScramCredential | None

    def preparation(self, token: bytes) -> None:
        return None

    def take(self, token: bytes) -> Step:
        if self._exchange is None:
            return self._begin(ClientFirst.parse(token))
        try:
            answer = self._exchange.finish(token)
            # A client that authenticates again may take any time for its last message.
            credential, login = self._find(self._first)
            if credential != self._credential:
                raise AuthenticationError("the user's credential or token changed during the exchange")
        except AuthenticationError as error:
            raise _named(error, self._first.user) from None
        return Step(answer, login)

    def _begin(self, first: ClientFirst) -> Step:
        if first.authorization_id not in ("", first.user):
            raise AuthenticationError("the client requested another authorization id than its own user name")
        mechanism, authenticator = self._mechanism, self._authenticator
        self._first = first
        credential, _ = self._find(first)
        self._credential = credential
        is_known = credential is not None
        if credential is None:
            credential = authenticator.decoy(mechanism, first)
        self._exchange = ServerExchange(
            mechanism, first, credential, secrets.token_urlsafe(NONCE_BYTES), is_known=is_known
        )
        return Step(self._exchange.server_first)

    def _find(self, first: ClientFirst) -> tuple[ScramCredential | None, Login | None]:
        """Returns the current credential of the user or token, None if there is none, and the login that it
        proves.
        """
        if first.is_token:
            return self._authenticator.token_login(self._mechanism, first.user)
        entry = self._authenticator.metadata.security.scram_credentials.get(
            scram_credential_key(self._mechanism.name, first.user)
        )
        return None if entry is None else entry.credential, Login(user_principal(first.user))


class _BearerExchange:
    def __init__(self, tokens: BearerTokens, clock: Clock) -> None:
        self._tokens = tokens
        self._clock = clock

    def preparation(self, token: bytes) -> Awaitable[None] | None:
        message = BearerMessage.parse(token)
        return None if self._tokens.has_key_for(message.token) else self._tokens.read_keys()

    def take(self, token: bytes) -> Step:
        message, now_ms = BearerMessage.parse(token), self._clock.wall_ms()
        user, expires_ms = self._tokens.check(message.token, now_ms)
        if message.authorization_id not in ("", user):
            raise AuthenticationError("the client requested another authorization id than its token's user")
        return Step(b"", Login(user_principal(user), max(expires_ms - now_ms, 1)))


class _Decoys(NamedTuple):
    """The facts from which the credentials of unknown users follow."""

    credentials: Mapping[str, ScramCredentialEntry]
    secret: bytes
    counts: Mapping[str, Mapping[int, int]]
    """The users of each mechanism by the iterations of their credentials."""


class Authenticator:
    """The authentication of one listener's clients, as the current settings require it."""

    def __init__(
        self, listener_name: str, settings: CurrentSettings, metadata: MetadataView, clock: Clock
    ) -> None:
        self.listener_name = listener_name
        self._clock = clock
        self._bearer_tokens: BearerTokens | None = None
        self._token_credentials: dict[tuple[str, str], ScramCredential] = {}
        self.metadata = metadata
        self._settings = settings
        self._random_secret = secrets.token_bytes(32)
        self._decoys: _Decoys | None = None
        self.plan = plan_sasl(listener_name, settings.broker.listener_value)
        settings.observe(self._settings_changed)

    @property
    def settings(self) -> BrokerSettings:
        return self._settings.broker

    def guard(self, connection: Connection) -> None:
        """Lets a new connection send nothing but the requests of its authentication."""
        connection.authentication = connection.gate = ConnectionAuthentication(self, connection)
        connection.limit_frames(max(self.settings.sasl_server_max_receive_size, MIN_RECEIVE_BYTES))

    def exchange(self, mechanism: str) -> TokenExchange:
        """Returns a new exchange of an enabled mechanism."""
        if mechanism == PLAIN:
            return _PlainExchange(self)
        if mechanism == OAUTHBEARER:
            return _BearerExchange(self._tokens(), self._clock)
        return _ScramExchange(self, MECHANISM_BY_NAME[mechanism])

    def decoy(self, mechanism: ScramMechanism, first: ClientFirst) -> ScramCredential:
        """Returns the credential of an unknown user or token. All brokers make it from the same credential of
        a user, so a client cannot compare the answers of two brokers.
        """
        credentials = self.metadata.security.scram_credentials
        if self._decoys is None or self._decoys.credentials is not credentials:
            # Anybody may name unknown users, and this looks at all users. A change of the credentials
            # replaces the mapping.
            secret, counts = self._random_secret, defaultdict[str, Counter[int]](Counter)
            if credentials:
                secret = credentials[min(credentials)].credential.server_key
            for entry in credentials.values():
                counts[entry.mechanism][entry.credential.iterations] += 1
            self._decoys = _Decoys(credentials, secret, counts)
        counted = {TOKEN_ITERATIONS: 1} if first.is_token else self._decoys.counts.get(mechanism.name, {})
        return decoy_credential(mechanism, first.user, self._decoys.secret, counted)

    def token_login(
        self, mechanism: ScramMechanism, token_id: str
    ) -> tuple[ScramCredential | None, Login | None]:
        """Returns the credential of a delegation token and the login that it proves. The first is None if
        there is no such token, or if it has expired.
        """
        token = self.metadata.security.delegation_tokens.get(f"{DELEGATION_TOKEN_PREFIX}{token_id}")
        secret_key, now_ms = self.settings.delegation_token_secret_key, self._clock.wall_ms()
        if token is None or token.expiry_ms <= now_ms or not isinstance(secret_key, Password):
            return None, None
        known = self._token_credentials.get((mechanism.name, token_id))
        if known is None:
            known = token_credential(mechanism, secret_key.reveal().encode(), token_id)
            if len(self._token_credentials) >= MAX_TOKEN_CREDENTIALS:
                self._token_credentials.clear()
            self._token_credentials[mechanism.name, token_id] = known
        return known, Login(token.owner, token.expiry_ms - now_ms, is_token=True)

    def _tokens(self) -> BearerTokens:
        """Returns the keys for bearer tokens. The module is imported at the first use, because it needs a
        library that other mechanisms do not need.
        """
        from tidelog.broker.net.bearer_tokens import BearerTokens

        plan = self.plan.bearer
        assert plan is not None, "OAUTHBEARER is enabled"
        if self._bearer_tokens is None or self._bearer_tokens.plan != plan:
            self._bearer_tokens = BearerTokens(plan)
        return self._bearer_tokens

    def _settings_changed(self, settings: BrokerSettings) -> None:
        self.plan = plan_sasl(self.listener_name, settings.listener_value)


class Phase(Enum):
    HANDSHAKE = "handshake"
    TOKENS = "tokens"
    DONE = "done"
    FAILED = "failed"


_BEFORE_LOGIN: Final = {
    Phase.HANDSHAKE: frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE}),
    Phase.TOKENS: frozenset({ApiKey.SASL_AUTHENTICATE}),
    Phase.FAILED: frozenset[ApiKey](),
}
_OF_SASL: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})


class ConnectionAuthentication:
    """The authentication of one connection. While it is the connection's `gate`, it checks every request."""

    __slots__ = (
        "_authenticator",
        "_connection",
        "_deadline",
        "_exchange",
        "_expires_at_s",
        "_is_raw",
        "_logged_in_at_s",
        "_login",
        "mechanism",
        "phase",
    )

    def __init__(self, authenticator: Authenticator, connection: Connection) -> None:
        self._authenticator = authenticator
        self._connection = connection
        self._deadline: asyncio.TimerHandle | None = None
        self._exchange: TokenExchange | None = None
        self._expires_at_s: float | None = None  # of the monotonic clock; None without an end
        self._is_raw = False
        self._login: Login | None = None
        self._logged_in_at_s = 0.0
        self.mechanism = ""
        self.phase = Phase.HANDSHAKE

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The enabled mechanisms of the listener."""
        return self._authenticator.plan.mechanisms

    @property
    def is_expecting_token(self) -> bool:
        return self.phase is Phase.TOKENS

    @property
    def is_token_login(self) -> bool:
        return self._login is not None and self._login.is_token

    @property
    def takes_raw_tokens(self) -> bool:
        """Whether the next frame is a token without a request header: after a SaslHandshake v0."""
        return self._is_raw and self.phase is Phase.TOKENS

    @property
    def failure_delay_s(self) -> float:
        return self._authenticator.settings.connection_failed_authentication_delay_ms / 1000

    def start_deadline(self) -> None:
        """Closes the connection if it is not authenticated in time."""
        timeout_ms = self._authenticator.settings.tidelog_authentication_timeout_ms
        self._deadline = self._connection.loop.call_later(timeout_ms / 1000, self._timed_out)

    def end(self) -> None:
        """Releases what belongs to a connection that has ended."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def check(self, api_key: int) -> None:
        """Raises ClosedByProtocolError if a request of this API may not be served now."""
        if self._login is None:
            if api_key not in _BEFORE_LOGIN[self.phase]:
                raise ClosedByProtocolError(f"a request of API {api_key} before the authentication")
        elif self.phase is Phase.FAILED:
            raise ClosedByProtocolError(f"a request of API {api_key} after a failed authentication")
        elif self._expires_at_s is not None and monotonic() > self._expires_at_s and api_key not in _OF_SASL:
            raise ClosedByProtocolError("the session has expired, and the client did not authenticate again")

    def choose(self, mechanism: str, *, is_raw: bool) -> ErrorCode:
        """Takes a SaslHandshake. Returns NONE, or the error of the response. After
        UNSUPPORTED_SASL_MECHANISM and SASL_AUTHENTICATION_FAILED, the connection must be closed.
        """
        if self.phase is Phase.DONE:
            if self._expires_at_s is None:
                return ErrorCode.ILLEGAL_SASL_STATE
            if mechanism != self.mechanism or is_raw:
                return self._fail("a client must authenticate again with the same mechanism")
            if mechanism not in self.mechanisms:  # it was disabled after the login
                return self._fail_unsupported(mechanism)
            if monotonic() - self._logged_in_at_s < MIN_REAUTHENTICATION_INTERVAL_S:
                return self._fail("a client authenticated again within a second")
        elif self.phase is not Phase.HANDSHAKE:
            return ErrorCode.ILLEGAL_SASL_STATE
        elif mechanism not in self.mechanisms:
            return self._fail_unsupported(mechanism)
        self.mechanism = mechanism
        self.phase = Phase.TOKENS
        self._is_raw = is_raw
        self._exchange = self._authenticator.exchange(mechanism)
        return ErrorCode.NONE

    def preparation(self, token: bytes) -> Awaitable[None] | None:
        """Returns what has to be awaited before `take` of this token, or None. Raises AuthenticationError."""
        exchange = self._exchange
        assert exchange is not None, "choose comes first"
        try:
            return exchange.preparation(token)
        except AuthenticationError as error:
            self._fail(str(error))
            raise

    def take(self, token: bytes) -> tuple[bytes, int]:
        """Takes a client's token. Returns the answer and the lifetime of the session in ms (0 while the
        exchange continues, or if the session has no end). Raises AuthenticationError after a false token; the
        connection must then be closed.
        """
        exchange = self._exchange
        assert exchange is not None, "choose comes first"
        try:
            answer, login = exchange.take(token)
            if login is not None:
                return answer, self._succeed(login)
        except AuthenticationError as error:
            self._fail(str(error))
            raise
        return answer, 0

    def _succeed(self, login: Login) -> int:
        before = self._login
        if before is not None and before.principal != login.principal:
            raise AuthenticationError("a client must authenticate again as the same principal")
        self._exchange = None
        self.phase = Phase.DONE
        self._login = login
        self._logged_in_at_s = monotonic()
        max_ms = self._authenticator.plan.max_reauth_ms.get(self.mechanism, 0)
        limits_ms = [limit for limit in (max_ms or None, login.lifetime_ms) if limit is not None]
        lifetime_ms = max(min(limits_ms), 1) if limits_ms else 0
        # A token's own end counts without connections.max.reauth.ms, too.
        self._expires_at_s = self._logged_in_at_s + lifetime_ms / 1000 if limits_ms else None
        connection = self._connection
        connection.principal = login.principal
        if before is None:
            self.end()
            connection.limit_frames(connection.listener.max_request_bytes)
        self._check_requests(is_needed=self._expires_at_s is not None)
        self._report(None)
        return lifetime_ms

    def _fail(self, reason: str) -> ErrorCode:
        self._exchange = None
        self.phase = Phase.FAILED
        self._check_requests(is_needed=True)
        self._report(reason)
        return ErrorCode.SASL_AUTHENTICATION_FAILED

    def _check_requests(self, *, is_needed: bool) -> None:
        """Turns the checks of later requests on or off. A connection that has closed refuses all of them."""
        connection = self._connection
        if not connection.is_closed:
            connection.gate = self if is_needed else None

    def _fail_unsupported(self, mechanism: str) -> ErrorCode:
        self._fail(f"the mechanism {mechanism[:40]!r} is not enabled")
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM

    def _timed_out(self) -> None:
        self._deadline = None
        if self._login is None and self.phase is not Phase.FAILED:
            self._report("it was not complete within tidelog.authentication.timeout.ms")
            self._connection.close()

    def _report(self, failure: str | None) -> None:
        """Reports a login or its failure. This is the only place that does."""
        connection = self._connection
        peer = connection.peer
        listener = self._authenticator.listener_name
        connection.listener.login_ended(failure is None)
        AUDIT.login(connection.principal, connection.peer_host, self.mechanism, failure)
        if failure is None:
            _log.debug(
                "client authenticated",
                peer=peer,
                listener=listener,
                mechanism=self.mechanism,
                principal=connection.principal,
            )
        else:
            _log.debug(
                "authentication failed",
                peer=peer,
                listener=listener,
                mechanism=self.mechanism,
                reason=failure,
            )
