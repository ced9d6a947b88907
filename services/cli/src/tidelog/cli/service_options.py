"""What the commands that run one service share: where settings come from, and how a wrong one is told."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import structlog
from tidelog.runtime.broker_settings import BROKER_SETTINGS, BrokerSettings
from tidelog.runtime.other_kafka_settings import nearest_name
from tidelog.runtime.setting import SettingError
from tidelog.runtime.setting_sources import ENVIRONMENT_PREFIX, gather_settings
from tidelog.runtime.structured_log import configure_logging

_log = structlog.get_logger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


def service_options(command: F) -> F:
    """--config and --set; gives `configs` and `assignments`."""
    command = click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="NAME=VALUE",
        help="A setting by Kafka's name, over environment and file; repeatable.",
    )(command)
    return click.option(
        "--config",
        "configs",
        multiple=True,
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="A properties file as Kafka's server.properties: name=value, a line each. "
        "Repeatable, later files win.",
    )(command)


def settings_from(
    configs: tuple[Path, ...],
    assignments: tuple[str, ...],
    environment: Mapping[str, str] | None = None,
) -> BrokerSettings:
    """The command line over the environment (TIDELOG_LOG_RETENTION_MS for log.retention.ms) over the files,
    of which later ones win.

    Whatever is wrong ends the process with one line that names the setting and where it was given. The
    process's own log is set up on the way.
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
