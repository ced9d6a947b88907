"""--release and --namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from tidelog.cli.kubernetes.api_server import ApiServer
from tidelog.cli.kubernetes.release import Release

F = TypeVar("F", bound=Callable[..., Any])


def release_options(command: F) -> F:
    command = click.option(
        "--namespace",
        "-n",
        required=True,
        envvar="POD_NAMESPACE",
        show_envvar=True,
        help="Where it is installed.",
    )(command)
    return click.option("--release", required=True, help="The Helm release's name.")(command)


def open_release(release: str, namespace: str) -> Release:
    """Raises ToolError."""
    return Release(ApiServer.connect(), namespace, release)
