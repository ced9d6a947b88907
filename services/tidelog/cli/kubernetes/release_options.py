"""The options --release and --namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from tidelog.cli.kubernetes.api_server import ApiServer
from tidelog.cli.kubernetes.release import Release

F = TypeVar("F", bound=Callable[..., object])


def release_options(command: F) -> F:
    command = click.option(
        "--namespace",
        "-n",
        required=True,
        envvar="POD_NAMESPACE",
        show_envvar=True,
        help="The release's namespace.",
    )(command)
    return click.option("--release", required=True, help="The name of the Helm release.")(command)


def open_release(release: str, namespace: str) -> Release:
    """Returns the release. Raises ToolError."""
    return Release(ApiServer.connect(), namespace, release)
