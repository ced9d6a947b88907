"""The settings of a service from its command line, and how it reaches etcd with them.

A wrong setting ends the process with one line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

import click
import structlog

from tidelog.cli.command_line import noted
from tidelog.process.structured_log import configure_logging
from tidelog.settings.broker_settings import BROKER_SETTINGS, BrokerSettings
from tidelog.settings.listeners import is_loopback_host
from tidelog.settings.other_kafka_settings import nearest_name
from tidelog.settings.setting import Password, SettingError
from tidelog.settings.setting_sources import ENVIRONMENT_PREFIX, gather_settings

if TYPE_CHECKING:
    from tidelog.metadata.etcd.connection import EtcdOptions

_log = structlog.get_logger(__name__)

_CONFIGS_KEY: Final = "tidelog.configs"
_ASSIGNMENTS_KEY: Final = "tidelog.assignments"

F = TypeVar("F", bound=Callable[..., object])


def service_options(command: F) -> F:
    """Adds --config and --set, which `command_settings` reads."""
    command = click.option(
        "--set",
        "assignments",
        multiple=True,
        expose_value=False,
        callback=noted(_ASSIGNMENTS_KEY),
        metavar="NAME=VALUE",
        help="Set a setting by Kafka's name. Overrides the environment and files. Repeatable.",
    )(command)
    return click.option(
        "--config",
        "configs",
        multiple=True,
        type=click.Path(dir_okay=False, path_type=Path),
        expose_value=False,
        callback=noted(_CONFIGS_KEY),
        metavar="FILE",
        help="A properties file like Kafka's server.properties, with one NAME=VALUE in each line. "
        "Repeatable; later files override earlier ones.",
    )(command)


def command_settings() -> BrokerSettings:
    """Returns the settings that the running command's options name, as `settings_from` does."""
    meta = click.get_current_context().meta
    return settings_from(meta[_CONFIGS_KEY], meta[_ASSIGNMENTS_KEY])


def settings_from(
    configs: tuple[Path, ...], assignments: tuple[str, ...], environment: Mapping[str, str] | None = None
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


def etcd_options(settings: BrokerSettings) -> EtcdOptions:
    """Returns the options for etcd. Ends the process with one line if an endpoint is invalid, or if the
    password would travel to another machine without encryption.
    """
    from tidelog.metadata.etcd.connection import EtcdAddressError, EtcdOptions  # loads gRPC

    password = settings.tidelog_etcd_password
    options = EtcdOptions(
        endpoints=settings.tidelog_etcd_endpoints,
        username=settings.tidelog_etcd_username or "",
        password=password.reveal() if isinstance(password, Password) else "",
        ca_file=settings.tidelog_etcd_tls_ca_file or "",
        cert_file=settings.tidelog_etcd_tls_cert_file or "",
        key_file=settings.tidelog_etcd_tls_key_file or "",
        prefix=settings.tidelog_etcd_prefix,
    )
    try:
        endpoints = options.parsed_endpoints()
    except EtcdAddressError as error:
        fail(f"tidelog.etcd.endpoints: {error}")
    if options.password and not settings.tidelog_etcd_allow_plaintext:
        for endpoint in endpoints:
            if not endpoint.is_tls and not is_loopback(endpoint.target):
                fail(
                    f"tidelog.etcd.endpoints: {endpoint.target} is not encrypted, and others could read "
                    "tidelog.etcd.password on the network; use https://, or set "
                    "tidelog.etcd.allow.plaintext=true"
                )
    return options


def is_loopback(address: str) -> bool:
    """Returns whether only this machine reaches `host:port`."""
    return is_loopback_host(address.rpartition(":")[0].strip("[]"))


def _read(config: Path) -> str:
    try:
        return config.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        fail(f"--config {config}: {reason}")


def fail(reason: str) -> NoReturn:
    click.echo(f"tidelog: {reason}", err=True)
    sys.exit(1)
