"""TLS and SASL of the tools' connections, from a file with the properties of Kafka's clients.

The names are those of Kafka: `security.protocol`, `sasl.mechanism`, `sasl.jaas.config`,
`ssl.truststore.location` and `.certificates`, `ssl.keystore.location`, `.key` and `.certificate.chain`. Keys
and certificates are PEM.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import ssl
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from tidelog.client.errors import ClientError
from tidelog.process.direct_requests import open_directly
from tidelog.sasl import OAUTHBEARER, AuthenticationError
from tidelog.sasl.jaas import JaasError, parse_jaas
from tidelog.sasl.login import LOGIN_MECHANISMS, ClientLogin, ClientTokens, SaslLogin
from tidelog.sasl.oauthbearer import USER_CLAIM, BearerMessage
from tidelog.settings.properties_file import PropertiesError, parse_properties

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


COMMAND_CONFIG_VARIABLE: Final = "TIDELOG_COMMAND_CONFIG"
SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MAX_FILE_BYTES: Final = 1024 * 1024
_SECURITY_PREFIXES: Final = ("security.", "sasl.", "ssl.")
_CREDENTIALS: Final = "sasl.oauthbearer.client.credentials."
_OWN_LOGIN: Final = (
    "sasl.jaas.config",
    "sasl.oauthbearer.token.endpoint.url",
    f"{_CREDENTIALS}client.id",
    f"{_CREDENTIALS}client.secret",
)
"""The properties with the login of one client."""
_PEM: Final = "PEM"
_PROTOCOL_VERSIONS: Final = frozenset({"TLSv1.2", "TLSv1.3"})


class SecurityConfigError(ClientError):
    """A property is not valid. The message is one sentence that names the property."""


class ClientSecurity(NamedTuple):
    """The security of a client's connections."""

    tls: ssl.SSLContext | None = None
    login: ClientLogin | None = None

    @property
    def protocol(self) -> str:
        if self.login is None:
            return "PLAINTEXT" if self.tls is None else "SSL"
        return "SASL_PLAINTEXT" if self.tls is None else "SASL_SSL"


NO_SECURITY: Final = ClientSecurity()


class UsersSecurity(NamedTuple):
    """The security of connections for users who are not known yet. With OAUTHBEARER, `user_claim` is the
    claim of a token that names its user.
    """

    tls: ssl.SSLContext | None
    mechanism: str
    user_claim: str = USER_CLAIM

    def of(self, login: ClientLogin) -> ClientSecurity:
        return ClientSecurity(self.tls, login)


def read_security(path: Path) -> ClientSecurity:
    """Returns the security that a file of client properties describes. Properties of other subjects, such as
    `acks`, are ignored. Raises SecurityConfigError.
    """
    with naming(path):
        return parse_security(security_properties(path))


def read_users_security(path: Path) -> UsersSecurity:
    """Returns the security that a file of client properties describes, which contains no login. Raises
    SecurityConfigError.
    """
    with naming(path):
        return parse_users_security(security_properties(path))


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds the name of a file to the message of SecurityConfigError."""
    try:
        yield
    except SecurityConfigError as error:
        if str(error).startswith(str(path)):
            raise
        raise SecurityConfigError(f"{path}: {error}") from None


def environment_security() -> ClientSecurity:
    """Returns the security that the file in TIDELOG_COMMAND_CONFIG describes, or none. Raises
    SecurityConfigError.
    """
    path = os.environ.get(COMMAND_CONFIG_VARIABLE)
    return read_security(Path(path)) if path else NO_SECURITY


def environment_properties() -> dict[str, str]:
    """Returns the properties of TLS and SASL in the file in TIDELOG_COMMAND_CONFIG, for other Kafka clients.
    Raises SecurityConfigError.
    """
    path = os.environ.get(COMMAND_CONFIG_VARIABLE)
    return security_properties(Path(path)) if path else {}


def security_properties(path: Path) -> dict[str, str]:
    """Returns the properties of TLS and SASL in a file. Raises SecurityConfigError."""
    found = file_properties(path)
    return {name: value for name, value in found.items() if name.startswith(_SECURITY_PREFIXES)}


def file_properties(path: Path) -> dict[str, str]:
    """Returns the properties in a file. Raises SecurityConfigError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise SecurityConfigError(f"{path} has more than {MAX_FILE_BYTES} bytes")
        properties = parse_properties(data.decode())
    except OSError as error:
        raise SecurityConfigError(f"{path} can't be read: {error.strerror}") from error
    except (UnicodeDecodeError, PropertiesError) as error:
        raise SecurityConfigError(f"{path}: {error}") from None
    return {found.name: found.value.strip() for found in properties}


