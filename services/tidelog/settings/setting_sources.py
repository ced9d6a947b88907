"""The sources of a service's settings: properties files, the environment, the command line, and AlterConfigs.

All sources use the same names. In the environment, `log.retention.ms` is `TIDELOG_LOG_RETENTION_MS`. The
names of tidelog's own settings do not repeat the prefix: `TIDELOG_ETCD_ENDPOINTS` sets
`tidelog.etcd.endpoints`. The command line overrides the environment, the environment overrides the files, and
a later file overrides an earlier one.

AlterConfigs changes the settings of running brokers (KIP-226). As in Kafka, the error code of a refusal is
INVALID_REQUEST instead of INVALID_CONFIG (KAFKA-13609).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.settings.broker_settings import BROKER_SETTINGS, BrokerSettings, known_setting
from tidelog.settings.other_kafka_settings import DYNAMIC_WITHOUT_EFFECT
from tidelog.settings.properties_file import PropertiesError, parse_properties
from tidelog.settings.setting import SettingError, UpdateMode

ENVIRONMENT_PREFIX: Final = "TIDELOG_"
OWN_PREFIX: Final = "tidelog."


def validate_broker_overrides(
    overrides: Mapping[str, str | None], *, per_broker: bool, broker: BrokerSettings | None = None
) -> BrokerSettings | None:
    """Raises KafkaError(INVALID_REQUEST) if these cannot be the dynamic settings of one broker, or of all
    brokers.

    With `broker`, they are also checked together with the broker's static settings. Returns the settings that
    the broker then has, None without `broker`.
    """
    given: dict[str, str] = {}
    for name, text in overrides.items():
        if text is None:
            raise _refusal(f"Null value not supported for broker configs: {name}")
        try:
            definition = known_setting(name, text) or DYNAMIC_WITHOUT_EFFECT.get(name)
            if definition is None:
                raise SettingError(name, f"Cannot update these configs dynamically: {name}")
            _check_update_mode(name, definition.update_mode, per_broker)
            definition.parse(text)
        except SettingError as error:
            raise _refusal(str(error)) from None
        given[name] = text
    if broker is None:
        return None
    layers = broker.layers
    try:
        return broker.with_dynamic(
            dynamic_default=layers.dynamic_default if per_broker else given,
            dynamic=given if per_broker else layers.dynamic,
        )
    except SettingError as error:
        raise _refusal(str(error)) from None


def _check_update_mode(name: str, mode: UpdateMode, per_broker: bool) -> None:
    if mode is UpdateMode.READ_ONLY:
        raise SettingError(name, f"Cannot update these configs dynamically: {name}")
    if mode is UpdateMode.PER_BROKER and not per_broker:
        raise SettingError(
            name,
            f"Cannot update these configs at default cluster level, broker id must be specified: {name}",
        )


def _refusal(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


@dataclass(frozen=True, slots=True)
class GivenSettings:
    """The texts of settings by name, the place where each was given ("server.properties, line 3"), and the
    environment variables that name no setting.
    """

    texts: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    unknown_variables: tuple[str, ...] = ()

    def default(self, name: str, text: str) -> None:
        """The values of settings that no source gives."""
        self.texts.setdefault(name, text)

    def parse(self) -> BrokerSettings:
        """Returns the settings. Raises SettingError with one line that names the setting and the place where
        it was given.
        """
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
    """Reads all sources. `files` contains pairs of name and text.

    Raises SettingError if a source cannot be read. `parse` checks the names and values.
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
            raise SettingError(name, f"{places[name]} and {variable} both set {name}, to different values")
        else:
            texts[name], places[name] = text, variable
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        name = name.strip()
        if not equals or not name:
            raise SettingError(name, f"--set {assignment}: expected NAME=VALUE")
        texts[name], places[name] = text.strip(), f"--set {name}"
    return GivenSettings(texts, places, tuple(unknown))


def setting_of_variable(variable: str) -> str | None:
    """Returns the setting that an environment variable sets, or None. Kubernetes, for example, defines other
    variables whose names begin with the name of a service.
    """
    name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")
    for candidate in (name, OWN_PREFIX + name):
        if candidate in BROKER_SETTINGS:
            return candidate
    return name if _is_kafkas(name) else None


def _is_kafkas(name: str) -> bool:
    """Whether Kafka knows the setting, but tidelog refuses or ignores it. The user must be informed."""
    try:
        known_setting(name, "")
    except SettingError as error:
        return not str(error).startswith("Unknown setting")
    return True
