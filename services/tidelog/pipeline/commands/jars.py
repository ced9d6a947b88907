"""`tidelog pipeline jars`."""

from __future__ import annotations

import click

from tidelog.pipeline.jars import session_jars
from tidelog.process.command_help import DescribedCommand


@click.command("jars", cls=DescribedCommand, examples=("tidelog pipeline jars",))
def command() -> None:
    """Fetch the JARs that Spark sessions need, once, and list them."""
    for jar in session_jars():
        click.echo(jar)
