"""Broker settings of TLS, and the plan of a listener's certificates that follows from them.

`listener.name.NAME.ssl...` overrides a setting for one listener. A keystore or truststore is a PEM file or a
PKCS12 file; the broker recognizes the format by the contents.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.model.acl import Principal, user_principal
from tidelog.settings.sasl_settings import ListenerValue, SaslSettings
from tidelog.settings.setting import (
    LOW,
    MEDIUM,
    PER_BROKER,
    Password,
    SettingError,
    one_of,
    optional_password,
    optional_string,
    string,
    strings,
)

AUTHORITY: Final = "-authority"
"""The end of the use of a file with authorities in place of certificates."""
CLIENT_AUTH: Final = ("none", "requested", "required")
PROTOCOL_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
_RULE: Final = re.compile(r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)\s*(?:,\s*|$)")
_DEFAULT_RULE: Final = re.compile(r"DEFAULT\s*(?:,\s*|$)")


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class TlsSettings(SaslSettings):
    """The settings of TLS. A base class of BrokerSettings."""

    ssl_client_auth: str = string(
        "none",
        MEDIUM,
        "Whether clients show a certificate. Listeners with SASL ignore it.",
        one_of(*CLIENT_AUTH),
        mode=PER_BROKER,
    )
    ssl_enabled_protocols: tuple[str, ...] = strings(
        PROTOCOL_VERSIONS, MEDIUM, "TLS versions that clients may use.", mode=PER_BROKER
    )
    ssl_protocol: str = string(
        "TLSv1.3", MEDIUM, "Newest TLS version; ssl.enabled.protocols may limit it further.", mode=PER_BROKER
    )
    ssl_cipher_suites: tuple[str, ...] = strings(
        (),
        MEDIUM,
        "OpenSSL names of the cipher suites of TLS 1.2. If empty, OpenSSL's default.",
        mode=PER_BROKER,
    )
    ssl_keystore_type: str = string(
        "JKS",
        MEDIUM,
        "Format of ssl.keystore.location: PEM or PKCS12. With JKS, the broker recognizes these two.",
        mode=PER_BROKER,
    )
    ssl_keystore_location: str | None = optional_string(
        MEDIUM, "File with the broker's private key and certificate chain: PEM or PKCS12.", mode=PER_BROKER
    )
    ssl_keystore_password: str | None = optional_password(
        MEDIUM, "Password of the PKCS12 file ssl.keystore.location.", mode=PER_BROKER
    )
    ssl_key_password: str | None = optional_password(
        MEDIUM, "Password of the private key, if a PEM key is encrypted.", mode=PER_BROKER
    )
    ssl_keystore_key: str | None = optional_password(
        MEDIUM, "The private key itself, in PEM, instead of ssl.keystore.location.", mode=PER_BROKER
    )
    ssl_keystore_certificate_chain: str | None = optional_password(
        MEDIUM, "The certificate chain itself, in PEM, for ssl.keystore.key.", mode=PER_BROKER
    )
    ssl_truststore_type: str = string(
        "JKS",
        MEDIUM,
        "Format of ssl.truststore.location: PEM or PKCS12. With JKS, the broker recognizes these two.",
        mode=PER_BROKER,
    )
    ssl_truststore_location: str | None = optional_string(
        MEDIUM,
        "File with the certificates of the authorities that sign clients' certificates.",
        mode=PER_BROKER,
    )
    ssl_truststore_password: str | None = optional_password(
        MEDIUM, "Password of the PKCS12 file ssl.truststore.location.", mode=PER_BROKER
    )
    ssl_truststore_certificates: str | None = optional_password(
        MEDIUM, "Those certificates themselves, in PEM, instead of ssl.truststore.location.", mode=PER_BROKER
    )
    ssl_principal_mapping_rules: str = string(
        "DEFAULT",
        LOW,
        "Rules that make a user name from the subject of a client's certificate: "
        "RULE:pattern/replacement/[LU], separated by commas; DEFAULT takes the whole subject.",
    )


ANY_STORE: Final = "JKS"
"""Kafka's default type of a store. The broker recognizes the other two then."""
STORE_TYPES: Final = (ANY_STORE, "PEM", "PKCS12")


class TlsPlan(NamedTuple):
    """The TLS of one listener. `rules` map a subject to a principal."""

    client_auth: str
    versions: tuple[str, ...]
    ciphers: tuple[str, ...]
    keystore_type: str
    keystore_location: str | None
    keystore_password: str | None
    key_password: str | None
    key: str | None
    certificate_chain: str | None
    truststore_type: str
    truststore_location: str | None
    truststore_password: str | None
    truststore_certificates: str | None
    rules: tuple[PrincipalRule, ...]

    def __repr__(self) -> str:
        return f"TlsPlan({self.keystore_location or 'PEM in the settings'})"


