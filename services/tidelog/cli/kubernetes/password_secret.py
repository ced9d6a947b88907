"""`tidelog kubernetes password-secret`: creates Secrets with random passwords, unless they exist.

The Secrets of etcd's users must exist before the first pod starts, so a Job before the installation runs
this. A password that a template of the chart generated would also be in Helm's record of the release.
"""

from __future__ import annotations

import secrets
from typing import Final

import click

from tidelog.cli.kubernetes.api_server import ApiServer, NotFoundError
from tidelog.cli.kubernetes.release_options import release_options
from tidelog.cli.output import say
from tidelog.cli.tool_command import ToolCommand, ToolError

PASSWORD_BYTES: Final = 24


@click.command(
    cls=ToolCommand,
    short_help="Create Secrets with random passwords.",
    examples=("tidelog kubernetes password-secret --release tidelog -n kafka --secret tidelog-admin=admin",),
)
@release_options
@click.option(
    "--secret",
    "wanted",
    multiple=True,
    required=True,
    metavar="NAME=USERNAME",
    help="A Secret, which is never changed if it exists, and the value of its `username`. Can be repeated.",
)
def command(release: str, namespace: str, wanted: tuple[str, ...]) -> None:
    """Create Secrets with the keys `username` and `password`, unless they exist."""
    named = [_name_and_username(text) for text in wanted]
    server = ApiServer.connect()
    for name, username in named:
        done = ensure_secret(server, release, namespace, name, username)
        say(done, is_one_of_many=True, secret=name, username=username)


def _name_and_username(text: str) -> tuple[str, str]:
    name, _, username = text.partition("=")
    if not name or not username:
        raise ToolError(f"--secret {text}: expected NAME=USERNAME")
    return name, username


def ensure_secret(server: ApiServer, release: str, namespace: str, name: str, username: str) -> str:
    """Fills a Secret that does not exist, or that the chart has made empty, because Kubernetes can't restrict
    by name who creates Secrets. Returns what was done. Raises ToolError.
    """
    texts = {"username": username, "password": secrets.token_urlsafe(PASSWORD_BYTES)}
    try:
        found = server.call(server.core.read_namespaced_secret, name, namespace)
    except NotFoundError:
        labels = {"app.kubernetes.io/managed-by": "tidelog", "app.kubernetes.io/instance": release}
        body = {"metadata": {"name": name, "labels": labels}, "stringData": texts}
        server.call(server.core.create_namespaced_secret, namespace, body)
    else:
        if (found.data or {}).get("password"):
            return f"Secret {name} exists"
        server.call(server.core.patch_namespaced_secret, name, namespace, {"stringData": texts})
    return f"Secret {name} contains a new password of {username}"
