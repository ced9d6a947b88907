"""The settings of connections, which all clients have, and the reading of settings from properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from tidelog.kernel.instants import Backoff
from tidelog.model.errors import TidelogError
from tidelog.settings.setting import LOW, MEDIUM, at_least, integer, long, settings_of, string


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConnectionSettings:
    """Settings of the connections, which all clients have."""

    client_id: str = string("tidelog", MEDIUM, "Name of the client in the broker's logs and quotas.")
    request_timeout_ms: int = integer(30_000, MEDIUM, "Time to wait for a response.", at_least(1))
    retry_backoff_ms: int = long(100, LOW, "Time before the first retry. It doubles each time.", at_least(0))
    retry_backoff_max_ms: int = long(1_000, LOW, "Longest time before a retry.", at_least(0))
    reconnect_backoff_ms: int = long(50, LOW, "Time before a broker is connected again.", at_least(0))
    reconnect_backoff_max_ms: int = long(1_000, LOW, "Longest time before a reconnection.", at_least(0))
    socket_connection_setup_timeout_ms: int = long(10_000, MEDIUM, "Time to connect.", at_least(1))
    connections_max_idle_ms: int = long(
        540_000, MEDIUM, "An unused connection is closed after this time; -1 means never.", at_least(-1)
    )
    metadata_max_age_ms: int = long(
        300_000, LOW, "Metadata are requested again after this time, even without errors.", at_least(1)
    )

    def retry_backoff(self, jitter: Callable[[], float]) -> Backoff:
        """Returns the pauses before a request is repeated."""
        longest_ms = max(self.retry_backoff_ms, self.retry_backoff_max_ms)
        return Backoff(self.retry_backoff_ms, longest_ms, jitter=jitter)

    def reconnect_backoff(self, jitter: Callable[[], float]) -> Backoff:
        """Returns the pauses before a broker is connected again."""
        longest_ms = max(self.reconnect_backoff_ms, self.reconnect_backoff_max_ms)
        return Backoff(self.reconnect_backoff_ms, longest_ms, jitter=jitter)


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