def parse_security(properties: Mapping[str, str]) -> ClientSecurity:
    """Returns the security that these properties of Kafka's clients describe. Raises SecurityConfigError."""
    given, protocol = _given_with_protocol(properties)
    login = _login(given) if protocol.startswith("SASL_") else None
    tls = _tls(given) if protocol.endswith("SSL") else None
    if protocol in ("SASL_SSL", "SSL") or login is not None:
        given.check_used(protocol)
    return ClientSecurity(tls, login)


def parse_users_security(properties: Mapping[str, str]) -> UsersSecurity:
    """Returns the security that these properties describe for users who log in later. Raises
    SecurityConfigError.
    """
    given, protocol = _given_with_protocol(properties)
    if protocol == "SSL":
        raise SecurityConfigError(
            "security.protocol: with SSL, brokers know users by keys, which the console cannot borrow; "
            "name a listener with SASL_SSL and SCRAM, where such users log in with a delegation token"
        )
    if not protocol.startswith("SASL_"):
        raise SecurityConfigError(
            f"security.protocol: {protocol} has no login; name a listener with SASL_SSL or SASL_PLAINTEXT"
        )
    for name in _OWN_LOGIN:
        if given.take(name):
            raise SecurityConfigError(
                f"{name}: each user logs in with a login of their own; remove the property"
            )
    mechanism = given.take("sasl.mechanism", "GSSAPI")
    if mechanism not in (*LOGIN_MECHANISMS, OAUTHBEARER):
        known = ", ".join((*LOGIN_MECHANISMS, OAUTHBEARER))
        raise SecurityConfigError(f"sasl.mechanism: {mechanism} is not one of {known}")
    user_claim = given.take("sasl.oauthbearer.sub.claim.name") if mechanism == OAUTHBEARER else ""
    tls = _tls(given) if protocol.endswith("SSL") else None
    given.check_used(protocol)
    return UsersSecurity(tls, mechanism, user_claim or USER_CLAIM)


def parse_tls(properties: Mapping[str, str]) -> ssl.SSLContext:
    """Returns the TLS that properties with the prefix `ssl.` describe. Raises SecurityConfigError, whose
    message begins with the name of the property.
    """
    given = _Given(properties)
    tls = _tls(given)
    given.check_used("SSL")
    return tls


def _given_with_protocol(properties: Mapping[str, str]) -> tuple[_Given, str]:
    given = _Given({name: text for name, text in properties.items() if name.startswith(_SECURITY_PREFIXES)})
    protocol = given.take("security.protocol", "PLAINTEXT").upper()
    if protocol not in SECURITY_PROTOCOLS:
        raise SecurityConfigError(
            f"security.protocol: {protocol} is not one of {', '.join(SECURITY_PROTOCOLS)}"
        )
    return given, protocol


