"""Copies of settings in a data directory, from which they are restored if the metadata is lost.

The copy of a topic's overrides is in the directory of each of its partitions. The copy of the settings that
AlterConfigs has set for brokers, which topics inherit, is beside the partitions. Kafka ignores both files.

A copy is a JSON object with the version 1, the settings, and the CRC-32 of their JSON. A copy that is missing
or damaged means that the settings are not known. So a copy that cannot be replaced is removed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from tidelog.broker.log.partition_directory import write_atomically
from tidelog.settings.broker_settings import BROKER_SETTINGS
from tidelog.settings.other_kafka_settings import DYNAMIC_WITHOUT_EFFECT
from tidelog.settings.setting import UpdateMode

TOPIC_SETTINGS_FILE: Final = "topic-settings.json"
BROKER_SETTINGS_FILE: Final = "broker-settings.json"
_VERSION: Final = 1

_log = structlog.get_logger(__name__)


class DamagedCopyError(ValueError):
    """A file does not contain what `_encode` wrote."""


class BrokerSettingsCopy(NamedTuple):
    """The settings that AlterConfigs has set for all brokers, and those for this broker."""

    of_all: Mapping[str, str]
    of_this: Mapping[str, str]


def keep_topic_settings(directory: Path, overrides: Mapping[str, str]) -> None:
    """Writes the copy of a topic's overrides, unless it is current. The next flush of the log syncs it."""
    _keep(directory / TOPIC_SETTINGS_FILE, overrides, syncs=False)


def read_topic_settings(directory: Path) -> Mapping[str, str] | None:
    """Returns a topic's overrides, None if they are not known. Raises OSError, DamagedCopyError."""
    settings = _read(directory / TOPIC_SETTINGS_FILE)
    return None if settings is None else _texts(settings)


def keep_broker_settings(log_dir: Path, of_all: Mapping[str, str], of_this: Mapping[str, str]) -> None:
    """Writes the copy of the settings that hold for all brokers or could, unless it is current.

    Settings of listeners, among them all passwords, belong to one broker and are left out.
    """
    settings = {"of_all": _cluster_wide(of_all), "of_this": _cluster_wide(of_this)}
    _keep(log_dir / BROKER_SETTINGS_FILE, settings, syncs=True)


def read_broker_settings(log_dir: Path) -> BrokerSettingsCopy | None:
    """Returns the broker's dynamic settings, None if they are not known. Raises OSError, DamagedCopyError."""
    settings = _read(log_dir / BROKER_SETTINGS_FILE)
    if settings is None:
        return None
    return BrokerSettingsCopy(_texts(settings.get("of_all")), _texts(settings.get("of_this")))


def _cluster_wide(settings: Mapping[str, str]) -> dict[str, str]:
    return {
        name: text
        for name, text in settings.items()
        if (definition := BROKER_SETTINGS.get(name) or DYNAMIC_WITHOUT_EFFECT.get(name)) is not None
        and definition.update_mode is UpdateMode.CLUSTER_WIDE
    }


def _keep(path: Path, settings: Mapping[str, object], *, syncs: bool) -> None:
    content = _encode(settings)
    with suppress(OSError):
        if path.read_bytes() == content:
            return
    try:
        write_atomically(path, content, syncs=syncs)
    except OSError as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        _log.warning(
            "the copy of settings cannot be written: they are lost if the metadata is",
            path=str(path),
            reason=str(error),
        )


def _encode(settings: Mapping[str, object]) -> bytes:
    value = {"version": _VERSION, "settings": settings, "crc": _crc(settings)}
    return json.dumps(value, sort_keys=True).encode()


def _read(path: Path) -> Mapping[str, object] | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        value = json.loads(content)
        settings = value["settings"]
        if value["version"] == _VERSION and isinstance(settings, dict) and value["crc"] == _crc(settings):
            return settings
    except (ValueError, KeyError, TypeError):
        pass
    raise DamagedCopyError(f"{path} is damaged: it is not a copy of settings of version {_VERSION}")


def _crc(settings: Mapping[str, object]) -> int:
    return zlib.crc32(json.dumps(settings, sort_keys=True).encode())


def _texts(value: object) -> dict[str, str]:
    return {str(name): str(text) for name, text in value.items()} if isinstance(value, dict) else {}
