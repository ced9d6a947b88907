"""Where a service's settings come from: properties files, the environment, the command line.

The names are the same everywhere. In the environment `log.retention.ms` is `TIDELOG_LOG_RETENTION_MS`; for
tidelog's own settings the prefix need not stand there twice (`TIDELOG_ETCD_ENDPOINTS` is
`tidelog.etcd.endpoints`). The command line overrides the environment, and that the files, of which later ones
win.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog.settings.broker_settings import BROKER_SETTINGS, BrokerSettings, known_setting
from tidelog.settings.properties_file import PropertiesError, parse_properties
from tidelog.settings.setting import SettingError

ENVIRONMENT_PREFIX: Final = "TIDELOG_"
OWN_PREFIX: Final = "tidelog."


@dataclass(frozen=True, slots=True)
class GivenSettings:
    """Texts by name, where each was given ("server.properties, line 3"), and what of the environment named
    no setting.
    """

    texts: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    unknown_variables: tuple[str, ...] = ()

    def default(self, name: str, text: str) -> None:
        """What holds where nothing else was said."""
        self.texts.setdefault(name, text)

    def parse(self) -> BrokerSettings:
        """Raises SettingError, in one line that names the setting and where it was given."""
        try:
            return BrokerSettings.parse(self.texts)
        except SettingError as error:
            place = self.places.get(error.name)
            raise SettingError(error.name, f"{place}: {error}" if place else str(error)) from None


def gather_settings(
    *,
    files: Iterable[tuple[str, str]] = (),
    environment: Mapping[str, str] | None = None,
    assignments: Iterable[str] = (),
) -> GivenSettings:
    """`files` are (name, text). Raises SettingError for what can't be read at all; whether names and values
    make sense is `parse`'s.
    """
    texts: dict[str, str] = {}
    places: dict[str, str] = {}
    for file_name, file_text in files:
        try:
            for entry in parse_properties(file_text):
                texts[entry.name], places[entry.name] = entry.value, f"{file_name}, line {entry.line}"
        except PropertiesError as error:
            raise SettingError("", f"{file_name}, {error}") from None
    unknown: list[str] = []
    for variable, text in sorted((environment or {}).items()):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        name = setting_of_variable(variable)
        if name is None:
            unknown.append(variable)
        elif name in texts and places[name].startswith(ENVIRONMENT_PREFIX) and texts[name] != text:
            raise SettingError(name, f"{places[name]} and {variable} both set {name}, differently")
        else:
            texts[name], places[name] = text, variable
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        name = name.strip()
        if not equals or not name:
            raise SettingError(name, f"--set {assignment}: NAME=VALUE expected")
        texts[name], places[name] = text.strip(), f"--set {name}"
    return GivenSettings(texts, places, tuple(unknown))


def setting_of_variable(variable: str) -> str | None:
    """The setting that an environment variable gives, None if it is none: Kubernetes, for one, puts variables
    of its own there that begin with a service's name.
    """
    name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")
    for candidate in (name, OWN_PREFIX + name):
        if candidate in BROKER_SETTINGS:
            return candidate
    return name if _is_kafkas(name) else None


def _is_kafkas(name: str) -> bool:
    """Known to Kafka, but refused or without effect here: the user is to be told."""
    try:
        known_setting(name, "")
    except SettingError as error:
        return not str(error).startswith("Unknown setting")
    return True