class PrincipalRule(NamedTuple):
    """A rule of `ssl.principal.mapping.rules` (KIP-371). `pattern` is None for DEFAULT."""

    pattern: re.Pattern[str] | None
    replacement: str
    case: str

    def name_for(self, subject: str) -> str | None:
        """Returns the user name for a subject, or None if the rule does not match."""
        if self.pattern is None:
            return subject
        match = self.pattern.fullmatch(subject)
        if match is None:
            return None
        name = re.sub(r"\$(\d)", lambda group: match[int(group[1])] or "", self.replacement)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name


def principal_of(subject: str, rules: tuple[PrincipalRule, ...]) -> Principal | None:
    """Returns the principal of a certificate's subject, or None if no rule matches."""
    for rule in rules:
        name = rule.name_for(subject)
        if name is not None:
            return user_principal(name)
    return None


def parse_rules(text: str) -> tuple[PrincipalRule, ...]:
    """Returns the rules in `ssl.principal.mapping.rules`. Raises SettingError."""
    name = "ssl.principal.mapping.rules"
    rules: list[PrincipalRule] = []
    position = 0
    text = text.strip()
    while position < len(text):
        if match := _DEFAULT_RULE.match(text, position):
            rules.append(PrincipalRule(None, "", ""))
        elif (match := _RULE.match(text, position)) and match[2] is not None:
            try:
                pattern = re.compile(match[2].replace(r"\/", "/"))
            except re.error as error:
                raise SettingError(name, f"{name}: {match[2]} is not a regular expression: {error}") from None
            largest = max((int(digit) for digit in re.findall(r"\$(\d)", match[3])), default=0)
            if largest > pattern.groups:
                raise SettingError(name, f"{name}: {match[2]} has no group ${largest}")
            rules.append(PrincipalRule(pattern, match[3].replace(r"\/", "/"), match[4]))
        else:
            raise SettingError(
                name, f"{name}: {text[position:]} does not have the form RULE:pattern/replacement/[LU]"
            )
        position = match.end()
    return tuple(rules)


def plan_tls(listener_name: str, value_for: ListenerValue) -> TlsPlan:
    """Returns the plan of a listener whose protocol is SSL or SASL_SSL. Raises SettingError."""

    def text(name: str) -> str | None:
        value = value_for(listener_name, name, "")
        if isinstance(value, Password):
            return value.reveal()
        assert value is None or isinstance(value, str)
        return value

    versions = value_for(listener_name, "ssl.enabled.protocols", "")
    ciphers = value_for(listener_name, "ssl.cipher.suites", "")
    assert isinstance(versions, tuple) and isinstance(ciphers, tuple)
    unknown = set(versions) - set(PROTOCOL_VERSIONS)
    if unknown or not versions:
        raise SettingError(
            "ssl.enabled.protocols", "ssl.enabled.protocols: only TLSv1.2 and TLSv1.3 are supported"
        )
    newest = text("ssl.protocol")
    if newest == "TLSv1.2":
        versions = tuple(version for version in versions if version != "TLSv1.3")
    elif newest not in ("TLSv1.3", "TLS"):
        raise SettingError("ssl.protocol", f"ssl.protocol: {newest} is not one of TLSv1.2, TLSv1.3")
    types = []
    for name in ("ssl.keystore.type", "ssl.truststore.type"):
        types.append((text(name) or ANY_STORE).upper())
        if types[-1] not in STORE_TYPES:
            raise SettingError(name, f"{name}: {types[-1]} is not one of {', '.join(STORE_TYPES)}")
    plan = TlsPlan(
        text("ssl.client.auth") or "none",
        versions,
        ciphers,
        types[0],
        text("ssl.keystore.location"),
        text("ssl.keystore.password"),
        text("ssl.key.password"),
        text("ssl.keystore.key"),
        text("ssl.keystore.certificate.chain"),
        types[1],
        text("ssl.truststore.location"),
        text("ssl.truststore.password"),
        text("ssl.truststore.certificates"),
        parse_rules(text("ssl.principal.mapping.rules") or "DEFAULT"),
    )
    if not plan.keystore_location and not (plan.key and plan.certificate_chain):
        name = "ssl.keystore.location"
        raise SettingError(
            name,
            f"{name}: listener {listener_name} uses TLS, so this must name a file with a private key and its "
            "certificates (or set ssl.keystore.key and ssl.keystore.certificate.chain)",
        )
    if plan.client_auth != "none" and not (plan.truststore_location or plan.truststore_certificates):
        name = "ssl.truststore.location"
        raise SettingError(
            name, f"{name}: ssl.client.auth is {plan.client_auth}, so this must name a file of certificates"
        )
    return plan
