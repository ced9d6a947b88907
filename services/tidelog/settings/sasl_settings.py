"""Broker settings of SASL, and the plan of a listener's authentication that follows from them.

`listener.name.NAME.SETTING` overrides a setting for one listener, and `listener.name.NAME.MECHANISM.SETTING`
for one mechanism of it. NAME and MECHANISM are in lower case, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from tidelog.sasl import MECHANISMS, OAUTHBEARER, PLAIN
from tidelog.sasl.jaas import JaasError, LoginModule, parse_jaas
from tidelog.sasl.login import LOGIN_MECHANISMS, SaslLogin
from tidelog.settings.network_settings import NetworkSettings
from tidelog.settings.setting import (
    HIGH,
    LOW,
    MEDIUM,
    PER_BROKER,
    Password,
    SettingError,
    Value,
    at_least,
    integer,
    long,
    optional_password,
    optional_string,
    string,
    strings,
)

LISTENER_PREFIX: Final = "listener.name."
JAAS_CONFIG: Final = "sasl.jaas.config"
ENABLED_MECHANISMS: Final = "sasl.enabled.mechanisms"
MAX_REAUTH_MS: Final = "connections.max.reauth.ms"
JWKS_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
_JWKS_SCHEMES: Final = ("https", "http", "file")
MIN_JWKS_PAUSE_MS: Final = 100
"""The broker reads keys at most this often, whatever the settings say."""
MIN_RECEIVE_BYTES: Final = 1024
"""A frame of a SASL exchange may be this long, whatever sasl.server.max.receive.size is."""


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class SaslSettings(NetworkSettings):
    """The settings of SASL. A base class of BrokerSettings."""

    sasl_enabled_mechanisms: tuple[str, ...] = strings(
        ("SCRAM-SHA-512",),
        MEDIUM,
        "SASL mechanisms that clients may use: " + ", ".join(MECHANISMS) + ".",
        mode=PER_BROKER,
    )
    sasl_mechanism_inter_broker_protocol: str = string(
        "SCRAM-SHA-512",
        MEDIUM,
        "SASL mechanism with which brokers log in to each other.",
        mode=PER_BROKER,
    )
    sasl_jaas_config: str | None = optional_password(
        MEDIUM,
        'Login module with options, in the syntax of JAAS. For PLAIN, user_NAME="PASSWORD" admits a user; '
        "username and password are the broker's own login at other brokers.",
        mode=PER_BROKER,
    )
    sasl_server_max_receive_size: int = integer(
        524_288, MEDIUM, "Maximum size in bytes of a request before the connection is authenticated."
    )
    connections_max_reauth_ms: int = long(
        0,
        MEDIUM,
        "Time after which a connection must authenticate again (KIP-368). The broker closes a connection "
        "that does not. 0 never requires it.",
    )
    connection_failed_authentication_delay_ms: int = integer(
        100,
        LOW,
        "Time that the broker waits before it answers a failed authentication and closes the connection.",
        at_least(0),
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = optional_string(
        MEDIUM, "URL (https, http or file) of the keys that sign the tokens of OAUTHBEARER."
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = long(
        3_600_000, LOW, "Interval at which the keys that sign tokens are read again."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = long(
        100, LOW, "First pause after a failed attempt to read the keys that sign tokens."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = long(
        10_000,
        LOW,
        "Longest pause between attempts to read the keys that sign tokens, and the pause after which a "
        "token with an unknown key may cause another attempt.",
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = strings(
        (), HIGH, "Audiences, one of which a token must name. If not set, the audience is not checked."
    )
    sasl_oauthbearer_expected_issuer: str | None = optional_string(
        HIGH, "Issuer that a token must name. If not set, the issuer is not checked."
    )
    sasl_oauthbearer_clock_skew_seconds: int = integer(
        30, LOW, "Tolerance for the times in a token, if the clocks of issuer and broker differ."
    )
    sasl_oauthbearer_sub_claim_name: str = string(
        "sub", LOW, "Name of the claim of a token that contains the user's name."
    )
    delegation_token_secret_key: str | None = optional_password(
        MEDIUM,
        "Secret from which delegation tokens are made, the same in all brokers and controllers. If not set, "
        "there are no delegation tokens.",
    )
    delegation_token_max_lifetime_ms: int = long(
        604_800_000,
        MEDIUM,
        "Maximum lifetime of a delegation token, however often it is renewed.",
        at_least(1),
    )
    delegation_token_expiry_time_ms: int = long(
        86_400_000, MEDIUM, "Time for which a delegation token is valid unless it is renewed.", at_least(1)
    )
    tidelog_authentication_timeout_ms: int = integer(
        10_000,
        MEDIUM,
        "Time within which a new connection to a SASL listener must be authenticated.",
        at_least(1),
    )


class BearerPlan(NamedTuple):
    """The rules for the tokens of OAUTHBEARER. Empty audiences and no issuer mean that any is accepted."""

    jwks_url: str
    refresh_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    audiences: tuple[str, ...]
    issuer: str | None
    clock_skew_s: int
    user_claim: str


class SaslPlan(NamedTuple):
    """The mechanisms of one listener. `max_reauth_ms` is by mechanism, and 0 means no limit."""

    mechanisms: tuple[str, ...]
    plain_passwords: Mapping[str, str]
    max_reauth_ms: Mapping[str, int]
    bearer: BearerPlan | None = None

    def __repr__(self) -> str:
        return f"SaslPlan({self.mechanisms})"


ListenerValue = Callable[[str, str, str], Value]
"""Returns the value of a setting for a listener and mechanism: `BrokerSettings.listener_value`."""


def plan_sasl(listener_name: str, value_for: ListenerValue) -> SaslPlan:
    """Returns the plan of a listener whose protocol is SASL_PLAINTEXT or SASL_SSL. Raises SettingError."""
    mechanisms = value_for(listener_name, ENABLED_MECHANISMS, "")
    assert isinstance(mechanisms, tuple)
    if not mechanisms:
        raise SettingError(ENABLED_MECHANISMS, f"{ENABLED_MECHANISMS}: {listener_name} has no mechanism")
    for mechanism in mechanisms:
        if mechanism not in MECHANISMS:
            raise SettingError(
                ENABLED_MECHANISMS,
                f"{ENABLED_MECHANISMS}: {mechanism} is not supported; there are {', '.join(MECHANISMS)}",
            )
    passwords: Mapping[str, str] = {}
    if PLAIN in mechanisms:
        module = login_module(listener_name, PLAIN, value_for)
        if module is None:
            name = _name(listener_name, PLAIN, JAAS_CONFIG)
            raise SettingError(
                name, f'{name}: PLAIN is enabled, so this must name its users (user_NAME="PASSWORD")'
            )
        passwords = module.user_passwords
    max_reauth_ms: dict[str, int] = {}
    for mechanism in mechanisms:
        limit = value_for(listener_name, MAX_REAUTH_MS, mechanism)
        assert isinstance(limit, int)
        max_reauth_ms[mechanism] = max(limit, 0)
    bearer = _plan_bearer(listener_name, value_for) if OAUTHBEARER in mechanisms else None
    return SaslPlan(mechanisms, passwords, max_reauth_ms, bearer)


def _plan_bearer(listener_name: str, value_for: ListenerValue) -> BearerPlan:
    # `Any`: the settings have different types, which their definitions check.
    def value(name: str) -> Any:
        return value_for(listener_name, f"sasl.oauthbearer.{name}", OAUTHBEARER)

    url = value("jwks.endpoint.url")
    if not url or urlsplit(url).scheme not in _JWKS_SCHEMES:
        raise SettingError(
            JWKS_URL, f"{JWKS_URL}: OAUTHBEARER is enabled, so this must be a URL with https, http or file"
        )
    return BearerPlan(
        url,
        max(value("jwks.endpoint.refresh.ms"), MIN_JWKS_PAUSE_MS),
        max(value("jwks.endpoint.retry.backoff.ms"), MIN_JWKS_PAUSE_MS),
        max(value("jwks.endpoint.retry.backoff.max.ms"), MIN_JWKS_PAUSE_MS),
        value("expected.audience"),
        value("expected.issuer") or None,
        max(value("clock.skew.seconds"), 0),
        value("sub.claim.name"),
    )


def inter_broker_login(listener_name: str, value_for: ListenerValue) -> SaslLogin:
    """Returns the login of this broker at other brokers' inter-broker listeners. Raises SettingError."""
    setting = "sasl.mechanism.inter.broker.protocol"
    mechanism = value_for(listener_name, setting, "")
    if mechanism not in LOGIN_MECHANISMS:
        raise SettingError(setting, f"{setting}: {mechanism} is not one of {', '.join(LOGIN_MECHANISMS)}")
    assert isinstance(mechanism, str)
    module = login_module(listener_name, mechanism, value_for)
    name = _name(listener_name, mechanism, JAAS_CONFIG)
    if module is None:
        raise SettingError(name, f"{name}: this must contain the login of this broker at other brokers")
    try:
        return SaslLogin.from_module(mechanism, module)
    except ValueError as error:
        raise SettingError(name, f"{name}: {error}") from None


def login_module(listener_name: str, mechanism: str, value_for: ListenerValue) -> LoginModule | None:
    """Returns the login module of a listener's mechanism, or None if none is set. Raises SettingError."""
    text = value_for(listener_name, JAAS_CONFIG, mechanism)
    if text is None:
        return None
    assert isinstance(text, Password)
    try:
        return parse_jaas(text.reveal())
    except JaasError as error:
        name = _name(listener_name, mechanism, JAAS_CONFIG)
        raise SettingError(name, f"{name}: {error}") from None


def _name(listener_name: str, mechanism: str, setting_name: str) -> str:
    return f"{LISTENER_PREFIX}{listener_name.lower()}.{mechanism.lower()}.{setting_name}"


def split_listener_setting(name: str) -> tuple[str, str, str] | None:
    """Returns the listener, the mechanism (or "") and the setting of `listener.name.NAME...`, both names in
    capitals. Returns None for another name.
    """
    if not name.startswith(LISTENER_PREFIX):
        return None
    listener_name, _, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
    for mechanism in MECHANISMS:
        if rest.startswith(mechanism.lower() + "."):
            return listener_name.upper(), mechanism, rest[len(mechanism) + 1 :]
    return listener_name.upper(), "", rest
