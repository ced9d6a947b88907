"""The options of the commands that run a service: the sources of settings, and the report of a wrong one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn, TypeVar

import click
import structlog

from tidelog.process.structured_log import configure_logging
from tidelog.settings.broker_settings import BROKER_SETTINGS, BrokerSettings
from tidelog.settings.other_kafka_settings import nearest_name
from tidelog.settings.setting import SettingError
from tidelog.settings.setting_sources import ENVIRONMENT_PREFIX, gather_settings

_log = structlog.get_logger(__name__)

F = TypeVar("F", bound=Callable[..., object])


def service_options(command: F) -> F:
    """Adds --config and --set, as the parameters `configs` and `assignments`."""
    command = click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="NAME=VALUE",
        help="Set a setting by Kafka's name. Overrides the environment and files. Repeatable.",
    )(command)
    return click.option(
        "--config",
        "configs",
        multiple=True,
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="A properties file like Kafka's server.properties, with one NAME=VALUE in each line. "
        "Repeatable; later files override earlier ones.",
    )(command)


def settings_from(
    configs: tuple[Path, ...],
    assignments: tuple[str, ...],
    environment: Mapping[str, str] | None = None,
) -> BrokerSettings:
    """Returns the settings, and sets up the process's log.

    The command line overrides the environment (TIDELOG_LOG_RETENTION_MS for log.retention.ms), which
    overrides the files. A wrong setting ends the process with one line that names the setting and its source.
    """
    try:
        given = gather_settings(
            files=[(str(config), _read(config)) for config in configs],
            environment=os.environ if environment is None else environment,
            assignments=assignments,
        )
        settings = given.parse()
    except SettingError as error:
        fail(str(error))
    configure_logging(settings.tidelog_log_format, settings.tidelog_log_level)
    for variable in given.unknown_variables:
        hint = nearest_name(
            variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", "."), BROKER_SETTINGS
        )
        if hint:
            _log.warning("an environment variable is no setting" + hint, variable=variable)
    return settings


def _read(config: Path) -> str:
    try:
        return config.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        fail(f"--config {config}: {reason}")


def fail(reason: str) -> NoReturn:
    click.echo(f"tidelog: {reason}", err=True)
    sys.exit(1)
