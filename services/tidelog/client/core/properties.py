"""Reads a client's settings from a mapping of Kafka's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

from tidelog.client.core.producer_settings import ConnectionSettings
from tidelog.model.errors import TidelogError
from tidelog.settings.setting import settings_of

Properties = Mapping[str, object]
"""Settings by Kafka's names, as in `{"linger.ms": 20}`. Values are text, numbers or booleans."""

BOOTSTRAP: Final = "bootstrap.servers"
SECURITY_PREFIXES: Final = ("security.", "sasl.", "ssl.")
S = TypeVar("S", bound=ConnectionSettings)


class SettingsError(TidelogError, ValueError):
    """A setting is unknown or invalid. The message is one sentence that names it."""


def parse_settings(kind: type[S], properties: Properties) -> S:
    """Returns the settings. It leaves out `bootstrap.servers` and the settings of TLS and SASL.

    Raises SettingsError.
    """
    known = settings_of(cast("type", kind))
    values: dict[str, Any] = {}
    for name, value in properties.items():
        if name == BOOTSTRAP or name.startswith(SECURITY_PREFIXES):
            continue
        definition = known.get(name)
        if definition is None:
            raise SettingsError(f"{name} is not a setting of this client")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        try:
            values[definition.attribute] = definition.parse(text)
        except ValueError as error:
            raise SettingsError(str(error)) from None
    try:
        return kind(**values)
    except ValueError as error:
        raise SettingsError(str(error)) from None


def security_texts(properties: Properties) -> dict[str, str]:
    """Returns the settings of TLS and SASL as text."""
    return {name: str(value) for name, value in properties.items() if name.startswith(SECURITY_PREFIXES)}