class _Given:
    """The given properties, and which of them were used."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._left = dict(properties)

    def take(self, name: str, default: str = "") -> str:
        return self._left.pop(name, default)

    def check_used(self, protocol: str) -> None:
        unused = [
            name
            for name in sorted(self._left)
            if name.startswith("security.")
            or (name.startswith("sasl.") and protocol.startswith("SASL_"))
            or (name.startswith("ssl.") and protocol.endswith("SSL"))
        ]
        if unused:
            raise SecurityConfigError(f"{unused[0]} is not supported")


def _login(given: _Given) -> ClientLogin:
    mechanism = given.take("sasl.mechanism", "GSSAPI")
    if mechanism == OAUTHBEARER:
        return _oauth_login(given)
    if mechanism not in LOGIN_MECHANISMS:
        known = ", ".join((*LOGIN_MECHANISMS, OAUTHBEARER))
        raise SecurityConfigError(f"sasl.mechanism: {mechanism} is not one of {known}")
    try:
        return SaslLogin.from_module(mechanism, parse_jaas(given.take("sasl.jaas.config")))
    except (JaasError, ValueError) as error:
        raise SecurityConfigError(f"sasl.jaas.config: {error}") from None


def _oauth_login(given: _Given) -> OAuthLogin:
    """Returns the login by client credentials. As in Kafka, properties precede the options of the login
    module.
    """
    url = given.take("sasl.oauthbearer.token.endpoint.url")
    if urlsplit(url).scheme not in ("https", "http"):
        raise SecurityConfigError("sasl.oauthbearer.token.endpoint.url: it must be a URL with https or http")
    given.take("sasl.login.callback.handler.class")  # Java's class for what tidelog always does
    jaas = given.take("sasl.jaas.config")
    try:
        options = parse_jaas(jaas).options if jaas else {}
    except JaasError as error:
        raise SecurityConfigError(f"sasl.jaas.config: {error}") from None
    client_id = given.take(f"{_CREDENTIALS}client.id") or options.get("clientId", "")
    secret = given.take(f"{_CREDENTIALS}client.secret") or options.get("clientSecret", "")
    scope = given.take("sasl.oauthbearer.scope") or options.get("scope", "")
    if not client_id or not secret:
        raise SecurityConfigError(
            f"{_CREDENTIALS}client.id: OAUTHBEARER needs a client id and a client secret"
        )
    return OAuthLogin(url, client_id, secret, scope)


def _tls(given: _Given) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    checks = given.take("ssl.endpoint.identification.algorithm", "https").lower()
    if checks not in ("https", ""):
        raise SecurityConfigError("ssl.endpoint.identification.algorithm: it must be https or empty")
    context.check_hostname = checks == "https"
    versions = [entry.strip() for entry in given.take("ssl.enabled.protocols").split(",") if entry.strip()]
    if not _PROTOCOL_VERSIONS.issuperset(versions):
        raise SecurityConfigError("ssl.enabled.protocols: only TLSv1.2 and TLSv1.3 are supported")
    if versions and "TLSv1.2" not in versions:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if versions and "TLSv1.3" not in versions:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    given.take("ssl.protocol")  # Java's context, whose versions ssl.enabled.protocols limits
    _trust(context, given)
    _identify(context, given)
    return context


def _trust(context: ssl.SSLContext, given: _Given) -> None:
    location, certificates = given.take("ssl.truststore.location"), given.take("ssl.truststore.certificates")
    _check_type(given, "ssl.truststore.type", bool(location or certificates))
    given.take("ssl.truststore.password")  # a PEM file of certificates is not encrypted
    try:
        if location:
            context.load_verify_locations(cafile=location)
        elif certificates:
            context.load_verify_locations(cadata=certificates)
    except (OSError, ValueError) as error:
        name = "ssl.truststore.location" if location else "ssl.truststore.certificates"
        raise SecurityConfigError(f"{name}: the certificates can't be read: {_reason(error)}") from None


def _identify(context: ssl.SSLContext, given: _Given) -> None:
    location = given.take("ssl.keystore.location")
    key, chain = given.take("ssl.keystore.key"), given.take("ssl.keystore.certificate.chain")
    _check_type(given, "ssl.keystore.type", bool(location or key))
    given.take("ssl.keystore.password")
    password = given.take("ssl.key.password")
    if not location and not key:
        return
    name = "ssl.keystore.location" if location else "ssl.keystore.key"
    try:
        with contextlib.nullcontext(location) if location else _key_file(f"{key}\n{chain}\n") as path:
            context.load_cert_chain(path, password=password or _no_password)
    except (OSError, ValueError) as error:
        raise SecurityConfigError(f"{name}: the key can't be read: {_reason(error)}") from None


def _no_password() -> str:
    """Answers for an encrypted key without ssl.key.password, so that OpenSSL does not ask the terminal."""
    raise ValueError("it is encrypted, but ssl.key.password is not set")


def _check_type(given: _Given, name: str, is_used: bool) -> None:
    kind = given.take(name, "JKS").upper()
    if is_used and kind != _PEM:
        raise SecurityConfigError(f"{name}: only PEM is supported, not {kind}")


@contextlib.contextmanager
def _key_file(text: str) -> Iterator[str]:
    """Holds a key in a file that only this user can read, because OpenSSL reads keys only from files."""
    descriptor, path = tempfile.mkstemp(prefix="tidelog-key-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        yield path
    finally:
        Path(path).unlink()


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "it is not PEM"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
