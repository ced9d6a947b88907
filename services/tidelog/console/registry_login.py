"""The login at a schema registry and the certificates it is trusted by, from a file with the properties of
Confluent's clients.
"""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tidelog.client.security import SecurityConfigError, file_properties, naming, parse_tls

USER_INFO: Final = "USER_INFO"
STATIC_TOKEN: Final = "STATIC_TOKEN"
MAX_CREDENTIALS_CHARACTERS: Final = 16_384
_TLS_PREFIX: Final = "schema.registry."
_PREFIXES: Final = ("basic.auth.", "bearer.auth.", f"{_TLS_PREFIX}ssl.", f"{_TLS_PREFIX}basic.auth.")
_TOKEN: Final = re.compile(r"[-A-Za-z0-9._~+/]+=*")


class RegistryLogin(NamedTuple):
    """The value of the header Authorization, and the TLS settings. Each is None if the file has none."""

    authorization: str | None = None
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return "RegistryLogin([hidden])"


NO_LOGIN: Final = RegistryLogin()


def read_registry_login(path: Path) -> RegistryLogin:
    """Returns what a file of client properties says about the registry. Properties of other subjects are
    ignored. Raises SecurityConfigError, whose message contains no secret.
    """
    with naming(path):
        return parse_registry_login(file_properties(path))


def parse_registry_login(properties: Mapping[str, str]) -> RegistryLogin:
    """Raises SecurityConfigError."""
    left = {name: text for name, text in properties.items() if name.startswith(_PREFIXES)}
    tls_names = [name for name in left if name.startswith(f"{_TLS_PREFIX}ssl.")]
    of_tls = {name.removeprefix(_TLS_PREFIX): left.pop(name) for name in tls_names}
    basic, bearer = _basic(left), _bearer(left)
    if left:
        raise SecurityConfigError(f"{min(left)} is not supported")
    if basic is not None and bearer is not None:
        raise SecurityConfigError("bearer.auth.token: basic.auth.user.info is set, too; remove one of them")
    if not of_tls:
        return RegistryLogin(basic or bearer)
    try:
        return RegistryLogin(basic or bearer, parse_tls(of_tls))
    except SecurityConfigError as error:
        raise SecurityConfigError(f"{_TLS_PREFIX}{error}") from None


def _basic(left: dict[str, str]) -> str | None:
    source, info = left.pop("basic.auth.credentials.source", ""), left.pop("basic.auth.user.info", "")
    if not source and not info:
        return None
    if source != USER_INFO:
        raise SecurityConfigError(
            f"basic.auth.credentials.source: it must be {USER_INFO}, with basic.auth.user.info=NAME:PASSWORD"
        )
    if not info.partition(":")[0] or ":" not in info or len(info) > MAX_CREDENTIALS_CHARACTERS:
        raise SecurityConfigError("basic.auth.user.info: it is not NAME:PASSWORD")
    return f"Basic {base64.b64encode(info.encode()).decode()}"


def _bearer(left: dict[str, str]) -> str | None:
    source, token = left.pop("bearer.auth.credentials.source", ""), left.pop("bearer.auth.token", "")
    if not source and not token:
        return None
    if source not in ("", STATIC_TOKEN):
        raise SecurityConfigError(
            f"bearer.auth.credentials.source: it must be {STATIC_TOKEN}, with bearer.auth.token"
        )
    if _TOKEN.fullmatch(token) is None or len(token) > MAX_CREDENTIALS_CHARACTERS:
        raise SecurityConfigError("bearer.auth.token: it is not a bearer token")
    return f"Bearer {token}"
