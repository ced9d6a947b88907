"""`tidelog kubernetes password-secret`: creates a Secret with a random password, unless it exists.

The Secret of etcd's user must exist before the first pod starts, so a Job before the installation runs this.
A password that a template of the chart generated would also be in Helm's record of the release.
"""

from __future__ import annotations

import secrets
from typing import Final

import click

from tidelog.cli.kubernetes.api_server import ApiServer, NotFoundError
from tidelog.cli.kubernetes.release_options import release_options
from tidelog.cli.output import say
from tidelog.cli.tool_command import ToolCommand

PASSWORD_BYTES: Final = 24


@click.command(
    cls=ToolCommand,
    short_help="Create a Secret with a random password.",
    examples=(
        "tidelog kubernetes password-secret --release tidelog -n kafka --name tidelog-admin --username admin",
    ),
)
@release_options
@click.option("--name", required=True, help="The Secret, which is never changed if it exists.")
@click.option("--username", required=True, help="The value of its key `username`.")
def command(release: str, namespace: str, name: str, username: str) -> None:
    """Create a Secret with the keys `username` and `password`, unless it exists."""
    done = ensure_secret(ApiServer.connect(), release, namespace, name, username)
    say(done, secret=name, username=username)


def ensure_secret(server: ApiServer, release: str, namespace: str, name: str, username: str) -> str:
    """Returns what was done. Raises ToolError."""
    try:
        server.call(server.core.read_namespaced_secret, name, namespace)
    except NotFoundError:
        labels = {"app.kubernetes.io/managed-by": "tidelog", "app.kubernetes.io/instance": release}
        texts = {"username": username, "password": secrets.token_urlsafe(PASSWORD_BYTES)}
        body = {"metadata": {"name": name, "labels": labels}, "stringData": texts}
        server.call(server.core.create_namespaced_secret, namespace, body)
        return f"Secret {name} contains a new password of {username}"
    return f"Secret {name} exists"
